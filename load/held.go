package load

import (
	"cmp"
	"fmt"
	"time"
)

// RollCall is what came of asking each connection that is held for its line. The line
// is made from the connection's place and the seed, and compared when it is back, so
// that nothing is kept for a connection but while its line is in flight.
type RollCall struct {
	// Number counts the roll calls of the run, from 1; InFlight is
	// Config.Check.
	Number   int `json:"number"`
	InFlight int `json:"in_flight"`
	// Open is how many connections were open when it began. Asked counts those
	// that have sent their line: of these Checked got it back, Wrong something
	// else, and then they were closed; Lost ended before, and Unanswered got
	// nothing, for Config.Drain in which none got any. Asked is the sum of the
	// four. It is less than Open where connections ended before it was their
	// turn, or where so many were unanswered that no more could be asked.
	Open       int64 `json:"open"`
	Asked      int64 `json:"asked"`
	Checked    int64 `json:"checked"`
	Wrong      int64 `json:"wrong"`
	Lost       int64 `json:"lost"`
	Unanswered int64 `json:"unanswered"`
	// Time is from its beginning to the last line that came back.
	Time time.Duration `json:"time"`
	// Latency is the time from when a line was handed to its connection to
	// when it was back, in steps of a hundredth.
	Latency Latency `json:"latency"`
}

// Complete says whether every connection that was open got its line back.
func (c *RollCall) Complete() bool { return c.Checked == c.Open }

// Rate is how many lines a second came back.
func (c *RollCall) Rate() float64 {
	if c.Time <= 0 {
		return 0
	}
	return float64(c.Checked) / c.Time.Seconds()
}

// Broadcast is how far the server's one line to all connections that are held has
// come.
type Broadcast struct {
	// Open is how many connections were open, Heard how many of them had got
	// the line.
	Open  int64 `json:"open"`
	Heard int64 `json:"heard"`
	// Again counts lines that came to a connection that had got it before.
	Again int64 `json:"again"`
	// Time is from the first that got it to the last, of all connections, and
	// After of each the time since the first, in steps of a hundredth.
	Time  time.Duration `json:"time"`
	After Latency       `json:"after"`
}

// Missing is how many connections had not got it.
func (b *Broadcast) Missing() int64 { return b.Open - b.Heard }

// heldErr says what was wrong with what connections that are held have heard.
func (r *Result) heldErr() error {
	for _, c := range r.RollCalls {
		if !c.Complete() {
			return fmt.Errorf("load: roll call %d: %s of %s connections have got their line back", c.Number, group(c.Checked), group(c.Open))
		}
	}
	switch b := r.Broadcast; {
	case b != nil && b.Missing() > 0:
		return fmt.Errorf("load: broadcast: %s of %s connections have not got it", group(b.Missing()), group(b.Open))
	case b != nil && b.Again > 0:
		return fmt.Errorf("load: broadcast: it came again %s times", group(b.Again))
	case r.Strange > 0:
		return fmt.Errorf("load: %s lines that nobody expected; first: %s", group(r.Strange), r.FirstStrange)
	}
	return nil
}

// heldErrors counts what was wrong beside wrong answers, and answers that are missing.
func (r *Result) heldErrors() (n int64) {
	n = r.Strange
	if b := r.Broadcast; b != nil {
		n += b.Missing() + b.Again
	}
	return n
}

func (r *Result) writeHeld(line writeLine) {
	for _, c := range r.RollCalls {
		text := fmt.Sprintf("%s of %s got their line back in %v, %s/s, at most %s in flight",
			group(c.Checked), group(c.Open), round(c.Time), group(int64(c.Rate())), group(int64(c.InFlight)))
		for _, w := range []struct {
			n    int64
			what string
		}{{c.Wrong, "wrong"}, {c.Lost, "lost"}, {c.Unanswered, "unanswered"}} {
			if w.n > 0 {
				text += fmt.Sprintf("; %s %s", group(w.n), w.what)
			}
		}
		line(fmt.Sprintf("roll call %d", c.Number), "%s", text)
		if l := c.Latency; l.Count > 0 {
			line("", "50%% %v, 99%% %v, max %v", round(l.P50), round(l.P99), round(l.Max))
		}
	}
	if r.Heartbeats > 0 {
		line("heartbeats", "%s", group(r.Heartbeats))
	}
	b := r.Broadcast
	if b == nil {
		return
	}
	line("broadcast", "heard on %s of %s connections, within %v of each other", group(b.Heard), group(b.Open), round(b.Time))
	if l := b.After; l.Count > 0 {
		line("", "50%% %v, 99%% %v, max %v after the first", round(l.P50), round(l.P99), round(l.Max))
	}
	if b.Again > 0 {
		line("", "%s times more, on connections that had it", group(b.Again))
	}
}

// checks adds up what roll calls have counted.
func (r *Result) checks(of func(*RollCall) int64) (n int64) {
	for i := range r.RollCalls {
		n += of(&r.RollCalls[i])
	}
	return n
}

// checkRate is that of the slowest roll call.
func (r *Result) checkRate() (rate float64, ok bool) {
	for i, c := range r.RollCalls {
		if i == 0 || c.Rate() < rate {
			rate = c.Rate()
		}
	}
	return rate, len(r.RollCalls) > 0
}

// checkLatency is that of all roll calls, of percentiles the worst; nil without one.
func (r *Result) checkLatency() *Latency {
	var all *Latency
	for i := range r.RollCalls {
		all = addLatencies(all, &r.RollCalls[i].Latency)
	}
	return all
}

// addHeld adds what the connections of another generator have heard. Times of a
// broadcast are from the first that each generator has got.
func (r *Result) addHeld(o *Result) {
	mine := r.RollCalls
	r.RollCalls = append([]RollCall(nil), mine...)
	for i, c := range o.RollCalls {
		if i < len(mine) {
			r.RollCalls[i].add(c)
		} else {
			r.RollCalls = append(r.RollCalls, c)
		}
	}
	if o.Broadcast != nil {
		sum := *o.Broadcast
		if b := r.Broadcast; b != nil {
			sum.Open += b.Open
			sum.Heard += b.Heard
			sum.Again += b.Again
			sum.Time = max(sum.Time, b.Time)
			sum.After = addLatency(sum.After, b.After)
		}
		r.Broadcast = &sum
	}
	r.Heartbeats += o.Heartbeats
	r.Strange += o.Strange
	r.FirstStrange = cmp.Or(r.FirstStrange, o.FirstStrange)
}

// add adds one of another generator.
func (c *RollCall) add(o RollCall) {
	c.InFlight += o.InFlight
	c.Open += o.Open
	c.Asked += o.Asked
	c.Checked += o.Checked
	c.Wrong += o.Wrong
	c.Lost += o.Lost
	c.Unanswered += o.Unanswered
	c.Time = max(c.Time, o.Time)
	c.Latency = addLatency(c.Latency, o.Latency)
}
