package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// clientReplay sends missed messages to a client, and then adds the client to the groups of its topics. A replay
// consists of steps with bounded work and output. Each step reads the replay buffer under the buffer's read lock. The
// last step holds this lock until the client has joined the groups, so that no message is missed or repeated.
//
// The first step is small and runs immediately: it sends either all missed messages or none. If it sends none, a
// goroutine runs the other steps, as fast as the client reads. The goroutine ends within Replay.Timeout. Until then,
// the client's requests wait, a graceful shutdown waits, and the client cannot migrate to another process.
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

	owners      []quotaOwner
	queueSlot   *fairSemaphore // early or queue of replayLimiters, if held
	hasTurn     bool
	closeClient func(*tcp.Conn, error)
}

type topicPattern struct {
	*topic
	glob
}

type replayStep struct {
	buf            []byte
	replayed, gaps int64
	unissued       int64
	delivery       deliveryCounts
	startPos       Position // position before the step
	startUnissued  bool
}

// stepLimits limits the work and the output bytes of a step. The unit of work is described at tryUnits. If allOrNothing
// is false, the step's last message may exceed the limits.
type stepLimits struct {
	work, bytes  int
	allOrNothing bool // a step that reaches a limit is discarded
}

var (
	firstStepLimits = stepLimits{work: 4_000, bytes: 16 << 10, allOrNothing: true}
	laterStepLimits = stepLimits{work: 40_000, bytes: 64 << 10}
)

const (
	messageLookupUnits = 8
	// waitersPerTurn is the number of clients that may wait per permitted concurrent replay.
	waitersPerTurn = 64
	// stallTimeout limits the time in which a client must accept the output of a step. A slower client loses its turn.
	stallTimeout = time.Second
	// A client may send a position that this node has not reached yet, because another node issued it. The client then
	// waits. After unknownPositionDelay, the hub asks the stream whether the position exists, and repeats the query
	// until the stream answers. Answers are cached for streamNewestTTL.
	unknownPositionDelay = 2 * time.Second
	streamNewestTTL      = time.Second
)

var (
	errTooManyReplays = errors.New("too many replays; try again")
	errReplayTimeout  = errors.New("the replay timed out; continue from the last id")
)

// initStartAndEncodeLastValues returns the position after which the client will receive all messages. If the client
// sent no position, the replay starts at the newest message, and the last values of the client's topics are encoded.
// While this node is loading the stream, the newest position is unknown, and known is false.
func (cr *clientReplay) initStartAndEncodeLastValues() (start Position, known bool) {
	r := cr.hub.Replay
	r.mu.RLock()
	defer r.mu.RUnlock()
	if cr.pos.Epoch != "" {
		return cr.pos, true
	}
	if !r.ready {
		return Position{}, false
	}
	cr.pos = r.newestPos
	for _, t := range cr.topics {
		if message, kept := cr.hub.lastValues.getAndMarkRecentlyUsed(t.name); kept && t.kind == Topic {
			cr.lastValues = cr.client.format.appendMessage(cr.lastValues, t, t.name, []byte(message), "")
		}
	}
	return cr.pos, true
}

// replayNowOrInBackground runs the first step. If messages are left, it starts a goroutine for the other steps. Only
// the handler of c may call it.
func (cr *clientReplay) replayNowOrInBackground(c *tcp.Conn) error {
	cr.indexTopicsAndCompilePatterns()
	if cr.runStep(firstStepLimits) {
		return nil
	}
	cr.rollBackPending()
	r := cr.hub.Replay
	cr.owners, cr.queueSlot = userAndAddrQuotaOwners(cr.client, cr.ref), &r.initLimiters().queue
	if !r.hasReached(cr.pos) {
		cr.queueSlot = &r.initLimiters().early
	}
	if !cr.queueSlot.tryAcquire(cr.owners) {
		r.refused.Add(1)
		return errTooManyReplays
	}
	r.replays.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout())
	cr.client.ensureExtra().stopReplay = cancel
	c.Retain()
	if cr.client.format == formatWebSocket {
		c.Pause() // requests wait
	}
	go cr.runStepsThenResumeOrClose(ctx, cancel)
	return nil
}

