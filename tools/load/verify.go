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

// This file verifies held connections: each connection sends a line and expects the same line back. Each shard has a
// list of its connections. The pacing of the shard goes through the list, and nudges the next connection when another
// line may be in flight. If the limit is reached, the pacing continues when an answer arrives. Without loops, one
// goroutine goes through all shards.

// lineVerification is the state of one verification, in which each held connection sends a line and expects it back.
type lineVerification struct {
	number  int
	seed    uint64
	lineEnd string // end of the server's lines
	// limit is the maximum number of lines in flight. inFlight includes lines about to be sent.
	limit    int32
	inFlight atomic.Int32
	// shardsLeft counts the shards with connections that have not been asked for a line yet.
	shardsLeft atomic.Int32
	// stopped ends the sending of lines. To be sure that a shard sends no more lines, set stopped, and then acquire and
	// release the shard's lock.
	stopped atomic.Bool
}

type verifyScan struct {
	verification *lineVerification
	next         int               // index in shard.heldConns; only the Scheduler uses next and verification
	finished     *lineVerification // last verification for which all connections of the shard have been asked
}

const maxVerifyLine = 96

// appendUniqueConnLine appends the line that the connection ref sends for the verification. No two open connections
// send the same line.
func (v *lineVerification) appendUniqueConnLine(dst []byte, ref engine.Ref) []byte {
	owner, slot, generation := ref.Location()
	dst = append(dst, "check "...)
	dst = strconv.AppendInt(dst, int64(v.number), 10)
	dst = append(dst, ' ')
	dst = strconv.AppendInt(dst, int64(owner), 10)
	dst = append(dst, '.')
	dst = strconv.AppendUint(dst, uint64(slot), 10)
	dst = append(dst, '.')
	dst = strconv.AppendUint(dst, uint64(generation), 10)
	dst = append(dst, ' ')
	mixed := pacer.RandomAt(pacer.RandomAt(v.seed^uint64(v.number), uint64(owner)), uint64(slot)<<32|uint64(generation))
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], mixed)
	dst = hex.AppendEncode(dst, b[:])
	return append(dst, v.lineEnd...)
}

// maxInFlightPerShard returns the maximum number of lines in flight per shard. It divides v.limit equally among the
// shards that have connections left to verify.
func (v *lineVerification) maxInFlightPerShard() int {
	walking := max(v.shardsLeft.Load(), 1)
	return int((v.limit + walking - 1) / walking)
}

func (v *lineVerification) tryReserveInFlight() bool {
	for {
		n := v.inFlight.Load()
		if n >= v.limit {
			return false
		}
		if v.inFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

func (v *lineVerification) isDone() bool { return v.shardsLeft.Load() == 0 && v.inFlight.Load() == 0 }

func (g *generator) nudgeUnverifiedConns(loopOrAll int, at time.Duration, nudge func(engine.Ref) bool) (nextCallOrNegative time.Duration) {
	r := g.verifying.Load()
	if r == nil {
		return -1
	}
	if loopOrAll >= 0 {
		return g.nudgeUnverifiedConnsOfShard(g.shards[loopOrAll], r, at, nudge)
	}
	next := time.Duration(-1)
	for _, s := range g.shards {
		if d := g.nudgeUnverifiedConnsOfShard(s, r, at, nudge); d >= 0 && (next < 0 || d < next) {
			next = d
		}
	}
	return next
}

// nudgeUnverifiedConnsOfShard makes the next connections of a shard send their verification lines. It stops when too
// many lines are in flight, or after maxNudgesPerPace connections. It returns the time at which it must be called
// again, or a negative time if no further call is necessary.
func (g *generator) nudgeUnverifiedConnsOfShard(s *shard, v *lineVerification, at time.Duration, nudge func(engine.Ref) bool) (nextCallOrNegative time.Duration) {
	w := &s.scan
	if w.verification != v {
		w.verification, w.next = v, 0
	}
	for range maxNudgesPerPace {
		if v.stopped.Load() {
			return -1
		}
		for w.next < len(s.heldConns) && s.heldConns[w.next].IsClosed() {
			w.next++
		}
		if w.next == len(s.heldConns) {
			s.reportShardScanFinishedOnce(v)
			return -1
		}
		ref := s.heldConns[w.next]
		if wait := g.tryReserveVerificationLine(s, v, ref); wait > 0 {
			return at + wait
		}
		if !nudge(ref) {
			g.cancelUnsentReservation(s, ref)
			return at + paceRetryDelay
		}
		if g.shardPerLoop || ref.IsClosed() { // otherwise the nudge waits in the mailbox
			g.cancelUnsentReservation(s, ref)
		}
		w.next++
	}
	return at
}

// reportShardScanFinishedOnce records that every connection of the shard has been asked for its line of the
// verification v. Further calls for v have no effect.
func (s *shard) reportShardScanFinishedOnce(v *lineVerification) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.scan.finished != v {
		s.scan.finished = v
		v.shardsLeft.Add(-1)
	}
}

func (g *generator) shardByRef(ref engine.Ref) *shard {
	owner, slot, _ := ref.Location()
	if g.shardPerLoop {
		return g.shards[owner]
	}
	return g.shards[int(slot)%len(g.shards)]
}

// tryReserveVerificationLine permits a connection to send its line, and returns 0. If too many lines are in flight, it
// returns the delay before the next try instead.
func (g *generator) tryReserveVerificationLine(s *shard, v *lineVerification, ref engine.Ref) (zeroOrRetryAfter time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case v.stopped.Load():
		return paceInterval
	case g.shardPerLoop && len(s.pendingLines) >= v.maxInFlightPerShard():
		return paceInterval // earlier if one of the shard's connections answers
	case !v.tryReserveInFlight():
		return paceIntervalNoLoops
	}
	if s.pendingLines == nil {
		s.pendingLines = make(map[engine.Ref]pendingLine)
	}
	s.pendingLines[ref] = pendingLine{verification: v}
	return 0
}

