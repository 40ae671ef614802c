package hub

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// resumption is a client that is sent what it has missed, and then joins those who get what is
// published. It is sent that in steps, each from the memory, with its lock for reading; the last one
// holds the lock until the client has joined. A step is bounded in its work and in what it makes. The first
// step is made at once, and is small: it sends all that is missing, or nothing. If something is left,
// a goroutine makes the others, and sends no faster than the client reads. A client
// that has no turn has nothing made for it, so waiting takes no memory. Until the goroutine ends, the
// client's requests wait, and it is retained, so that a drain waits for it, and is not saved for
// another process. It ends within Replay.Timeout.
type resumption struct {
	h      *Hub
	client *client
	ref    tcp.Ref
	topics []*topic // of one or more subscriptions
	at     Position // all up to it has been sent; without an epoch, nothing is missed
	astray bool     // at has not been issued
	first  []byte   // the newest values, which go before all that is missed
	names  map[string]*topic
	globs  []topicGlob

	made step // what the last step has made and nobody has been sent

	owners []owner
	place  *fairLimit // that it is counted in: early or queue, of replayLimits
	turn   bool
	// fail closes the client: it is to try again.
	fail func(*tcp.Conn, error)
}

// topicGlob is a topic of a pattern.
type topicGlob struct {
	*topic
	glob
}

// step is what a step has made.
type step struct {
	out            []byte
	replayed, gaps int64
	unissued       int64
	sent           tally
	at             Position // from where it has begun
	astray         bool
}

// stepLimits bound a step: the units of work, see tryWork, and the bytes to send, of which the last message may be more
// where one is allowed to be.
type stepLimits struct {
	work, bytes int
	all         bool // it is made to the end or not at all
}

var (
	firstStep = stepLimits{work: 4_000, bytes: 16 << 10, all: true}
	laterStep = stepLimits{work: 40_000, bytes: 64 << 10}
)

const (
	// lookWork is the work of looking at one message.
	lookWork = 8
	// waitingTurns is how many clients may wait, for each that is sent something.
	waitingTurns = 64
	// A client that does not take a step within stallTime gives its turn back.
	stallTime = time.Second
	// A client that has seen more than this node comes from another one. It waits; behind aheadTime it is asked
	// whether there is such a message, and again as long as nobody knows. An answer holds for askTime.
	aheadTime = 2 * time.Second
	askTime   = time.Second
)

var (
	errReplays    = errors.New("too many clients are sent what they have missed; try again")
	errReplayTime = errors.New("the client was not sent all that it has missed in time; it is to go on from the last id")
)

// begin says from where on the client is going to get all; ok is false if that is not known. The newest
// value of a topic, where these are kept, is what a client begins with that has seen nothing.
func (s *resumption) begin() (at Position, ok bool) {
	r := s.h.Replay
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s.at.Epoch != "" {
		return s.at, true
	}
	if !r.ready {
		return Position{}, false
	}
	s.at = r.at
	for _, t := range s.topics {
		if message, kept := s.h.last.of(t.name); kept && t.kind == Topic {
			s.first = s.client.format.append(s.first, t, t.name, []byte(message), "")
		}
	}
	return s.at, true
}

// start makes the first step, and has a goroutine make the others, for a handler's call for c.
func (s *resumption) start(c *tcp.Conn) error {
	s.match()
	if s.step(firstStep) {
		return nil
	}
	s.undo()
	r := s.h.Replay
	s.owners, s.place = ownersOf(s.client, s.ref), &r.limited().queue
	if !r.has(s.at) {
		s.place = &r.limited().early
	}
	if !s.place.tryAcquire(s.owners) {
		r.refusals.Add(1)
		return errReplays
	}
	r.replays.Add(1)
	ctx, cancel := context.WithTimeout(context.Background(), r.timeout())
	s.client.withMore().stop = cancel
	c.Retain()
	if s.client.format == socket {
		c.Pause() // its requests wait
	}
	go s.run(ctx, cancel)
	return nil
}

func (s *resumption) run(ctx context.Context, cancel context.CancelFunc) {
	defer cancel()
	why := s.rest(ctx)
	s.leave()
	err := s.ref.Do(func(c *tcp.Conn) {
		s.client.resumed()
		if why != nil {
			s.fail(c, why)
		}
		c.Resume()
		c.Release()
	})
	if errors.Is(err, tcp.ErrFull) {
		_ = s.ref.Close() // for which there is more room
	}
}

