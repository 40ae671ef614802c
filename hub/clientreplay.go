package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// clientReplay sends a client the messages that it has missed, and then adds it to the groups of
// its topics. It works in steps, each of bounded work and output, which read the replay buffer
// under its read lock. The last step holds the lock until the client has joined, so that no message
// is missed or repeated.
//
// The first step runs immediately and is small: it sends everything or nothing. A goroutine runs
// the others no faster than the client reads. A client without a turn has nothing prepared, so
// waiting takes no memory. Until the goroutine ends, within Replay.Timeout, the client's requests
// wait, a drain waits for it, and it cannot migrate to another process.
type clientReplay struct {
	hub          *Hub
	client       *client
	ref          tcp.Ref
	topics       []*topic // of one or more subscriptions
	pos          Position // everything up to it has been sent; without an epoch, nothing is missed
	unissued     bool     // pos has never been issued
	lastValues   []byte   // encoded newest values, sent before missed messages
	topicsByName map[string]*topic
	patterns     []topicPattern

	pending replayStep // prepared by the last step and not sent yet

	owners    []owner
	queueSlot *fairLimit // early or queue of replayLimiters, if held
	hasTurn   bool
	// closeClient closes the connection and asks the client to try again.
	closeClient func(*tcp.Conn, error)
}

// topicPattern is a pattern subscription, compiled.
type topicPattern struct {
	*topic
	glob
}

// replayStep is the output of a step.
type replayStep struct {
	buf            []byte
	replayed, gaps int64
	unissued       int64
	delivery       deliveryCounts
	startPos       Position // position before the step
	startUnissued  bool
}

// stepLimits bounds a step in work (see tryUnits) and output bytes, which the last message may
// exceed unless allOrNothing.
type stepLimits struct {
	work, bytes  int
	allOrNothing bool // a step that reaches a limit is discarded
}

var (
	firstStepLimits = stepLimits{work: 4_000, bytes: 16 << 10, allOrNothing: true}
	laterStepLimits = stepLimits{work: 40_000, bytes: 64 << 10}
)

const (
	// messageLookupUnits is the work of examining one message.
	messageLookupUnits = 8
	// waitersPerTurn is the number of clients that may wait for each turn.
	waitersPerTurn = 64
	// stallTimeout is how long a client with a turn may take to accept a step before it loses the
	// turn.
	stallTimeout = time.Second
	// A client that has seen more than this node comes from another node and waits. After
	// unknownPositionDelay the stream is asked whether the position exists, and again until it
	// answers. An answer is cached for streamNewestTTL.
	unknownPositionDelay = 2 * time.Second
	streamNewestTTL      = time.Second
)

var (
	errTooManyReplays = errors.New("too many clients are sent what they have missed; try again")
	errReplayTimeout  = errors.New("the client was not sent all that it has missed in time; it is to go on from the last id")
)

// initPosition returns the position from which the client will get all messages; ok is false if it
// is unknown. A client without a position starts now, with the last values of its topics if these
// are kept.
func (s *clientReplay) initPosition() (at Position, ok bool) {
	r := s.hub.Replay
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s.pos.Epoch != "" {
		return s.pos, true
	}
	if !r.ready {
		return Position{}, false
	}
	s.pos = r.newestPos
	for _, t := range s.topics {
		if message, kept := s.hub.lastValues.get(t.name); kept && t.kind == Topic {
			s.lastValues = s.client.format.appendMessage(s.lastValues, t, t.name, []byte(message), "")
		}
	}
	return s.pos, true
}

// start runs the first step and, if messages are left, starts a goroutine for the others. It must
// be called by the handler of c.
func (s *clientReplay) start(c *tcp.Conn) error {
	s.indexTopics()
	if s.prepareStep(firstStepLimits) {
		return nil
	}
	s.discardPending()
	r := s.hub.Replay
	s.owners, s.queueSlot = clientOwners(s.client, s.ref), &r.initLimiters().queue
	if !r.hasReached(s.pos) {
		s.queueSlot = &r.initLimiters().early
	}
	if !s.queueSlot.tryAcquire(s.owners) {
		r.refused.Add(1)
		return errTooManyReplays
	}
	r.replays.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout())
	s.client.ensureExtra().stopReplay = cancel
	c.Retain()
	if s.client.format == formatWebSocket {
		c.Pause() // requests wait
	}
	go s.runInBackground(ctx, cancel)
	return nil
}