func (cr *clientReplay) runStepsThenResumeOrClose(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	closeReason := cr.runSteps(ctx)
	cr.releaseTurnAndQueueSlot()
	err := cr.ref.Do(func(c *tcp.Conn) {
		cr.client.markReplayFinished()
		if closeReason != nil {
			cr.closeClient(c, closeReason)
		}
		c.Resume()
		c.Release()
	})
	if errors.Is(err, tcp.ErrFull) {
		_ = cr.ref.Close() // closing succeeds even if the mailbox is full
	}
}

func (cr *clientReplay) runSteps(ctx context.Context) error {
	for {
		if err := cr.sendPendingReleasingTurnIfStalled(ctx); err != nil {
			return err
		}
		if err := cr.waitReachedOrMarkUnissued(ctx); err != nil {
			return err
		}
		if !cr.unissued { // otherwise there is nothing to send
			if err := cr.queueAndAcquireTurn(ctx); err != nil {
				return err
			}
		}
		if cr.runStepSerializingPatterns() {
			return nil
		}
	}
}

// runStepSerializingPatterns calls runStep. If the client has patterns, it first waits until no other replay runs a
// step with patterns, because such steps can be expensive.
func (cr *clientReplay) runStepSerializingPatterns() (joined bool) {
	if len(cr.patterns) > 0 {
		r := cr.hub.Replay
		r.patternStepMu.Lock()
		defer r.patternStepMu.Unlock()
	}
	return cr.runStep(laterStepLimits)
}

// sendPendingReleasingTurnIfStalled sends the pending step as fast as the client reads. If the client stalls, the
// function discards the step, gives up the replay's turn, and waits until the client reads again.
func (cr *clientReplay) sendPendingReleasingTurnIfStalled(ctx context.Context) error {
	if len(cr.pending.buf) == 0 {
		return nil
	}
	sendCtx, cancel := context.WithTimeout(ctx, stallTimeout)
	err := cr.ref.SendWait(sendCtx, cr.pending.buf)
	cancel()
	switch {
	case err == nil:
		cr.countAndClearPending()
		return nil
	case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
		return cr.toTimeoutOrNoSpaceError(ctx, err)
	}
	cr.rollBackPending()
	cr.releaseTurn()
	cr.hub.Replay.stalled.Add(1)
	return cr.waitUntilClientReads(ctx)
}

func (cr *clientReplay) countAndClearPending() {
	r := cr.hub.Replay
	r.replayed.Add(cr.pending.replayed)
	r.gaps.Add(cr.pending.gaps)
	r.unissued.Add(cr.pending.unissued)
	if cr.pending.delivery.sent > 0 {
		cr.hub.countDelivery(cr.pending.delivery)
	}
	cr.lastValues = nil
	if buf := cr.pending.buf[:0]; cap(buf) <= 2*laterStepLimits.bytes {
		cr.pending = replayStep{buf: buf}
	} else {
		cr.pending = replayStep{} // don't keep a buffer that a large message has grown
	}
}

// rollBackPending discards the pending step. The next step will contain the discarded messages.
func (cr *clientReplay) rollBackPending() {
	if cr.pending.startPos != (Position{}) {
		cr.pos, cr.unissued = cr.pending.startPos, cr.pending.startUnissued
	}
	cr.pending = replayStep{}
}

const minReadPoll, maxReadPoll = 100 * time.Millisecond, 2 * time.Second

func (cr *clientReplay) waitUntilClientReads(ctx context.Context) error {
	pending := make(chan int, 1)
	for wait := minReadPoll; ; wait = min(2*wait, maxReadPoll) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return cr.toTimeoutOrNoSpaceError(ctx, ctx.Err())
		}
		switch err := cr.ref.Do(func(c *tcp.Conn) { pending <- c.Pending() }); {
		case errors.Is(err, tcp.ErrFull):
			continue
		case err != nil:
			return cr.toTimeoutOrNoSpaceError(ctx, err)
		}
		select {
		case n := <-pending:
			if n <= laterStepLimits.bytes {
				return nil
			}
		case <-ctx.Done():
			return cr.toTimeoutOrNoSpaceError(ctx, ctx.Err())
		}
	}
}

