package load

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// This file is a verification of connections that are held: each is to send a line, and
// gets it back. Each shard has a list of its own. Its loop goes through that in Pace: it
// asks the next connection when there is room for one more line in flight, and goes on in
// the turn in which an answer has made some. Without loops one goroutine goes through all
// shards, and asks by mail.

// verification is one for all loops.
type verification struct {
	number int
	seed   uint64
	end    string // of a line
	// most is how many lines may be in flight, inFlight how many are, or are
	// about to be.
	most     int32
	inFlight atomic.Int32
	// walking counts the shards that have connections which were not asked.
	walking atomic.Int32
	// stopped says that no more are asked. Once a shard's lock has been held
	// after that, none of it is.
	stopped atomic.Bool
}

// walk is how far a verification has come in a shard.
type walk struct {
	of   *verification
	next int           // the place of the next connection in shard.held; who calls Pace owns both
	over *verification // the last one that is through
}

// verifyLine is room for any line of a verification.
const verifyLine = 96

// line appends what a connection is to send. It has the connection's place, which no
// other one has at that time, and a number made from that and the seed.
func (r *verification) line(to []byte, ref engine.Ref) []byte {
	owner, slot, generation := ref.Location()
	to = append(to, "check "...)
	to = strconv.AppendInt(to, int64(r.number), 10)
	to = append(to, ' ')
	to = strconv.AppendInt(to, int64(owner), 10)
	to = append(to, '.')
	to = strconv.AppendUint(to, uint64(slot), 10)
	to = append(to, '.')
	to = strconv.AppendUint(to, uint64(generation), 10)
	to = append(to, ' ')
	mixed := pacer.Random(pacer.Random(r.seed^uint64(r.number), uint64(owner)), uint64(slot)<<32|uint64(generation))
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], mixed)
	to = hex.AppendEncode(to, b[:])
	return append(to, r.end...)
}

// share is how many lines a shard may have in flight, so that all get on.
func (r *verification) share() int {
	walking := max(r.walking.Load(), 1)
	return int((r.most + walking - 1) / walking)
}

// claim takes a place in flight, if there is one.
func (r *verification) claim() bool {
	for {
		n := r.inFlight.Load()
		if n >= r.most {
			return false
		}
		if r.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// done says that every connection has been asked, and none has to answer.
func (r *verification) done() bool { return r.walking.Load() == 0 && r.inFlight.Load() == 0 }

func (t *traffic) paceVerify(loop int, at time.Duration, touch func(engine.Ref) bool) time.Duration {
	r := t.verifying.Load()
	if r == nil {
		return -1
	}
	if loop >= 0 {
		return t.walk(t.shards[loop], r, at, touch)
	}
	next := time.Duration(-1)
	for _, s := range t.shards {
		if d := t.walk(s, r, at, touch); d >= 0 && (next < 0 || d < next) {
			next = d
		}
	}
	return next
}

// walk asks connections of a shard, and says when it is to be called again: -1 when it is
// through.
func (t *traffic) walk(s *shard, r *verification, at time.Duration, touch func(engine.Ref) bool) time.Duration {
	w := &s.walk
	if w.of != r {
		w.of, w.next = r, 0
	}
	for range paceBatch {
		if r.stopped.Load() {
			return -1
		}
		for w.next < len(s.held) && s.held[w.next].IsClosed() {
			w.next++
		}
		if w.next == len(s.held) {
			s.endWalk(r)
			return -1
		}
		ref := s.held[w.next]
		if wait := t.reserve(s, r, ref); wait > 0 {
			return at + wait
		}
		if !touch(ref) {
			t.cancel(s, ref)
			return at + paceAgain
		}
		if t.looped || ref.IsClosed() { // otherwise it has mail
			t.cancel(s, ref)
		}
		w.next++
	}
	return at
}

// endWalk says once that a shard is through.
func (s *shard) endWalk(r *verification) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.walk.over != r {
		s.walk.over = r
		r.walking.Add(-1)
	}
}

// shardNamed finds the shard of a connection by its Ref.
func (t *traffic) shardNamed(ref engine.Ref) *shard {
	owner, slot, _ := ref.Location()
	if t.looped {
		return t.shards[owner]
	}
	return t.shards[int(slot)%len(t.shards)]
}

// reserve gives a connection a place in flight, or says when to try again.
func (t *traffic) reserve(s *shard, r *verification, ref engine.Ref) (wait time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case r.stopped.Load():
		return paceEvery
	case t.looped && len(s.asked) >= r.share():
		return paceEvery // or when one of its own has its answer
	case !r.claim():
		return paceOther
	}
	if s.asked == nil {
		s.asked = make(map[engine.Ref]asked)
	}
	s.asked[ref] = asked{of: r}
	return 0
}

