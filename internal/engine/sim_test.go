package engine

import (
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"
)

// The simulation runs connections with no kernel: a driver as the package comment
// describes it, sockets that are byte slices, handlers that follow a script, and a clock
// that is moved by hand. Everything that can happen is chosen by dice, and everything
// that must hold is checked after each step.
//
//	sim_life_test.go     a connection as its peer and its handler see it
//	sim_driver_test.go   the driver, and the kernel below it
//	sim_handler_test.go  the handler
//	sim_mail_test.go     requests, broadcasts and latest values
//	sim_layer_test.go    layers, from the start or inserted
//	sim_relay_test.go    relays, and detached connections
//	sim_file_test.go     files
//	sim_time_test.go     time limits, timers, deadlines, heartbeats
//	sim_check_test.go    invariants after each step, when idle and at the end

var (
	seedFlag  = flag.Uint64("seed", 1, "the first seed of the simulation")
	seedsFlag = flag.Uint64("seeds", 1000, "how many seeds the simulation runs, from the first one on")
)

func TestSim(t *testing.T) {
	for i := range *seedsFlag {
		seed := *seedFlag + i
		simulate(t, fmt.Sprintf("-seed=%d -seeds=1", seed), newSeeded(seed))
	}
}

// FuzzConn runs the simulation with the fuzzer's choices.
func FuzzConn(f *testing.F) {
	for seed := range uint64(8) {
		d := newSeeded(seed)
		choices := make([]byte, 600)
		for i := range choices {
			choices[i] = byte(d.intN(256))
		}
		f.Add(choices)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		simulate(t, "FuzzConn", &script{choices[:min(len(choices), 4096)]})
	})
}

// randomSource makes a simulation's choices.
type randomSource interface {
	intN(n int) int // one of 0..n-1
	more() bool     // whether there is another step
}

type seeded struct {
	rand  *rand.Rand
	steps int
}

func newSeeded(seed uint64) *seeded {
	return &seeded{rand: rand.New(rand.NewPCG(seed, 0)), steps: 300}
}

func (d *seeded) intN(n int) int { return d.rand.IntN(n) }
func (d *seeded) more() bool     { d.steps--; return d.steps >= 0 }

// script takes its numbers from bytes. At their end it returns the maximum, which means large
// pieces and no surprises.
type script struct{ bytes []byte }

func (d *script) more() bool { return len(d.bytes) > 0 }

func (d *script) intN(n int) int {
	if len(d.bytes) == 0 {
		return n - 1
	}
	v := int(d.bytes[0])
	d.bytes = d.bytes[1:]
	if n > 256 {
		return v * n / 256
	}
	return v % n
}

// The simulation has small limits, so that it reaches them.
const (
	simSlots      = 3
	simTopics     = 2
	simMaxMessage = 48
	simMaxUnsent  = 96
	simHigh       = simMaxUnsent / 2
	simLow        = simMaxUnsent / 4
	simMaxMail    = 4
	simMaxRead    = 40
	simClose      = 100 * time.Millisecond
	simLinger     = 30 * time.Millisecond
	simHandshake  = 250 * time.Millisecond
	simFirstByte  = 400 * time.Millisecond
	simMessage    = 300 * time.Millisecond
	simIdle       = 600 * time.Millisecond
	simWrite      = 350 * time.Millisecond
	simBeat       = 150 * time.Millisecond
	simMissed     = 2
)

// sim is one simulation: the owner of a few connections and their environment.
type sim struct {
	name string
	dice randomSource

	now      time.Duration
	host     Runtime
	counters Counters
	box      Mailbox
	lent     map[*Buffer]bool

	slots    []*Conn
	lives    []*life  // the one in each slot, nil if it is free
	past     []*life  // all
	touched  []*Conn  // to be driven soon
	posts    []*post  // accepted and not taken, in order
	posting  *post    // what postToRandomConn posts
	mailing  *post    // request being passed to HandleOrDeferForPendingLayer
	topics   []*topic // latest values
	panics   int
	closes   int // calls of Closed
	beats    int // heartbeats
	timers   int // calls of Timer
	drops    int // messages that were dropped
	replaced int // replaced latest values
	trace    []string

	failure simFailure
}

func simulate(t *testing.T, name string, d randomSource) {
	t.Helper()
	defer func() {
		switch v := recover().(type) {
		case nil:
		case simFailure:
			t.Fatal(v)
		default:
			panic(v)
		}
	}()
	s := newSim(name, d)
	for d.more() {
		s.randomStep()
		s.checkInvariants()
	}
	s.settleAll()
	s.finishAll()
}

