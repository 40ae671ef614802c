package uring

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/enginetest"
	"github.com/myriad-go/myriad/internal/engine/loop"
	"github.com/myriad-go/myriad/internal/testkit"
)

// handler echoes input, and can run functions on its loop.
type handler struct {
	opened   func(c *engine.Conn)
	received func(in []byte)
	nudged   func(c *engine.Conn)
	closed   chan error
	driver   *driver // of the only loop
}

func (h *handler) Opened(c *engine.Conn) {
	if h.opened != nil {
		h.opened(c)
	}
}

func (h *handler) Nudged(c *engine.Conn) { h.nudged(c) }

func (h *handler) Received(c *engine.Conn, in []byte) int {
	if h.received != nil {
		h.received(in)
	}
	c.Write(in)
	return len(in)
}

func (h *handler) Ended(_ *engine.Conn, rest []byte) int { return len(rest) }

func (h *handler) Closed(_ *engine.Conn, why error) { h.closed <- why }

func startTestEngine(t *testing.T, h *handler) engine.Engine {
	t.Helper()
	if err := Model.Available(); err != nil {
		t.Skip(err)
	}
	h.closed = make(chan error, 1000)
	e, err := loop.Start(engine.Config{
		Network: "tcp", Addr: "127.0.0.1:0", Handler: h, Limits: enginetest.Limits(), Loops: 1, Log: slog.New(slog.DiscardHandler),
	}, func(l *loop.Loop) loop.Driver {
		h.driver = &driver{loop: l}
		return h.driver
	})
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { enginetest.Kill(e) })
	return e
}

func dialEngine(t *testing.T, e engine.Engine) *testkit.Conn {
	t.Helper()
	return testkit.Dial(t, e.Addr().String())
}

// Only a connection with frequent input has a receive in the kernel. It is cancelled after silence.
func TestReceiveForFrequentInput(t *testing.T) {
	h := &handler{}
	hasReceive := make(chan bool, 1)
	h.received = func(in []byte) {
		if addr, ok := strings.CutPrefix(strings.TrimSuffix(string(in), "\n"), "look at "); ok {
			h.driver.loop.ForEachConn(func(c *engine.Conn) {
				if c.Peer().String() == addr {
					hasReceive <- c.DriverFlags()&receiving != 0
				}
			})
		}
	}
	e := startTestEngine(t, h)
	talking, looking := dialEngine(t, e), dialEngine(t, e)
	look := func() bool {
		looking.ExchangeLine("look at "+talking.LocalAddr().String(), "look at "+talking.LocalAddr().String())
		return <-hasReceive
	}
	talking.ExchangeLine("hello", "hello")
	if look() {
		t.Error("a connection with one message has a receive")
	}
	testkit.WaitFor(t, "frequent input gets no receive", func() bool {
		talking.ExchangeLine("hello", "hello")
		return look()
	})
	testkit.WaitFor(t, "the receive of a silent connection is not cancelled", func() bool { return !look() })
	talking.ExchangeLine("hello again", "hello again")
}

// A loop whose ring fails closes its connections with the reason, and continues with a new ring.
func TestRingIsRecreated(t *testing.T) {
	h := &handler{}
	h.received = func(in []byte) {
		if string(in) == "break" {
			h.driver.ring.broken = unix.EBADFD
		}
	}
	e := startTestEngine(t, h)
	idle, talking := dialEngine(t, e), dialEngine(t, e)
	idle.ExchangeLine("hello", "hello")
	talking.ExchangeLine("hello", "hello")
	talking.Send("break")
	for range 2 {
		if why := testkit.Receive(t, h.closed, "a connection is not closed"); !errors.Is(why, unix.EBADFD) {
			t.Errorf("closed with %v, want EBADFD", why)
		}
	}
	dialEngine(t, e).ExchangeLine("hello again", "hello again")
}

// If many connections send more than the first buffers hold, more are provided, up to all, and no byte is
// lost.
func TestMoreBuffersAreProvided(t *testing.T) {
	h := &handler{}
	e := startTestEngine(t, h)
	message := strings.Repeat("0123456789abcdef", 64<<10/16)
	var all []*testkit.Conn
	for range 100 {
		all = append(all, dialEngine(t, e))
	}
	for range 5 {
		var writing sync.WaitGroup
		for _, c := range all {
			writing.Go(func() { _, _ = c.Write([]byte(message)) }) // missing bytes are found below
		}
		for _, c := range all {
			c.Expect(message)
		}
		writing.Wait()
	}
	enginetest.Kill(e)
	if h.driver.buffers.provided < initialBuffers || h.driver.buffers.provided > maxBuffers {
		t.Errorf("%d buffers were given, want %d to %d", h.driver.buffers.provided, initialBuffers, maxBuffers)
	}
	t.Logf("%d buffers were given, incremental: %v", h.driver.buffers.provided, h.driver.buffers.incremental)
}

// LockedMemoryPerLoop matches what the kernel has mapped for a ring, and permits 200 loops with the usual limit of 8
// MiB.
func TestLockedMemory(t *testing.T) {
	r := newTestRing(t)
	p, err := newBufferRing(r)
	testkit.RequireNoError(t, err)
	t.Cleanup(p.close)
	page, mapped := unix.Getpagesize(), 0
	for _, region := range [][]byte{r.queues, r.entries, p.ring} {
		mapped += (len(region) + page - 1) / page * page
	}
	if got := LockedMemoryPerLoop(int64(page)); got != int64(mapped) {
		t.Errorf("LockedMemoryPerLoop is %d, %d bytes are mapped", got, mapped)
	}
	if loops := 8 << 20 / LockedMemoryPerLoop(4096); loops < 200 {
		t.Errorf("8 MiB are enough for %d loops, want 200", loops)
	}
}