// cancel takes a connection's place back, unless it has sent its line.
func (t *traffic) cancel(s *shard, ref engine.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.asked[ref]; ok && a.sent == 0 {
		s.remove(ref)
	}
}

func (t *traffic) sendLine(c *engine.Conn, h *held) {
	s, ref, now := h.shard, c.Ref(), t.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.asked[ref]
	if !ok || a.sent > 0 {
		return // it is too late, or mail that was to wake its loop
	}
	line := a.of.line(s.room[:0], ref)
	a.sent = max(now, 1)
	s.asked[ref] = a
	s.sum.run[nSent]++
	s.sum.run[nBytesSent] += int64(len(line))
	if t.script.frames != nil {
		_, slot, _ := ref.Location()
		line = t.script.frames.append(s.frame[:0], line, slot, uint64(a.of.number))
	}
	_, _ = c.Write(line) // an error ends the connection, which Closed gets
}

func (t *traffic) beginVerify(number int) *verification {
	r := &verification{number: number, seed: seedOf(t.cfg.Seed, seedVerify), end: t.lineEnd, most: int32(t.cfg.Check)}
	r.walking.Store(int32(len(t.shards)))
	t.verifying.Store(r)
	for _, s := range t.shards { // mail to any of its connections wakes a loop
		if !slices.ContainsFunc(s.held, func(ref engine.Ref) bool { return ref.Nudge() != engine.ErrClosed }) {
			s.endWalk(r)
		}
	}
	return r
}

// giveUp ends a verification, and says how many lines are missing.
func (t *traffic) giveUp(r *verification) (missing int64) {
	r.stopped.Store(true)
	for _, s := range t.shards {
		s.mu.Lock()
		for _, a := range s.asked {
			r.inFlight.Add(-1)
			if a.sent > 0 {
				missing++
				s.sum.run[nDropped]++
			}
		}
		s.asked = nil
		s.mu.Unlock()
	}
	t.faults.unanswered(missing)
	return missing
}

// verify has every connection checked, tells of it, and keeps what came of it.
func (r *run) verify(ctx context.Context) error {
	if r.cfg.Check == 0 || r.sum().open() == 0 {
		return nil
	}
	t := r.traffic
	r.tell(Event{Phase: Progress, Interval: r.interval()})
	r.stage = "check"
	r.aggregator.total.outside.reset()
	r.tell(Event{Phase: Checking})
	before, began := r.sum(), t.now()
	v := t.beginVerify(len(r.verifications) + 1)
	err := r.await(ctx, wait{
		done:  func(s sum) bool { return v.done() },
		stall: r.cfg.Drain,
		moved: func(s sum) int64 { return s.run[nSent] + s.run[nAnswered] + s.run[nDropped] },
	})
	v.stopped.Store(true)
	if err != nil && !errors.Is(err, errStalled) {
		flies := func(sum) bool { return v.inFlight.Load() == 0 }
		_ = r.await(context.WithoutCancel(ctx), wait{most: min(r.cfg.Drain, cancelDrain), done: flies})
	}
	missing := t.giveUp(v)
	r.tell(Event{Phase: Progress, Interval: r.interval()})
	s := r.sum()
	found := Verification{
		Number: v.number, InFlight: r.cfg.Check, Open: before.open(),
		Asked:   s.run[nSent] - before.run[nSent],
		Checked: s.run[nAnswered] - before.run[nAnswered],
		Wrong:   s.run[nVerifyWrong] - before.run[nVerifyWrong], Lost: s.run[nVerifyLost] - before.run[nVerifyLost], Unanswered: missing,
		Time: max(s.lastAnswer-began, 0), Latency: latencyOf(&r.aggregator.total.outside),
	}
	r.verifications = append(r.verifications, found)
	r.tell(Event{Phase: Checked, Verification: &found})
	return unlessStalled(err)
}

// tellBroadcast sends Heard once, when all connections have had the broadcast.
func (r *run) tellBroadcast(s sum) {
	if r.allHeard || r.cfg.Broadcast == "" || r.stage == "connect" || s.open() == 0 || s.heardOpen() < s.open() {
		return
	}
	r.allHeard = true
	r.tell(Event{Phase: Progress, Interval: r.interval()}) // so that its times are known
	r.tell(Event{Phase: Heard, Broadcast: r.broadcast(s)})
}

// broadcast is how far the broadcast had come, nil where there is none. Its times are
// as of the last interval.
func (r *run) broadcast(s sum) *Broadcast {
	if r.cfg.Broadcast == "" {
		return nil
	}
	b := &Broadcast{Open: s.open(), Heard: s.heardOpen(), Again: s.run[nHeardAgain], After: latencyOf(&r.aggregator.total.heard)}
	if s.run[nHeard] > 0 {
		b.Time = max(s.lastHeard-time.Duration(r.traffic.firstHeard.Load()), 0)
	}
	return b
}