// rest makes the steps that are left.
func (s *resumption) rest(ctx context.Context) error {
	for {
		if err := s.send(ctx); err != nil {
			return err
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
		if !s.astray { // for which there is nothing to be sent
			if err := s.takeTurn(ctx); err != nil {
				return err
			}
		}
		if s.nextStep() {
			return nil
		}
	}
}

// nextStep is step for a goroutine. Steps with patterns, which may cost much, are made one at a time.
func (s *resumption) nextStep() (joined bool) {
	if len(s.globs) > 0 {
		r := s.h.Replay
		r.stepping.Lock()
		defer r.stepping.Unlock()
	}
	return s.step(laterStep)
}

// send sends what the last step has made, as fast as the client reads. It ends a turn in which the client doesn't:
// then the step is undone, and the next one waits until the client has read.
func (s *resumption) send(ctx context.Context) error {
	if len(s.made.out) == 0 {
		return nil
	}
	turn, cancel := context.WithTimeout(ctx, stallTime)
	err := s.ref.SendWait(turn, s.made.out)
	cancel()
	switch {
	case err == nil:
		s.done()
		return nil
	case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
		return s.problem(ctx, err)
	}
	s.undo()
	s.endTurn()
	s.h.Replay.stalled.Add(1)
	return s.awaitReader(ctx)
}

// done counts what the last step has made, which the client is sent.
func (s *resumption) done() {
	r := s.h.Replay
	r.replayed.Add(s.made.replayed)
	r.gaps.Add(s.made.gaps)
	r.unissued.Add(s.made.unissued)
	if s.made.sent.sent > 0 {
		s.h.count(s.made.sent)
	}
	s.first = nil
	if room := s.made.out[:0]; cap(room) <= 2*laterStep.bytes {
		s.made = step{out: room}
	} else {
		s.made = step{} // a large message has made it grow
	}
}

// undo drops what the last step has made. The next one makes it again.
func (s *resumption) undo() {
	if s.made.at != (Position{}) {
		s.at, s.astray = s.made.at, s.made.astray
	}
	s.made = step{}
}

// The times between two looks at whether a client has read.
const leastLook, mostLook = 100 * time.Millisecond, 2 * time.Second

// awaitReader waits until the client has read most of what it was sent.
func (s *resumption) awaitReader(ctx context.Context) error {
	pending := make(chan int, 1)
	for wait := leastLook; ; wait = min(2*wait, mostLook) {
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return s.problem(ctx, ctx.Err())
		}
		switch err := s.ref.Do(func(c *tcp.Conn) { pending <- c.Pending() }); {
		case errors.Is(err, tcp.ErrFull):
			continue
		case err != nil:
			return s.problem(ctx, err)
		}
		select {
		case n := <-pending:
			if n <= laterStep.bytes {
				return nil
			}
		case <-ctx.Done():
			return s.problem(ctx, ctx.Err())
		}
	}
}

// takeTurn waits for a turn, unless it has one.
func (s *resumption) takeTurn(ctx context.Context) error {
	r := s.h.Replay
	l := r.limited()
	if s.place == &l.early {
		s.leave()
		if !l.queue.tryAcquire(s.owners) {
			r.refusals.Add(1)
			return errReplays
		}
		s.place = &l.queue
	}
	if !s.turn {
		if err := l.turns.acquire(ctx, s.owners); err != nil {
			return s.problem(ctx, err)
		}
		s.turn = true
	}
	return nil
}

func (s *resumption) endTurn() {
	if s.turn {
		s.turn = false
		s.h.Replay.limited().turns.release(s.owners)
	}
}

// leave gives the turn and the place back.
func (s *resumption) leave() {
	s.endTurn()
	if s.place != nil {
		s.place.release(s.owners)
		s.place = nil
	}
}

func (s *resumption) problem(ctx context.Context, err error) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		s.h.Replay.refusals.Add(1)
		return errReplayTime
	}
	return fmt.Errorf("hub: no room for what the client has missed: %w", err)
}

// replayLimits bound the resumptions. Each has a place in early until the node has come to where it is, so that
// ids that were not issued hold up nobody else, then in queue, and there takes turns.
type replayLimits struct {
	once                sync.Once
	early, queue, turns fairLimit
}

// limited returns the limits, which it makes of the fields first.
func (r *Replay) limited() *replayLimits {
	l := &r.limits
	l.once.Do(func() {
		most, each := r.maxReplays(), r.maxReplaysEach()
		l.turns.max, l.turns.each = most, each
		l.queue.max, l.queue.each = (waitingTurns+1)*most, (waitingTurns+1)*each
		l.queue.spare = each < most
		l.early.max, l.early.each, l.early.spare = l.queue.max, l.queue.each, l.queue.spare
	})
	return l
}

