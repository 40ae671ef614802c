package lab

import (
	"fmt"
	"time"

	"github.com/myriad-go/myriad/load"
)

// What is claimed of each connection, and from how many on that can be told: with fewer,
// what the processes take in any case is most of it.
const (
	claimUser   = 100    // bytes of the server's memory
	claimKernel = 9000   // bytes of the kernel's, for both ends
	claimRate   = 20_000 // a second
	fewestHeld  = 50_000
)

// millionJudge judges a run by what was seen, and by what the generator saw, nil when it
// did not get so far.
type millionJudge struct {
	*MillionRun
	Result *load.Result
}

// judge says what follows from the run.
func (r *millionJudge) judge(w Workload) {
	add := func(strict bool, f Finding) { r.Findings = append(r.Findings, MillionFinding{f, strict}) }
	add(r.Stopped != nil, r.judgeHeld(w.Connections))
	add(false, r.judgeAnswers())
	add(true, r.judgeSize(fmt.Sprintf("at most %d bytes of user memory a connection on the server", claimUser), claimUser, (*MillionRun).userBytes))
	add(true, r.judgeSize(fmt.Sprintf("at most %s bytes of kernel memory a connection, for both ends", thousands(claimKernel)), claimKernel, (*MillionRun).kernelBytes))
	add(true, r.judgeRate())
	add(false, r.judgeHeartbeats(w.Interval))
	add(true, r.judgeBeats(w))
	add(false, r.judgeBroadcast())
	add(false, r.judgeEnd())
	left, strict := r.judgeLeft()
	add(strict, left)
	r.Missed = r.missed(w.million().Strict)
}

// notMeasured is a finding of a run that did not come so far, or has nothing to show.
func notMeasured(claim string) Finding { return Finding{Claim: claim, Outcome: NotMeasured} }

func (r *millionJudge) judgeHeld(wanted int) Finding {
	claim := fmt.Sprintf("holds %s connections", thousands(float64(wanted)))
	p := r.phase(phaseConnect)
	if p == nil {
		return notMeasured(claim)
	}
	open := p.End.Counts.Open
	f := Finding{Claim: claim, Outcome: outcome(open == int64(wanted)), Detail: "the server counted " + thousands(float64(open))}
	if r.Stopped != nil {
		f.Detail += "; " + r.Stopped.String()
	}
	if r.Result == nil || open == int64(wanted) {
		return f
	}
	if n := total(r.Result.ConnectErrors); n > 0 {
		f.Detail += fmt.Sprintf("; %s attempts failed (%s)", thousands(float64(n)), causes(r.Result.ConnectErrors))
	}
	for _, l := range r.Result.Limits {
		f.Detail += fmt.Sprintf("; %s: %s", l.Wall, l.Evidence)
	}
	return f
}

func (r *millionJudge) judgeAnswers() Finding {
	const claim = "every connection answered with the right content, twice"
	if r.Result == nil {
		return notMeasured(claim)
	}
	var asked, checked, wrong, lost, unanswered int64
	complete := len(r.Result.Verifications) == 2
	for _, c := range r.Result.Verifications {
		asked, checked, wrong, lost, unanswered = asked+c.Asked, checked+c.Checked, wrong+c.Wrong, lost+c.Lost, unanswered+c.Unanswered
		complete = complete && c.Complete() && c.Open == r.held()
	}
	gone := total(r.Result.Lost)
	f := Finding{Claim: claim, Outcome: outcome(complete && gone == 0 && r.Result.Unexpected == 0)}
	f.Detail = fmt.Sprintf("%s lines sent, %s back, %d wrong, %d lost, %d unanswered",
		thousands(float64(asked)), thousands(float64(checked)), wrong, lost, unanswered)
	if gone > 0 {
		f.Detail += fmt.Sprintf("; %s connections ended early (%s)", thousands(float64(gone)), causes(r.Result.Lost))
	}
	if m := r.Result.FirstMismatch; m != nil {
		f.Detail += "; first wrong: " + m.String()
	}
	if r.Result.Unexpected > 0 {
		f.Detail += fmt.Sprintf("; %d unexpected lines, first: %s", r.Result.Unexpected, r.Result.FirstUnexpected)
	}
	return f
}

// held is how many connections the server had when no more were opened.
func (r *MillionRun) held() int64 {
	if p := r.phase(phaseConnect); p != nil {
		return p.End.Counts.Open
	}
	return 0
}