func (s *clientReplay) runInBackground(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	closeReason := s.runSteps(ctx)
	s.releaseTurnAndSlot()
	err := s.ref.Do(func(c *tcp.Conn) {
		s.client.finishReplay()
		if closeReason != nil {
			s.closeClient(c, closeReason)
		}
		c.Resume()
		c.Release()
	})
	if errors.Is(err, tcp.ErrFull) {
		_ = s.ref.Close() // closing succeeds even if the mailbox is full
	}
}

// runSteps runs the remaining steps.
func (s *clientReplay) runSteps(ctx context.Context) error {
	for {
		if err := s.sendPending(ctx); err != nil {
			return err
		}
		if err := s.waitForPosition(ctx); err != nil {
			return err
		}
		if !s.unissued { // otherwise there is nothing to send
			if err := s.acquireTurn(ctx); err != nil {
				return err
			}
		}
		if s.prepareNextStep() {
			return nil
		}
	}
}

// prepareNextStep is prepareStep for the background goroutine. Steps with patterns may cost much
// and run one at a time.
func (s *clientReplay) prepareNextStep() (joined bool) {
	if len(s.patterns) > 0 {
		r := s.hub.Replay
		r.patternStepMu.Lock()
		defer r.patternStepMu.Unlock()
	}
	return s.prepareStep(laterStepLimits)
}

// sendPending sends the pending step at the client's pace. If the client stalls, it loses its turn,
// the step is discarded, and the next one waits until the client has read.
func (s *clientReplay) sendPending(ctx context.Context) error {
	if len(s.pending.buf) == 0 {
		return nil
	}
	sendCtx, cancel := context.WithTimeout(ctx, stallTimeout)
	err := s.ref.SendWait(sendCtx, s.pending.buf)
	cancel()
	switch {
	case err == nil:
		s.commitPending()
		return nil
	case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
		return s.replayError(ctx, err)
	}
	s.discardPending()
	s.releaseTurn()
	s.hub.Replay.stalled.Add(1)
	return s.waitUntilRead(ctx)
}

// commitPending counts the pending step as sent.
func (s *clientReplay) commitPending() {
	r := s.hub.Replay
	r.replayed.Add(s.pending.replayed)
	r.gaps.Add(s.pending.gaps)
	r.unissued.Add(s.pending.unissued)
	if s.pending.delivery.sent > 0 {
		s.hub.countDelivery(s.pending.delivery)
	}
	s.lastValues = nil
	if buf := s.pending.buf[:0]; cap(buf) <= 2*laterStepLimits.bytes {
		s.pending = replayStep{buf: buf}
	} else {
		s.pending = replayStep{} // don't keep a buffer that a large message has grown
	}
}

// discardPending drops the pending step, which the next one repeats.
func (s *clientReplay) discardPending() {
	if s.pending.startPos != (Position{}) {
		s.pos, s.unissued = s.pending.startPos, s.pending.startUnissued
	}
	s.pending = replayStep{}
}

// Interval between checks whether a client has read.
const minReadPoll, maxReadPoll = 100 * time.Millisecond, 2 * time.Second

// waitUntilRead waits until the client has read most of what it was sent.
func (s *clientReplay) waitUntilRead(ctx context.Context) error {
	pending := make(chan int, 1)
	for wait := minReadPoll; ; wait = min(2*wait, maxReadPoll) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return s.replayError(ctx, ctx.Err())
		}
		switch err := s.ref.Do(func(c *tcp.Conn) { pending <- c.Pending() }); {
		case errors.Is(err, tcp.ErrFull):
			continue
		case err != nil:
			return s.replayError(ctx, err)
		}
		select {
		case n := <-pending:
			if n <= laterStepLimits.bytes {
				return nil
			}
		case <-ctx.Done():
			return s.replayError(ctx, ctx.Err())
		}
	}
}

