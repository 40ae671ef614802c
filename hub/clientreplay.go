package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// clientReplay sends a client the stored messages that the client has missed. It then adds the client to the receivers
// of new messages.
//
// A replay consists of steps. Each step sends a limited amount of output. The client's handler runs the first step, and
// another goroutine runs the other steps. The last step holds the read lock of the replay buffer, so that no message is
// missed or repeated.
type clientReplay struct {
	hub          *Hub
	client       *client
	ref          tcp.Ref
	topics       []*topic
	pos          Position // of the last message sent or prepared; the epoch is "" if the client sent no position
	unissued     bool     // no node has ever assigned pos to a message
	lastValues   []byte   // encoded last values, sent before missed messages
	topicsByName map[string]*topic
	patterns     []topicPattern

	pending replayStep // prepared but not yet sent

	owners      []quotaOwner
	queueSlot   *fairSemaphore // semaphore of which the replay holds a slot: replayLimiters.early or queue; nil if none
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
	startPos       Position // value of pos before the step
	startUnissued  bool
}

// stepLimits limits one step of a replay. work limits the processor time, in units of about 10 ns. bytes limits the
// size of the output.
type stepLimits struct {
	work, bytes  int
	allOrNothing bool // stop before a message that does not fit completely
}

var (
	firstStepLimits = stepLimits{work: 4_000, bytes: 16 << 10, allOrNothing: true}
	laterStepLimits = stepLimits{work: 40_000, bytes: 64 << 10}
)

const (
	messageLookupUnits = 8
	waitersPerTurn     = 64 // waiting replays that are allowed for each running replay
	stallTimeout       = time.Second
	// A replay whose position this node does not know asks for the stream's newest position at intervals of
	// unknownPositionDelay. streamNewestTTL is how long the answer is cached.
	unknownPositionDelay = 2 * time.Second
	streamNewestTTL      = time.Second
)

var (
	errTooManyReplays = errors.New("too many replays; try again later")
	errReplayTimeout  = errors.New("the replay timed out; continue from the last id")
)

// initStartPositionAndLastValues returns the position at which the replay starts. If the client sent a position, the
// replay starts there. Otherwise, the method sets cr.pos to the position of the newest message, and sets cr.lastValues
// to the last values of the topics. If the client sent no position and the stream is not loaded yet, known is false.
func (cr *clientReplay) initStartPositionAndLastValues() (start Position, known bool) {
	cr.hub.ensureLocalStreamAndDropExpired()
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

// replayNowOrInBackground completes a short replay at once, and starts a goroutine for a longer one. It fails if too
// many replays are in progress. Only the handler of c may call it.
func (cr *clientReplay) replayNowOrInBackground(c *tcp.Conn) error {
	cr.indexTopicsAndCompilePatterns()
	if cr.prepareStepAndJoinIfLast(firstStepLimits) {
		return nil
	}
	cr.rollBackPending()
	r := cr.hub.Replay
	cr.owners, cr.queueSlot = userAndAddrQuotaOwners(cr.client, cr.ref), &r.initLimitersOnce().queue
	if !r.hasReached(cr.pos) {
		cr.queueSlot = &r.initLimitersOnce().early
	}
	if !cr.queueSlot.tryAcquire(cr.owners) {
		r.refused.Add(1)
		return errTooManyReplays
	}
	r.replays.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout())
	cr.client.ensureExtra().stopReplay = cancel
	c.Retain()
	if cr.client.format.isWebSocket() {
		c.Pause() // requests wait
	}
	go cr.runStepsThenCloseOnErrorAndResume(ctx, cancel)
	return nil
}