// wait waits until the node has come to where the client is. Where nobody has been, the client is astray.
func (s *resumption) wait(ctx context.Context) error {
	ask := time.NewTicker(aheadTime)
	defer ask.Stop()
	for {
		moved := s.h.Replay.behindOf(s.at)
		if moved == nil || s.astray {
			return nil
		}
		s.endTurn()
		select {
		case <-moved:
		case <-ask.C:
			newest, err := s.h.newest(ctx)
			s.astray = err == nil && newest.Epoch == s.at.Epoch && newest.Seq < s.at.Seq && s.h.Replay.has(newest)
		case <-ctx.Done():
			return s.problem(ctx, ctx.Err())
		}
	}
}

// behindOf gives a channel that is closed with the next message, if the node has not come to a position yet.
func (r *Replay) behindOf(at Position) (moved <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.reached(at) {
		return nil
	}
	if r.moved == nil {
		r.moved = make(chan struct{})
	}
	return r.moved
}

// has says whether a position is no news.
func (r *Replay) has(at Position) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.reached(at)
}

// newest is Cluster.Newest, of which one asks for all.
func (h *Hub) newest(ctx context.Context) (Position, error) {
	r := h.Replay
	r.asking.Lock()
	defer r.asking.Unlock()
	if time.Since(r.asked) < askTime {
		return r.newest, r.unknown
	}
	r.newest, r.unknown = h.Cluster.Newest(ctx)
	r.asked = time.Now()
	return r.newest, r.unknown
}

// reached says whether a client can go on behind a position. One of another stream is not waited for.
func (m *memory) reached(at Position) bool {
	return m.ready && (at.Epoch != m.at.Epoch || at.Seq <= m.at.Seq)
}

// match prepares for finding the topics of a message.
func (s *resumption) match() {
	s.names = make(map[string]*topic)
	for _, t := range s.topics {
		if t.kind == Pattern {
			s.globs = append(s.globs, topicGlob{t, compileGlob(t.name)})
		} else {
			s.names[t.name] = t
		}
	}
}

// step makes what comes next, within limits. It reports whether it has sent that, as all that is missing, and
// the client has joined.
func (s *resumption) step(most stepLimits) (joined bool) {
	r := s.h.Replay
	r.mu.RLock()
	defer r.mu.RUnlock()
	if s.at.Epoch == "" {
		if !r.ready {
			return s.join()
		}
		s.at = r.at
	}
	if !r.reached(s.at) && !s.astray {
		return false
	}
	s.made.at, s.made.astray = s.at, s.astray
	s.made.out = append(s.made.out, s.first...)
	s.skip()
	work := 0
	for _, m := range r.behind(s.at.Seq) {
		if work >= most.work || len(s.made.out) >= most.bytes || most.all && len(s.made.out)+len(m.data) > most.bytes {
			return false
		}
		s.at.Seq = m.seq
		work += s.add(&m)
	}
	s.at = r.at
	s.made.out = s.client.format.appendPosition(s.made.out, s.at)
	return s.join()
}

// add makes what a message is for the client. It returns the work.
func (s *resumption) add(m *keptMessage) (work int) {
	work = lookWork
	if t := s.names[m.topic]; t != nil {
		s.appendMessage(t, m)
	}
	for i := range s.globs {
		g := &s.globs[i]
		if work += g.work(len(m.topic)); g.matches(m.topic) {
			s.appendMessage(g.topic, m)
		}
	}
	return work
}

func (s *resumption) appendMessage(t *topic, m *keptMessage) {
	before := len(s.made.out)
	s.made.out = s.client.format.append(s.made.out, t, m.topic, m.data, s.at.String())
	s.made.replayed++
	s.made.sent.add(tally{sent: 1, bytes: len(s.made.out) - before})
}

// skip tells the client of what it lacks that is gone, and goes on behind that.
func (s *resumption) skip() {
	r := s.h.Replay
	to := s.at
	switch {
	case s.astray:
		to = r.at
		s.made.unissued++
	case s.at.Epoch != r.at.Epoch:
		to = Position{r.at.Epoch, r.first - 1}
	default:
		for _, t := range s.topics {
			if r.lacks(t, s.at.Seq) {
				to.Seq = r.first - 1
			}
		}
	}
	if to != s.at {
		s.at, s.astray = to, false
		s.made.out = s.client.format.appendGap(s.made.out, s.topics, to)
		s.made.gaps++
	}
}

// join has the client get what is published, if there is room for what is to come before.
func (s *resumption) join() bool {
	if len(s.made.out) > 0 {
		if err := s.ref.Send(s.made.out); err != nil && !errors.Is(err, tcp.ErrClosed) {
			return false
		}
	}
	s.done()
	for _, t := range s.topics {
		t.group(s.client.format).Add(s.ref)
	}
	return true
}