// settled is the sample from which sizes are told: when every connection has exchanged a
// line and was left alone.
func (r *MillionRun) settled() *MillionSample {
	if p := r.phase(phaseIdle); p != nil && p.End.Counts.Open > 0 {
		return &p.End
	}
	return nil
}

// each is a growth for each connection, false where it isn't known.
func (r *MillionRun) each(of func(*MillionSample) int64) (float64, bool) {
	s := r.settled()
	if s == nil {
		return 0, false
	}
	return float64(of(s)-of(&r.Before)) / float64(s.Counts.Open), true
}

func (r *MillionRun) userBytes() (float64, bool) {
	return r.each(func(s *MillionSample) int64 { return s.Server.Anonymous })
}

func (r *MillionRun) loadBytes() (float64, bool) {
	return r.each(func(s *MillionSample) int64 { return s.Load.Anonymous })
}

func (r *MillionRun) kernelBytes() (float64, bool) { return r.each((*MillionSample).Kernel) }

// freeBytes is what the machine has less of free memory.
func (r *MillionRun) freeBytes() (float64, bool) {
	return r.each(func(s *MillionSample) int64 { return -s.Free })
}

func (r *MillionRun) judgeSize(claim string, most float64, size func(*MillionRun) (float64, bool)) Finding {
	bytes, ok := size(r)
	switch {
	case !ok:
		return notMeasured(claim)
	case r.held() < fewestHeld:
		return Finding{claim, NotMeasured, fmt.Sprintf("%s, of too few connections to tell", thousands(bytes))}
	}
	return Finding{claim, outcome(bytes <= most), thousands(bytes)}
}

func (r *MillionRun) judgeRate() Finding {
	claim := fmt.Sprintf("at least %s new connections a second", thousands(claimRate))
	p := r.phase(phaseConnect)
	switch {
	case p == nil:
		return notMeasured(claim)
	case r.held() < fewestHeld:
		return Finding{claim, NotMeasured, fmt.Sprintf("%s, of too few connections to tell", thousands(p.Rate))}
	}
	return Finding{claim, outcome(p.Rate >= claimRate), thousands(p.Rate)}
}

// beats is how many heartbeats the server has sent, and how many answers it has got, since
// the first connection: of the lines that it has got all that are no checks, of which there
// were so many, and not the lab's own are answers.
func (r *MillionRun) beats(now *MillionCounts, asked int64) (sent, answered int64) {
	sent, answered = now.Heartbeats-r.Before.Counts.Heartbeats, now.Messages-r.Before.Counts.Messages-asked
	if r.Caller != nil {
		sent -= r.Caller.Heartbeats
		answered -= r.Caller.Messages
	}
	return sent, answered
}

// judgeHeartbeats goes by the counts of the server when all connections have just been
// checked for the second time, and when they have closed. What it had sent by the first of
// these was answered at that moment, or came to the generator until it closed: with fewer
// there something is lost. Where the check took longer than the time between two heartbeats,
// as on a busy machine, some are under way at all times, also to connections that are just
// being closed. Then it can only be told if the counts agree when all have closed.
func (r *millionJudge) judgeHeartbeats(every time.Duration) Finding {
	const claim = "no heartbeat lost"
	checked, closed := r.phase(phaseAgain), r.phase(phaseClose)
	if checked == nil || closed == nil || r.Result == nil {
		return notMeasured(claim)
	}
	lines, got := asked(r.Result), r.Result.Heartbeats
	sent, answered := r.beats(&checked.End.Counts, lines)
	sentAtEnd, answeredAtEnd := r.beats(&closed.End.Counts, lines)
	unanswered := closed.End.Counts.Unanswered - r.Before.Counts.Unanswered
	f := Finding{claim, Met,
		fmt.Sprintf("%s sent, %s answered, %s missed, by the server's count; %d connections were given up; the generator got %s, of %s in all",
			thousands(float64(sent)), thousands(float64(answered)), thousands(float64(sent-answered)), unanswered, thousands(float64(got)), thousands(float64(sentAtEnd)))}
	switch {
	case sent <= 0 || unanswered > 0 || got < sent || got > sentAtEnd:
		f.Outcome = NotMet
	case sent == answered, sentAtEnd == answeredAtEnd && sentAtEnd == got:
	case checked.Took <= every: // none was under way
		f.Outcome = NotMet
	case sentAtEnd > got:
		f.Outcome = NotMeasured
		f.Detail += fmt.Sprintf("; the check took longer than %v, so that some are under way at all times, also when connections close", every)
	}
	return f
}