func (g *generator) cancelUnsentReservation(s *shard, ref engine.Ref) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a, ok := s.pendingLines[ref]; ok && a.sentAt == 0 {
		s.removePendingLineLocked(ref)
	}
}

func (g *generator) sendVerificationLineIfReserved(c *engine.Conn, h *heldConn) {
	s, ref, now := h.shard, c.Ref(), g.now()
	s.mu.Lock()
	defer s.mu.Unlock()
	a, ok := s.pendingLines[ref]
	if !ok || a.sentAt > 0 {
		return // stopped, or the nudge only woke the loop
	}
	line := a.verification.appendUniqueConnLine(s.lineBuf[:0], ref)
	a.sentAt = max(now, 1)
	s.pendingLines[ref] = a
	s.totals.run[nSent]++
	s.totals.run[nBytesSent] += int64(len(line))
	if g.script.frames != nil {
		_, slot, _ := ref.Location()
		line = g.script.frames.appendMaskedTextFrame(s.frameBuf[:0], line, slot, uint64(a.verification.number))
	}
	_, _ = c.Write(line) // Closed gets the error
}

func (g *generator) startVerifyingHeldConns(verificationNumber int) *lineVerification {
	r := &lineVerification{number: verificationNumber, seed: deriveSeed(g.cfg.Seed, seedVerify), lineEnd: g.lineEnd, limit: int32(g.cfg.Check)}
	r.shardsLeft.Store(int32(len(g.shards)))
	g.verifying.Store(r)
	for _, s := range g.shards { // nudging any connection of a shard wakes the shard's loop
		if !slices.ContainsFunc(s.heldConns, func(ref engine.Ref) bool { return ref.Nudge() != engine.ErrClosed }) {
			s.reportShardScanFinishedOnce(r)
		}
	}
	return r
}

func (g *generator) stopAndRecordUnanswered(v *lineVerification) (unanswered int64) {
	v.stopped.Store(true)
	for _, s := range g.shards {
		s.mu.Lock()
		for _, a := range s.pendingLines {
			v.inFlight.Add(-1)
			if a.sentAt > 0 {
				unanswered++
				s.totals.run[nDropped]++
			}
		}
		s.pendingLines = nil
		s.mu.Unlock()
	}
	g.faults.recordUnansweredVerificationLines(unanswered)
	return unanswered
}

func (r *loadRun) verifyHeldConnsRecordingFaults(ctx context.Context) error {
	if r.cfg.Check == 0 || r.sumTotals().openConns() == 0 {
		return nil
	}
	t := r.generator
	r.emitEventWithSnapshot(Event{Phase: Progress, Interval: r.buildIntervalSinceLast()})
	r.stage = "check"
	r.aggregator.total.outside.reset()
	r.emitEventWithSnapshot(Event{Phase: Checking})
	before, began := r.sumTotals(), t.now()
	v := t.startVerifyingHeldConns(len(r.verifications) + 1)
	err := r.waitEmittingProgress(ctx, waitCondition{
		done:         func(s totals) bool { return v.isDone() },
		stallTimeout: r.cfg.Drain,
		progress:     func(s totals) int64 { return s.run[nSent] + s.run[nAnswered] + s.run[nDropped] },
	})
	v.stopped.Store(true)
	if err != nil && !errors.Is(err, errStalled) {
		flies := func(totals) bool { return v.inFlight.Load() == 0 }
		_ = r.waitEmittingProgress(context.WithoutCancel(ctx), waitCondition{timeout: min(r.cfg.Drain, canceledDrain), done: flies})
	}
	missing := t.stopAndRecordUnanswered(v)
	r.emitEventWithSnapshot(Event{Phase: Progress, Interval: r.buildIntervalSinceLast()})
	s := r.sumTotals()
	found := Verification{
		Number: v.number, InFlight: r.cfg.Check, Open: before.openConns(),
		Asked:   s.run[nSent] - before.run[nSent],
		Checked: s.run[nAnswered] - before.run[nAnswered],
		Wrong:   s.run[nVerifyWrong] - before.run[nVerifyWrong], Lost: s.run[nVerifyLost] - before.run[nVerifyLost], Unanswered: missing,
		Time: max(s.lastAnswer-began, 0), Latency: summarizeDistribution(&r.aggregator.total.outside),
	}
	r.verifications = append(r.verifications, found)
	r.emitEventWithSnapshot(Event{Phase: Checked, Verification: &found})
	return ignoreStalled(err)
}

func (r *loadRun) emitHeardOnceIfBroadcastComplete(s totals) {
	if r.heardSent || r.cfg.Broadcast == "" || r.stage == "connect" || s.openConns() == 0 || s.openConnsHeardBroadcast() < s.openConns() {
		return
	}
	r.heardSent = true
	r.emitEventWithSnapshot(Event{Phase: Progress, Interval: r.buildIntervalSinceLast()}) // collects the times of receipt
	r.emitEventWithSnapshot(Event{Phase: Heard, Broadcast: r.buildBroadcastResultOrNil(s)})
}

func (r *loadRun) buildBroadcastResultOrNil(s totals) *Broadcast {
	if r.cfg.Broadcast == "" {
		return nil
	}
	b := &Broadcast{Open: s.openConns(), Heard: s.openConnsHeardBroadcast(), Again: s.run[nHeardAgain], After: summarizeDistribution(&r.aggregator.total.heard)}
	if s.run[nHeard] > 0 {
		b.Time = max(s.lastHeard-time.Duration(r.generator.firstHeard.Load()), 0)
	}
	return b
}