// acquireTurn waits for a turn, unless the client has one.
func (s *clientReplay) acquireTurn(ctx context.Context) error {
	r := s.hub.Replay
	limiters := r.initLimiters()
	if s.queueSlot == &limiters.early {
		s.releaseTurnAndSlot()
		if !limiters.queue.tryAcquire(s.owners) {
			r.refused.Add(1)
			return errTooManyReplays
		}
		s.queueSlot = &limiters.queue
	}
	if !s.hasTurn {
		if err := limiters.turns.acquire(ctx, s.owners); err != nil {
			return s.replayError(ctx, err)
		}
		s.hasTurn = true
	}
	return nil
}

func (s *clientReplay) releaseTurn() {
	if s.hasTurn {
		s.hasTurn = false
		s.hub.Replay.initLimiters().turns.release(s.owners)
	}
}

func (s *clientReplay) releaseTurnAndSlot() {
	s.releaseTurn()
	if s.queueSlot != nil {
		s.queueSlot.release(s.owners)
		s.queueSlot = nil
	}
}

func (s *clientReplay) replayError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.hub.Replay.refused.Add(1)
		return errReplayTimeout
	}
	return fmt.Errorf("hub: no room for what the client has missed: %w", err)
}

// replayLimiters bounds concurrent replays. A replay waits in early until the node has reached its
// position, so that positions that were never issued don't block others, and then in queue, where
// replays take turns.
type replayLimiters struct {
	once                sync.Once
	early, queue, turns fairLimit
}

// initLimiters returns the limiters, configured on the first call.
func (r *Replay) initLimiters() *replayLimiters {
	limiters := &r.limiters
	limiters.once.Do(func() {
		maxReplays, maxEach := r.maxReplays(), r.maxReplaysEach()
		limiters.turns.max, limiters.turns.maxEach = maxReplays, maxEach
		limiters.queue.max, limiters.queue.maxEach = (waitersPerTurn+1)*maxReplays, (waitersPerTurn+1)*maxEach
		limiters.queue.keepSpare = maxEach < maxReplays
		limiters.early.max, limiters.early.maxEach, limiters.early.keepSpare = limiters.queue.max, limiters.queue.maxEach, limiters.queue.keepSpare
	})
	return limiters
}

// waitForPosition waits until the node has reached the client's position, or sets unissued if no
// node has.
func (s *clientReplay) waitForPosition(ctx context.Context) error {
	queryTicker := time.NewTicker(unknownPositionDelay)
	defer queryTicker.Stop()
	for {
		advanced := s.hub.Replay.advancedUnlessReached(s.pos)
		if advanced == nil || s.unissued {
			return nil
		}
		s.releaseTurn()
		select {
		case <-advanced:
		case <-queryTicker.C:
			newest, err := s.hub.streamNewestPosition(ctx)
			s.unissued = err == nil && newest.Epoch == s.pos.Epoch && newest.Seq < s.pos.Seq && s.hub.Replay.hasReached(newest)
		case <-ctx.Done():
			return s.replayError(ctx, ctx.Err())
		}
	}
}

// advancedUnlessReached returns nil if the node has reached pos, otherwise a channel that is closed
// with the next message.
func (r *Replay) advancedUnlessReached(pos Position) (advanced <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reachedLocked(pos) {
		return nil
	}
	if r.advanced == nil {
		r.advanced = make(chan struct{})
	}
	return r.advanced
}

// hasReached reports whether the node has all messages up to pos.
func (r *Replay) hasReached(pos Position) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reachedLocked(pos)
}

// streamNewestPosition returns Cluster.Newest, cached for streamNewestTTL.
func (h *Hub) streamNewestPosition(ctx context.Context) (Position, error) {
	r := h.Replay
	r.newestMu.Lock()
	defer r.newestMu.Unlock()
	if time.Since(r.streamNewestAt) < streamNewestTTL {
		return r.streamNewest, r.streamNewestErr
	}
	r.streamNewest, r.streamNewestErr = h.Cluster.Newest(ctx)
	r.streamNewestAt = time.Now()
	return r.streamNewest, r.streamNewestErr
}