func (cr *clientReplay) queueAndAcquireTurn(ctx context.Context) error {
	r := cr.hub.Replay
	limiters := r.initLimiters()
	if cr.queueSlot == &limiters.early {
		cr.releaseTurnAndQueueSlot()
		if !limiters.queue.tryAcquire(cr.owners) {
			r.refused.Add(1)
			return errTooManyReplays
		}
		cr.queueSlot = &limiters.queue
	}
	if !cr.hasTurn {
		if err := limiters.turns.acquire(ctx, cr.owners); err != nil {
			return cr.toTimeoutOrNoSpaceError(ctx, err)
		}
		cr.hasTurn = true
	}
	return nil
}

func (cr *clientReplay) releaseTurn() {
	if cr.hasTurn {
		cr.hasTurn = false
		cr.hub.Replay.initLimiters().turns.releaseAndAdmitWaiters(cr.owners)
	}
}

func (cr *clientReplay) releaseTurnAndQueueSlot() {
	cr.releaseTurn()
	if cr.queueSlot != nil {
		cr.queueSlot.releaseAndAdmitWaiters(cr.owners)
		cr.queueSlot = nil
	}
}

func (cr *clientReplay) toTimeoutOrNoSpaceError(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		cr.hub.Replay.refused.Add(1)
		return errReplayTimeout
	}
	return fmt.Errorf("hub: no space for missed messages: %w", err)
}

// replayLimiters contains semaphores that limit concurrent replays. Until the node has reached the client's position, a
// replay holds a slot of early. After that, it holds a slot of queue, and needs a slot of turns to run a step. Clients
// with made-up positions fill only early, so they do not block other clients.
type replayLimiters struct {
	once                sync.Once
	early, queue, turns fairSemaphore
}

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

// waitReachedOrMarkUnissued waits until the node has reached the client's position. If it finds that no node has issued
// the position, it sets cr.unissued and returns.
func (cr *clientReplay) waitReachedOrMarkUnissued(ctx context.Context) error {
	queryTicker := time.NewTicker(unknownPositionDelay)
	defer queryTicker.Stop()
	for {
		nextMessage := cr.hub.Replay.nextMessageChanUnlessReached(cr.pos)
		if nextMessage == nil || cr.unissued {
			return nil
		}
		cr.releaseTurn()
		select {
		case <-nextMessage:
		case <-queryTicker.C:
			newest, err := cr.hub.cachedNewestPosition(ctx)
			cr.unissued = err == nil && newest.Epoch == cr.pos.Epoch && newest.Seq < cr.pos.Seq && cr.hub.Replay.hasReached(newest)
		case <-ctx.Done():
			return cr.toTimeoutOrNoSpaceError(ctx, ctx.Err())
		}
	}
}

// nextMessageChanUnlessReached returns a channel that is closed when the next message arrives. If the node has already
// reached pos, it returns nil.
func (r *Replay) nextMessageChanUnlessReached(pos Position) (nextMessage <-chan struct{}) {
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

func (r *Replay) hasReached(pos Position) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reachedLocked(pos)
}