// judgeBeats says whether there were as many heartbeats as there were to be, in sum: which
// connections got them is not counted.
func (r *millionJudge) judgeBeats(w Workload) Finding {
	claim := fmt.Sprintf("as many heartbeats as one each %v for each connection, for %v", w.Interval, w.Hold)
	end := r.phase(phaseAgain)
	if end == nil || r.Result == nil {
		return notMeasured(claim)
	}
	sent, _ := r.beats(&end.End.Counts, 0)
	due := r.held() * int64(w.due())
	return Finding{claim, outcome(sent >= due), fmt.Sprintf("%s sent, at least %s were due", thousands(float64(sent)), thousands(float64(due)))}
}

// asked is how many lines the roll calls have sent.
func asked(r *load.Result) (n int64) {
	for _, c := range r.Verifications {
		n += c.Asked
	}
	return n
}

func (r *millionJudge) judgeBroadcast() Finding {
	const claim = "no broadcast lost, and none twice"
	if r.Caller == nil {
		return Finding{claim, NotMeasured, "nobody has asked for one"}
	}
	if r.Result == nil || r.Result.Broadcast == nil {
		return notMeasured(claim)
	}
	b, dropped := r.Result.Broadcast, r.dropped()
	f := Finding{claim, outcome(b.Heard == r.held() && b.Again == 0 && dropped == 0 && r.Caller.Error == ""),
		fmt.Sprintf("%s of %s connections have it, %d had it again; from the first to the last it took %v",
			thousands(float64(b.Heard)), thousands(float64(r.held())), b.Again, b.Time.Round(time.Millisecond))}
	if dropped > 0 {
		f.Detail += fmt.Sprintf("; the server has dropped %s", thousands(float64(dropped)))
	}
	if r.Caller.Error != "" {
		f.Detail += "; who asked for it: " + r.Caller.Error
	}
	return f
}

// dropped is how many messages the server did not hand to a connection that reads too
// slowly.
func (r *MillionRun) dropped() int64 {
	if len(r.Phases) == 0 {
		return 0
	}
	return r.Phases[len(r.Phases)-1].End.Counts.Dropped - r.Before.Counts.Dropped
}

func (r *MillionRun) judgeEnd() Finding {
	const claim = "a clean end"
	p := r.phase(phaseClose)
	if p == nil || r.Left == nil {
		return notMeasured(claim)
	}
	c := p.End.Counts
	return Finding{claim, outcome(c.Open == 0 && c.Restarts == 0 && c.Refused == r.Before.Counts.Refused),
		fmt.Sprintf("%d connections left, %d refused, %d worker processes started again; both sides have ended in order",
			c.Open, c.Refused-r.Before.Counts.Refused, c.Restarts)}
}

// judgeLeft says, too, whether the finding is strict: the machine's own noise is too much
// of what few connections take, and what others do can't be told from what is left.
func (r *MillionRun) judgeLeft() (f Finding, strict bool) {
	const claim = "sockets, descriptors and memory are back"
	l := r.Left
	if l == nil {
		return notMeasured(claim), r.held() < fewestHeld
	}
	f = Finding{claim, outcome(l.gone()), fmt.Sprintf("more than before, of the whole machine: %d sockets, %d in TIME_WAIT, %d files, %.1f MB of the kernel (%.1f MB at most); after %v",
		max(l.Sockets, 0), max(l.TimeWait, 0), max(l.Files, 0), max(float64(l.Kernel), 0)/1e6, float64(l.Most)/1e6, l.Waited.Round(time.Millisecond))}
	others := r.others()
	if others > noiseTolerance && f.Outcome == NotMet {
		f.Outcome = NotMeasured
		f.Detail += fmt.Sprintf("; something else took %.0f %% of a CPU, and what it holds can't be told from it", others*100)
	}
	return f, others > noiseTolerance || r.held() < fewestHeld
}

// others is how many processors other processes, and the kernel for itself, kept busy
// from before the first connection to after the last.
func (r *MillionRun) others() float64 {
	if len(r.Phases) == 0 {
		return 0
	}
	before, end := &r.Before, &r.Phases[len(r.Phases)-1].End
	took := end.At.Sub(before.At)
	if took <= 0 {
		return 0
	}
	own := end.Server.CPU - before.Server.CPU + end.Load.CPU - before.Load.CPU
	return float64(end.Busy-before.Busy-own) / float64(took)
}