func (cr *clientReplay) runStepsThenCloseOnErrorAndResume(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	closeReason := cr.runStepsUntilJoined(ctx)
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

func (cr *clientReplay) runStepsUntilJoined(ctx context.Context) error {
	for {
		if err := cr.sendOrRollBackAndWaitIfStalled(ctx); err != nil {
			return err
		}
		if err := cr.waitReachedOrDetectUnissued(ctx); err != nil {
			return err
		}
		if !cr.unissued { // otherwise there is nothing to send
			if err := cr.ensureQueueSlotAndTurn(ctx); err != nil {
				return err
			}
		}
		if cr.prepareStepWithPatternLock() {
			return nil
		}
	}
}

// prepareStepWithPatternLock calls prepareStepAndJoinIfLast. If the replay has patterns, the method holds
// patternStepMu during the call, so that the expensive steps of such replays run one at a time.
func (cr *clientReplay) prepareStepWithPatternLock() (joined bool) {
	if len(cr.patterns) > 0 {
		r := cr.hub.Replay
		r.patternStepMu.Lock()
		defer r.patternStepMu.Unlock()
	}
	return cr.prepareStepAndJoinIfLast(laterStepLimits)
}

// sendOrRollBackAndWaitIfStalled sends the prepared output. If the client does not read enough to make space for the
// output within stallTimeout, the method discards the output and releases the replay's slot of replayLimiters.turns. It
// then waits until the client has read its earlier output.
func (cr *clientReplay) sendOrRollBackAndWaitIfStalled(ctx context.Context) error {
	if len(cr.pending.buf) == 0 {
		return nil
	}
	sendCtx, cancel := context.WithTimeout(ctx, stallTimeout)
	err := cr.ref.SendWait(sendCtx, cr.pending.buf)
	cancel()
	switch {
	case err == nil:
		cr.countAndResetPendingStep()
		return nil
	case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
		return cr.countTimeoutOrWrapNoSpace(ctx, err)
	}
	cr.rollBackPending()
	cr.releaseTurn()
	cr.hub.Replay.stalled.Add(1)
	return cr.waitUntilClientReads(ctx)
}

func (cr *clientReplay) countAndResetPendingStep() {
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

// rollBackPending discards the prepared output. The next step prepares the same messages again.
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
			return cr.countTimeoutOrWrapNoSpace(ctx, ctx.Err())
		}
		switch err := cr.ref.Do(func(c *tcp.Conn) { pending <- c.Pending() }); {
		case errors.Is(err, tcp.ErrFull):
			continue
		case err != nil:
			return cr.countTimeoutOrWrapNoSpace(ctx, err)
		}
		select {
		case n := <-pending:
			if n <= laterStepLimits.bytes {
				return nil
			}
		case <-ctx.Done():
			return cr.countTimeoutOrWrapNoSpace(ctx, ctx.Err())
		}
	}
}

func (cr *clientReplay) ensureQueueSlotAndTurn(ctx context.Context) error {
	r := cr.hub.Replay
	limiters := r.initLimitersOnce()
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
			return cr.countTimeoutOrWrapNoSpace(ctx, err)
		}
		cr.hasTurn = true
	}
	return nil
}

func (cr *clientReplay) releaseTurn() {
	if cr.hasTurn {
		cr.hasTurn = false
		cr.hub.Replay.initLimitersOnce().turns.releaseAndAdmitWaiters(cr.owners)
	}
}

func (cr *clientReplay) releaseTurnAndQueueSlot() {
	cr.releaseTurn()
	if cr.queueSlot != nil {
		cr.queueSlot.releaseAndAdmitWaiters(cr.owners)
		cr.queueSlot = nil
	}
}

func (cr *clientReplay) countTimeoutOrWrapNoSpace(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		cr.hub.Replay.refused.Add(1)
		return errReplayTimeout
	}
	return fmt.Errorf("hub: no space for missed messages: %w", err)
}

// replayLimiters limits concurrent replays. A replay holds a slot of the semaphore early until this node has all
// messages up to the client's position. After that, the replay holds a slot of the semaphore queue instead. While the
// replay runs steps, it also holds a slot of the semaphore turns.
type replayLimiters struct {
	once                sync.Once
	early, queue, turns fairSemaphore
}

func (r *Replay) initLimitersOnce() *replayLimiters {
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

// waitReachedOrDetectUnissued waits until this node has all messages up to the client's position. While it waits, the
// replay does not hold a slot of replayLimiters.turns. If it finds that no node has ever assigned the position to a
// message, it sets cr.unissued and returns.
func (cr *clientReplay) waitReachedOrDetectUnissued(ctx context.Context) error {
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
			return cr.countTimeoutOrWrapNoSpace(ctx, ctx.Err())
		}
	}
}

// nextMessageChanUnlessReached returns nil if this node has all messages up to pos. Otherwise, it returns a channel
// that will be closed when the next message arrives.
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
	if h.keepsLocally() {
		newest, _ := r.At()
		return newest, nil
	}
	r.newestMu.Lock()
	defer r.newestMu.Unlock()
	if time.Since(r.streamNewestAt) < streamNewestTTL {
		return r.streamNewest, r.streamNewestErr
	}
	r.streamNewest, r.streamNewestErr = h.Cluster.Newest(ctx)
	r.streamNewestAt = time.Now()
	return r.streamNewest, r.streamNewestErr
}

// reachedLocked reports whether this node has all messages of the stream up to pos. If pos belongs to another stream,
// the result is true as soon as this node's stream is loaded. The caller must hold m.mu.
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