func (h *Hub) cachedNewestPosition(ctx context.Context) (Position, error) {
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

// reachedLocked implements hasReached. The caller must hold mu. Positions of another stream count as reached.
func (m *replayBuffer) reachedLocked(pos Position) bool {
	return m.ready && (pos.Epoch != m.newestPos.Epoch || pos.Seq <= m.newestPos.Seq)
}

func (cr *clientReplay) indexTopicsAndCompilePatterns() {
	cr.topicsByName = make(map[string]*topic)
	for _, t := range cr.topics {
		if t.kind == Pattern {
			cr.patterns = append(cr.patterns, topicPattern{t, compileGlob(t.name)})
		} else {
			cr.topicsByName[t.name] = t
		}
	}
}

// runStep prepares the next step. If it is the last one, runStep also sends it, adds the client to its groups and
// returns true.
func (cr *clientReplay) runStep(limits stepLimits) (joined bool) {
	r := cr.hub.Replay
	r.mu.RLock()
	defer r.mu.RUnlock()
	if cr.pos.Epoch == "" {
		if !r.ready {
			return cr.trySendPendingAndJoinGroups()
		}
		cr.pos = r.newestPos
	}
	if !r.reachedLocked(cr.pos) && !cr.unissued {
		return false
	}
	cr.pending.startPos, cr.pending.startUnissued = cr.pos, cr.unissued
	cr.pending.buf = append(cr.pending.buf, cr.lastValues...)
	cr.appendGapNoticeAndSkipDropped()
	work := 0
	for _, m := range r.messagesAfter(cr.pos.Seq) {
		if work >= limits.work || len(cr.pending.buf) >= limits.bytes || limits.allOrNothing && len(cr.pending.buf)+len(m.data) > limits.bytes {
			return false
		}
		cr.pos.Seq = m.seq
		work += cr.appendForMatchingSubscriptions(&m)
	}
	cr.pos = r.newestPos
	cr.pending.buf = cr.client.format.appendPositionIfEventStream(cr.pending.buf, cr.pos)
	return cr.trySendPendingAndJoinGroups()
}

func (cr *clientReplay) appendForMatchingSubscriptions(m *keptMessage) (work int) {
	work = messageLookupUnits
	if t := cr.topicsByName[m.topic]; t != nil {
		cr.appendReplayedMessage(t, m)
	}
	for i := range cr.patterns {
		g := &cr.patterns[i]
		if work += g.maxMatchWork(len(m.topic)); g.matches(m.topic) {
			cr.appendReplayedMessage(g.topic, m)
		}
	}
	return work
}

func (cr *clientReplay) appendReplayedMessage(t *topic, m *keptMessage) {
	before := len(cr.pending.buf)
	cr.pending.buf = cr.client.format.appendMessage(cr.pending.buf, t, m.topic, m.data, cr.pos.String())
	cr.pending.replayed++
	cr.pending.delivery.add(deliveryCounts{sent: 1, bytes: len(cr.pending.buf) - before})
}

// appendGapNoticeAndSkipDropped checks whether messages that the client missed are no longer available. If so, it
// appends a gap notice and continues the replay after the unavailable messages.
func (cr *clientReplay) appendGapNoticeAndSkipDropped() {
	r := cr.hub.Replay
	newPos := cr.pos
	switch {
	case cr.unissued:
		newPos = r.newestPos
		cr.pending.unissued++
	case cr.pos.Epoch != r.newestPos.Epoch:
		newPos = Position{r.newestPos.Epoch, r.firstSeq - 1}
	default:
		for _, t := range cr.topics {
			if r.mayHaveDropped(t, cr.pos.Seq) {
				newPos.Seq = r.firstSeq - 1
			}
		}
	}
	if newPos != cr.pos {
		cr.pos, cr.unissued = newPos, false
		cr.pending.buf = cr.client.format.appendGapNoticeUnlessRESP(cr.pending.buf, cr.topics, newPos)
		cr.pending.gaps++
	}
}

// trySendPendingAndJoinGroups sends the pending step and adds the client to its groups. It returns false if the
// client's queue has no space for the step.
func (cr *clientReplay) trySendPendingAndJoinGroups() (joined bool) {
	if len(cr.pending.buf) > 0 {
		if err := cr.ref.Send(cr.pending.buf); err != nil && !errors.Is(err, tcp.ErrClosed) {
			return false
		}
	}
	cr.countAndClearPending()
	for _, t := range cr.topics {
		t.getOrCreateGroup(cr.client.format).Add(cr.ref)
	}
	return true
}
