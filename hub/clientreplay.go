package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// clientReplay is a client that is sent what it has missed, and then joins those who get what is
// published. It is sent that in steps, each from the memory, with its lock for reading; the last one
// holds the lock until the client has joined. A step is bounded in its work and in what it makes. The first
// step is made at once, and is small: it sends all that is missing, or nothing. If something is left,
// a goroutine makes the others, and sends no faster than the client reads. A client
// that has no turn has nothing made for it, so waiting takes no memory. Until the goroutine ends, the
// client's requests wait, and it is retained, so that a drain waits for it, and is not saved for
// another process. It ends within Replay.Timeout.
type clientReplay struct {
	hub          *Hub
	client       *client
	ref          tcp.Ref
	topics       []*topic // of one or more subscriptions
	pos          Position // all up to it has been sent; without an epoch, nothing is missed
	unissued     bool     // at has not been issued
	lastValues   []byte   // the newest values, which go before all that is missed
	topicsByName map[string]*topic
	patterns     []topicPattern

	pending replayStep // what the last step has made and nobody has been sent

	owners    []owner
	queueSlot *fairLimit // that it is counted in: early or queue, of replayLimiters
	hasTurn   bool
	// closeClient closes the client: it is to try again.
	closeClient func(*tcp.Conn, error)
}

// topicPattern is a topic of a pattern.
type topicPattern struct {
	*topic
	glob
}

// replayStep is what a step has made.
type replayStep struct {
	buf            []byte
	replayed, gaps int64
	unissued       int64
	delivery       deliveryCounts
	startPos       Position // from where it has begun
	startUnissued  bool
}

// stepLimits bound a step: the units of work, see tryUnits, and the bytes to send, of which the last message may be more
// where one is allowed to be.
type stepLimits struct {
	work, bytes  int
	allOrNothing bool // it is made to the end or not at all
}

var (
	firstStepLimits = stepLimits{work: 4_000, bytes: 16 << 10, allOrNothing: true}
	laterStepLimits = stepLimits{work: 40_000, bytes: 64 << 10}
)

const (
	// messageLookupUnits is the work of looking at one message.
	messageLookupUnits = 8
	// waitersPerTurn is how many clients may wait, for each that is sent something.
	waitersPerTurn = 64
	// A client that does not take a step within stallTimeout gives its turn back.
	stallTimeout = time.Second
	// A client that has seen more than this node comes from another one. It waits; behind unknownPositionDelay it is asked
	// whether there is such a message, and again as long as nobody knows. An answer holds for streamNewestTTL.
	unknownPositionDelay = 2 * time.Second
	streamNewestTTL      = time.Second
)

var (
	errTooManyReplays = errors.New("too many clients are sent what they have missed; try again")
	errReplayTimeout  = errors.New("the client was not sent all that it has missed in time; it is to go on from the last id")
)

// initPosition says from where on the client is going to get all; ok is false if that is not known. The newest
// value of a topic, where these are kept, is what a client begins with that has seen nothing.
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

// start makes the first step, and has a goroutine make the others, for a handler's call for c.
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
		c.Pause() // its requests wait
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
		_ = s.ref.Close() // for which there is more room
	}
}

// runSteps makes the steps that are left.
func (s *clientReplay) runSteps(ctx context.Context) error {
	for {
		if err := s.sendPending(ctx); err != nil {
			return err
		}
		if err := s.waitForPosition(ctx); err != nil {
			return err
		}
		if !s.unissued { // for which there is nothing to be sent
			if err := s.acquireTurn(ctx); err != nil {
				return err
			}
		}
		if s.prepareNextStep() {
			return nil
		}
	}
}

// prepareNextStep is step for a goroutine. Steps with patterns, which may cost much, are made one at a time.
func (s *clientReplay) prepareNextStep() (joined bool) {
	if len(s.patterns) > 0 {
		r := s.hub.Replay
		r.patternStepMu.Lock()
		defer r.patternStepMu.Unlock()
	}
	return s.prepareStep(laterStepLimits)
}

// sendPending sends what the last step has made, as fast as the client reads. It ends a turn in which the client doesn't:
// then the step is undone, and the next one waits until the client has read.
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

// commitPending counts what the last step has made, which the client is sent.
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
		s.pending = replayStep{} // a large message has made it grow
	}
}

// discardPending drops what the last step has made. The next one makes it again.
func (s *clientReplay) discardPending() {
	if s.pending.startPos != (Position{}) {
		s.pos, s.unissued = s.pending.startPos, s.pending.startUnissued
	}
	s.pending = replayStep{}
}

// The times between two looks at whether a client has read.
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

// acquireTurn waits for a turn, unless it has one.
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

// releaseTurnAndSlot gives the turn and the place back.
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

// replayLimiters bound the resumptions. Each has a place in early until the node has come to where it is, so that
// ids that were not issued hold up nobody else, then in queue, and there takes turns.
type replayLimiters struct {
	once                sync.Once
	early, queue, turns fairLimit
}

// initLimiters returns the limits, which it makes of the fields first.
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

// waitForPosition waits until the node has come to where the client is. Where nobody has been, the client is astray.
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

// advancedUnlessReached gives a channel that is closed with the next message, if the node has not come to a position yet.
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

// hasReached says whether a position is no news.
func (r *Replay) hasReached(pos Position) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reachedLocked(pos)
}

// streamNewestPosition is Cluster.Newest, of which one asks for all.
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

// reachedLocked says whether a client can go on behind a position. One of another stream is not waited for.
func (m *replayBuffer) reachedLocked(pos Position) bool {
	return m.ready && (pos.Epoch != m.newestPos.Epoch || pos.Seq <= m.newestPos.Seq)
}

// indexTopics prepares for finding the topics of a message.
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

// prepareStep makes what comes next, within limits. It reports whether it has sent that, as all that is missing, and
// the client has joined.
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

// appendMatching makes what a message is for the client. It returns the work.
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

// skipDropped tells the client of what it lacks that is gone, and goes on behind that.
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

// sendAndJoin has the client get what is published, if there is room for what is to come before.
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
