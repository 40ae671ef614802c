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
// holds the lock until the client has joined. The first step is made at once. If something is left,
// a goroutine makes the others, and sends no faster than the client reads; until it ends, the
// client's requests wait, and it is retained, so that a drain waits for it, and is not saved for
// another process. It ends within Replay.Timeout.
type resumption struct {
	h      *Hub
	client *client
	ref    tcp.Ref
	topics []*topic // of one or more subscriptions
	at     Position // all up to it has been sent; without an epoch, nothing is missed
	astray bool     // at has not been issued
	out    []byte

	owners []owner
	place  *fairLimit // that it is counted in: early or queue, of replayLimits
	turn   bool
	// fail closes the client: it is to try again.
	fail func(*tcp.Conn, error)
}

const (
	// A step ends when it has looked at so many messages, or has so many bytes to send.
	stepMessages = 4096
	stepBytes    = 64 << 10
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
			s.out = s.client.format.append(s.out, t, t.name, []byte(message), "")
		}
	}
	return s.at, true
}

// start makes the first step, and has a goroutine make the others, for a handler's call for c.
func (s *resumption) start(c *tcp.Conn) error {
	if s.step() {
		return nil
	}
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
		if s.step() {
			return nil
		}
	}
}

// send sends what the steps have made, as fast as the client reads, and ends a turn in which it doesn't.
func (s *resumption) send(ctx context.Context) error {
	if len(s.out) == 0 {
		return nil
	}
	if s.turn {
		turn, cancel := context.WithTimeout(ctx, stallTime)
		err := s.ref.SendWait(turn, s.out)
		cancel()
		switch {
		case err == nil:
			s.out = s.out[:0]
			return nil
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return s.problem(ctx, err)
		}
		s.endTurn()
		s.h.Replay.stalled.Add(1)
	}
	if err := s.ref.SendWait(ctx, s.out); err != nil {
		return s.problem(ctx, err)
	}
	s.out = s.out[:0]
	return nil
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
		l.early.max, l.early.each = l.queue.max, l.queue.each
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

// step adds what comes next to out, of which it says whether it has sent that, as all that is missed, and
// the client has joined.
func (s *resumption) step() (joined bool) {
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
	s.skip()
	globs := make([]glob, len(s.topics))
	for i, t := range s.topics {
		if t.kind == Pattern {
			globs[i] = compileGlob(t.name)
		}
	}
	for n, m := range r.behind(s.at.Seq) {
		if n >= stepMessages || len(s.out) >= stepBytes {
			return false
		}
		s.at.Seq = m.seq
		for i, t := range s.topics {
			if t.kind == Topic && t.name == m.topic || t.kind == Pattern && globs[i].matches(m.topic) {
				before := len(s.out)
				s.out = s.client.format.append(s.out, t, m.topic, m.data, s.at.String())
				r.replayed.Add(1)
				s.h.count(tally{sent: 1, bytes: len(s.out) - before})
			}
		}
	}
	s.at = r.at
	s.out = s.client.format.appendPosition(s.out, s.at)
	return s.join()
}

// skip tells the client of what it lacks that is gone, and goes on behind that.
func (s *resumption) skip() {
	r := s.h.Replay
	to := s.at
	switch {
	case s.astray:
		to = r.at
		r.unissued.Add(1)
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
		s.out = s.client.format.appendGap(s.out, s.topics, to)
		r.gaps.Add(1)
	}
}

// join has the client get what is published, if there is room for what is to come before.
func (s *resumption) join() bool {
	if len(s.out) > 0 {
		switch err := s.ref.Send(s.out); {
		case err == nil:
			s.out = nil
		case !errors.Is(err, tcp.ErrClosed):
			return false
		}
	}
	for _, t := range s.topics {
		t.group(s.client.format).Add(s.ref)
	}
	return true
}
