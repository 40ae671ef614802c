package load

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/pacer"
)

// This file is a verification of connections that are held: each is to send a line, and
// gets it back. Nobody has a list of them. Each loop walks through its own, in Pace:
// it asks the next connection when there is room for one more line in flight, and
// goes on in the turn in which an answer has made some. Without loops one goroutine
// walks through all, and asks by mail.

// verification is one for all loops.
type verification struct {
	number int
	seed   uint64
	end    string // of a line
	// most is how many lines may be in flight, flying how many are, or are
	// about to be.
	most   int32
	flying atomic.Int32
	// walking counts the walks that have not come to their end.
	walking atomic.Int32
	// stopped says that no more are asked. Once a shard's lock has been held
	// after that, none of it is.
	stopped atomic.Bool
}

// walk is how far a loop has come. It belongs to who calls Pace.
type walk struct {
	of   *verification
	slot uint32 // the next one to look at
	over bool
	_    [48]byte // keeps the next walk off this line
}

// verifyLine is room for any line of a verification.
const verifyLine = 96

// line appends what a connection is to send. It has the connection's place, which no
// other one has at that time, and a number made from that and the seed.
func (r *verification) line(to []byte, ref engine.Ref) []byte {
	owner, slot, generation := ref.Slot()
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

// share is how many lines a walk may have in flight, so that all get on.
func (r *verification) share() int {
	walking := max(r.walking.Load(), 1)
	return int((r.most + walking - 1) / walking)
}

// claim takes a place in flight, if there is one.
func (r *verification) claim() bool {
	for {
		n := r.flying.Load()
		if n >= r.most {
			return false
		}
		if r.flying.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// done says that every connection has been asked, and none has to answer.
func (r *verification) done() bool { return r.walking.Load() == 0 && r.flying.Load() == 0 }

func (t *traffic) paceVerify(loop int, at time.Duration, touch func(engine.Ref) bool) time.Duration {
	r := t.verifying.Load()
	if r == nil {
		return -1
	}
	w := &t.walks[max(loop, 0)]
	if w.of != r {
		*w = walk{of: r}
	}
	for range paceBatch {
		if w.over || r.stopped.Load() {
			return -1
		}
		ref, next, ok := t.lister.Next(loop, w.slot)
		if !ok {
			w.over = true
			r.walking.Add(-1)
			return -1
		}
		s := t.shardNamed(ref)
		if wait := t.reserve(s, r, ref); wait > 0 {
			return at + wait
		}
		if !touch(ref) {
			t.cancel(s, ref)
			return at + paceAgain
		}
		if t.looped || ref.Closed() { // otherwise it has mail
			t.cancel(s, ref)
		}
		w.slot = next
	}
	return at
}

// shardNamed finds the shard of a connection by its Ref.
func (t *traffic) shardNamed(ref engine.Ref) *shard {
	owner, slot, _ := ref.Slot()
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
	if !ok {
		return // it is too late
	}
	line := a.of.line(s.room[:0], ref)
	a.sent = max(now, 1)
	s.asked[ref] = a
	s.sum.run[nSent]++
	s.sum.run[nBytesSent] += int64(len(line))
	if t.script.frames != nil {
		_, slot, _ := ref.Slot()
		line = t.script.frames.append(s.frame[:0], line, slot, uint64(a.of.number))
	}
	_, _ = c.Write(line) // an error ends the connection, which Closed hears of
}

func (t *traffic) beginVerify(number int) *verification {
	r := &verification{number: number, seed: seedOf(t.cfg.Seed, seedVerify), end: t.lineEnd, most: int32(t.cfg.Check)}
	r.walking.Store(int32(len(t.walks)))
	t.verifying.Store(r)
	t.lister.WakePacers()
	return r
}

// giveUp ends a verification, and says how many lines are missing.
func (t *traffic) giveUp(r *verification) (missing int64) {
	r.stopped.Store(true)
	for _, s := range t.shards {
		s.mu.Lock()
		for _, a := range s.asked {
			r.flying.Add(-1)
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
	roll := t.beginVerify(len(r.verifications) + 1)
	err := r.await(ctx, wait{
		done:  func(s sum) bool { return roll.done() },
		stall: r.cfg.Drain,
		moved: func(s sum) int64 { return s.run[nSent] + s.run[nAnswered] + s.run[nDropped] },
	})
	roll.stopped.Store(true)
	if err != nil && !errors.Is(err, errStalled) {
		flies := func(sum) bool { return roll.flying.Load() == 0 }
		_ = r.await(context.WithoutCancel(ctx), wait{most: min(r.cfg.Drain, cancelDrain), done: flies})
	}
	missing := t.giveUp(roll)
	r.tell(Event{Phase: Progress, Interval: r.interval()})
	s := r.sum()
	call := Verification{
		Number: roll.number, InFlight: r.cfg.Check, Open: before.open(),
		Asked:   s.run[nSent] - before.run[nSent],
		Checked: s.run[nAnswered] - before.run[nAnswered],
		Wrong:   s.run[nVerifyWrong] - before.run[nVerifyWrong], Lost: s.run[nVerifyLost] - before.run[nVerifyLost], Unanswered: missing,
		Time: max(s.lastAnswer-began, 0), Latency: latencyOf(&r.aggregator.total.outside),
	}
	r.verifications = append(r.verifications, call)
	r.tell(Event{Phase: Checked, Verification: &call})
	return unlessStalled(err)
}

// tellBroadcast tells, once, that all connections have had the broadcast.
func (r *run) tellBroadcast(s sum) {
	if r.told || r.cfg.Broadcast == "" || r.stage == "connect" || s.open() == 0 || s.heardOpen() < s.open() {
		return
	}
	r.told = true
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