// reachedLocked is hasReached with mu held. Positions of another stream count as reached.
func (m *replayBuffer) reachedLocked(pos Position) bool {
	return m.ready && (pos.Epoch != m.newestPos.Epoch || pos.Seq <= m.newestPos.Seq)
}

func (s *clientReplay) indexTopics() {
	s.topicsByName = make(map[string]*topic)
	for _, t := range s.topics {
		if t.kind == Pattern {
			s.patterns = append(s.patterns, topicPattern{t, compileGlob(t.name)})
		} else {
			s.topicsByName[t.name] = t
		}
	}
}

// prepareStep prepares the next step. It reports whether everything missing has been sent and the
// client has joined its groups.
func (s *clientReplay) prepareStep(limits stepLimits) (joined bool) {
	r := s.hub.Replay
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s.pos.Epoch == "" {
		if !r.ready {
			return s.sendAndJoin()
		}
		s.pos = r.newestPos
	}
	if !r.reachedLocked(s.pos) && !s.unissued {
		return false
	}
	s.pending.startPos, s.pending.startUnissued = s.pos, s.unissued
	s.pending.buf = append(s.pending.buf, s.lastValues...)
	s.skipDropped()
	work := 0
	for _, m := range r.messagesAfter(s.pos.Seq) {
		if work >= limits.work || len(s.pending.buf) >= limits.bytes || limits.allOrNothing && len(s.pending.buf)+len(m.data) > limits.bytes {
			return false
		}
		s.pos.Seq = m.seq
		work += s.appendMatching(&m)
	}
	s.pos = r.newestPos
	s.pending.buf = s.client.format.appendPosition(s.pending.buf, s.pos)
	return s.sendAndJoin()
}

// appendMatching encodes m for each subscription that it matches and returns the work done.
func (s *clientReplay) appendMatching(m *keptMessage) (work int) {
	work = messageLookupUnits
	if t := s.topicsByName[m.topic]; t != nil {
		s.appendMessage(t, m)
	}
	for i := range s.patterns {
		g := &s.patterns[i]
		if work += g.maxMatchUnits(len(m.topic)); g.matches(m.topic) {
			s.appendMessage(g.topic, m)
		}
	}
	return work
}

func (s *clientReplay) appendMessage(t *topic, m *keptMessage) {
	before := len(s.pending.buf)
	s.pending.buf = s.client.format.appendMessage(s.pending.buf, t, m.topic, m.data, s.pos.String())
	s.pending.replayed++
	s.pending.delivery.add(deliveryCounts{sent: 1, bytes: len(s.pending.buf) - before})
}

// skipDropped sends a gap if messages that the client lacks are no longer available, and continues
// after them.
func (s *clientReplay) skipDropped() {
	r := s.hub.Replay
	to := s.pos
	switch {
	case s.unissued:
		to = r.newestPos
		s.pending.unissued++
	case s.pos.Epoch != r.newestPos.Epoch:
		to = Position{r.newestPos.Epoch, r.firstSeq - 1}
	default:
		for _, t := range s.topics {
			if r.mayLack(t, s.pos.Seq) {
				to.Seq = r.firstSeq - 1
			}
		}
	}
	if to != s.pos {
		s.pos, s.unissued = to, false
		s.pending.buf = s.client.format.appendGap(s.pending.buf, s.topics, to)
		s.pending.gaps++
	}
}

// sendAndJoin sends the pending step and adds the client to its groups. It reports false if there
// is no space for the step.
func (s *clientReplay) sendAndJoin() bool {
	if len(s.pending.buf) > 0 {
		if err := s.ref.Send(s.pending.buf); err != nil && !errors.Is(err, tcp.ErrClosed) {
			return false
		}
	}
	s.commitPending()
	for _, t := range s.topics {
		t.groupFor(s.client.format).Add(s.ref)
	}
	return true
}