// prepareStepAndJoinIfLast prepares the output of the next step. The last step also sends the output and adds the
// client to the topics' groups. If the client's output queue is full, the last step does neither, and joined is false.
func (cr *clientReplay) prepareStepAndJoinIfLast(limits stepLimits) (joined bool) {
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
	cr.resetInvalidPositionWithGapNotice()
	missing, work := cr.newestMissedSeq(), 0
	for _, m := range r.messagesAndDropMarksAfterLocked(cr.pos.Seq) {
		if m.topic == nil {
			continue // dropped
		}
		if missing > cr.pos.Seq && m.seq > missing {
			cr.appendGapNoticeAndAdvance(missing)
		}
		if work >= limits.work || len(cr.pending.buf) >= limits.bytes || limits.allOrNothing && len(cr.pending.buf)+len(m.data) > limits.bytes {
			return false
		}
		cr.pos.Seq = m.seq
		work += cr.appendForMatchingSubscriptions(m)
	}
	if missing > cr.pos.Seq {
		cr.appendGapNoticeAndAdvance(missing)
	}
	cr.pos = r.newestPos
	if cr.client.format == formatEvents { // an event without data only sets the id
		cr.pending.buf = append(cr.pending.buf, "id: "+cr.pos.String()+"\n\n"...)
	}
	return cr.trySendPendingAndJoinGroups()
}

func (cr *clientReplay) appendForMatchingSubscriptions(m *keptMessage) (work int) {
	work = messageLookupUnits
	if t := cr.topicsByName[m.topic.name]; t != nil {
		cr.appendReplayedMessage(t, m)
	}
	for i := range cr.patterns {
		g := &cr.patterns[i]
		if work += g.maxMatchWork(len(m.topic.name)); g.matches(m.topic.name) {
			cr.appendReplayedMessage(g.topic, m)
		}
	}
	return work
}

func (cr *clientReplay) appendReplayedMessage(t *topic, m *keptMessage) {
	before := len(cr.pending.buf)
	cr.pending.buf = cr.client.format.appendMessage(cr.pending.buf, t, m.topic.name, m.data, cr.pos.String())
	cr.pending.replayed++
	cr.pending.delivery.add(deliveryCounts{sent: 1, bytes: len(cr.pending.buf) - before})
}

// resetInvalidPositionWithGapNotice checks whether the client's position belongs to this stream. If the position is
// invalid, it appends a gap notice. The replay then continues with the oldest stored message. However, if no node has
// ever assigned the position to a message, the replay sends only new messages.
func (cr *clientReplay) resetInvalidPositionWithGapNotice() {
	r := cr.hub.Replay
	newest := r.newestPos.Seq
	switch {
	case cr.unissued:
		cr.pending.unissued++
	case cr.pos.Epoch != r.newestPos.Epoch:
		newest = r.firstOrNextSeqLocked() - 1
	default:
		return
	}
	cr.pos.Epoch, cr.unissued = r.newestPos.Epoch, false
	cr.appendGapNoticeAndAdvance(newest)
}

// newestMissedSeq returns an upper bound for the sequence number of the newest dropped message of the client's topics
// and patterns. If the result is at most cr.pos.Seq, the client has not missed any dropped message.
func (cr *clientReplay) newestMissedSeq() (upperBound uint64) {
	r := cr.hub.Replay
	missing := r.newestDroppedSeqOfPatternsLocked(cr.patterns, cr.pos.Seq)
	for name := range cr.topicsByName {
		missing = max(missing, r.newestDroppedSeqLocked(name))
	}
	return missing
}

// appendGapNoticeAndAdvance appends a notice that messages up to seq may be missing, and moves the position to seq. The
// caller must first append the stored messages up to seq.
func (cr *clientReplay) appendGapNoticeAndAdvance(seq uint64) {
	cr.pos.Seq = seq
	cr.pending.buf = cr.client.format.appendGapNoticeUnlessRESP(cr.pending.buf, cr.topics, cr.pos)
	cr.pending.gaps++
}

// trySendPendingAndJoinGroups sends the prepared output and adds the client to the topics' groups. If the client's
// output queue is full, it does neither and returns false.
func (cr *clientReplay) trySendPendingAndJoinGroups() (joined bool) {
	if len(cr.pending.buf) > 0 {
		if err := cr.ref.Send(cr.pending.buf); err != nil && !errors.Is(err, tcp.ErrClosed) {
			return false
		}
	}
	cr.countAndResetPendingStep()
	for _, t := range cr.topics {
		t.getOrCreateGroup(cr.client.format).Add(cr.ref)
	}
	return true
}