func newSim(name string, d randomSource) *sim {
	s := &sim{name: name, dice: d, lent: map[*Buffer]bool{}}
	s.box.MaxRequests, s.box.MaxBytes, s.box.Counters = simMaxMail, 16<<20, &s.counters
	s.host = Runtime{
		Config: Config{
			Handler: s, Timer: s.onTimer, Log: slog.New(slog.DiscardHandler),
			Limits: Limits{
				MaxMessage: simMaxMessage, MaxUnsent: simMaxUnsent, MaxMail: simMaxMail,
				HighWater: simHigh, LowWater: simLow,
				CloseTimeout: simClose, Linger: simLinger, HandshakeTimeout: simHandshake,
			},
		},
		Buffers: s, Poster: s, Counters: &s.counters, Admission: admitAll,
		Now: func() time.Duration { return s.now },
	}
	s.host.SendDirect, s.host.MinDirectSend, s.host.maxPieceSize = s.kernelSendDirect, 3, 8<<s.dice.intN(5)
	s.randomizeRuntime()
	s.slots, s.lives = make([]*Conn, simSlots), make([]*life, simSlots)
	for i := range s.slots {
		s.slots[i] = &Conn{}
		s.slots[i].Bind(&s.host, uint32(i), 0)
	}
	for range simTopics {
		s.topics = append(s.topics, &topic{})
	}
	return s
}

// randomizeRuntime chooses the Runtime's optional features.
func (s *sim) randomizeRuntime() {
	h, roll := &s.host, s.dice.intN(256)
	h.DropMessages, h.TimeAllCalls = roll&1 != 0, s.dice.intN(2) == 0
	if roll&2 != 0 {
		h.Drained, h.Draining = s.onWritable, s.onDraining
	}
	if roll&4 != 0 {
		l := &h.Limits
		l.FirstByteTimeout, l.MessageTimeout, l.IdleTimeout, l.WriteTimeout = simFirstByte, simMessage, simIdle, simWrite
	}
	if roll&8 != 0 {
		h.Heartbeat = Heartbeat{Every: simBeat, Send: s.sendHeartbeat, MaxMissed: simMissed}
	}
	if roll&16 != 0 {
		h.NewLayer = s.newLayer
	}
	if roll&32 != 0 { // like with workers, but fast ones
		h.OnWorkers, h.SendDirect = true, nil
		h.Shed = s.shedInput
	}
	switch {
	case roll&64 != 0: // like on a loop; otherwise relays post requests
		h.Loop = simLoop{sim: s}
	case roll&128 != 0: // like where any goroutine may use sockets
		h.SendToPartner = s.sendToPartner
	}
}

// simLoop is the owner of all connections.
type simLoop struct {
	Loop // nil: there are no workers
	*sim
}

func (o simLoop) Conn(slot uint32) *Conn         { return o.slots[slot] }
func (o simLoop) OwnsConn(*Conn) bool            { return o.dice.intN(5) > 0 }
func (o simLoop) PerformActionsLater(c *Conn)    { o.touched = append(o.touched, c) }
func (simLoop) OnLoop() bool                     { return true }
func (simLoop) LeaveToWait() bool                { return false }
func (simLoop) QueueJobOnLoop(LoopJob, int) bool { return false }

func (s *sim) randomStep() {
	slot := s.dice.intN(simSlots)
	l := s.lives[slot]
	what := s.dice.intN(36)
	switch {
	case what == 0 && s.dice.intN(3) == 0:
		s.advanceClock(time.Duration(s.dice.intN(int(simWrite))))
	case what == 0:
		s.advanceClock(time.Duration(s.dice.intN(int(simClose * 3 / 4))))
	case what <= 4:
		s.postToRandomConn()
	case what == 5:
		s.setLatestValue()
	case what <= 8:
		s.deliverRequests()
	case l == nil:
		s.openSlot(slot)
	case what <= 15:
		l.peerSends(s)
	case what <= 22:
		s.makeReadable(l)
	case what <= 28:
		s.makePeerSpace(l, s.dice.intN(2*simMaxUnsent))
	case what == 29:
		l.fin = true
		s.log("%v: the peer ends", l)
	case what == 30 && s.dice.intN(4) == 0:
		l.reset = true
		s.log("%v: the peer resets", l)
	case what == 31 && s.dice.intN(4) == 0:
		s.startDrain(l)
	case what == 32 && l.isReadingOff():
		s.turnReadingOn(l)
	case what == 32 && l.retained > 0:
		s.handlerReleases(l)
	case what == 33 && s.dice.intN(6) == 0:
		why := []error{errKilled, ErrOverBudget}[s.dice.intN(2)]
		s.log("%v: is aborted: %v", l, why)
		l.allowReasons(why)
		l.conn.Abort(why)
		s.driveConnAndTouched(l)
	case what >= 34:
		s.broadcast()
	}
}

// GetOrNew and Put implement BufferPool. They check what is returned, and overwrite it.
func (s *sim) GetOrNew(int) *Buffer {
	b := &Buffer{bytes: make([]byte, 0, 8)}
	s.lent[b] = true
	return b
}

func (s *sim) Put(b *Buffer) {
	s.check(s.lent[b], "a buffer was returned twice")
	delete(s.lent, b)
	overwrite(b.bytes[:cap(b.bytes)])
}

func overwrite(p []byte) {
	for i := range p {
		p[i] = '!'
	}
}
