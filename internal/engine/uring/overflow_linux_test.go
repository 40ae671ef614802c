package uring

import (
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// The kernel keeps completions that do not fit into the queue and adds them later. These tests fill the
// queue: no completion is consumed until it has overflown.

func newTestRing(t *testing.T) *ring {
	t.Helper()
	if err := Model.Available(); err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	r, err := newRing()
	testkit.RequireNoError(t, err)
	t.Cleanup(r.close)
	return r
}

// submitNops fills n submissions that complete at submission, with the user data 0..n-1.
func submitNops(r *ring, n int) {
	for i := range n {
		r.nextFreeSubmission().user = uint64(i) // operation 0 does nothing
	}
}

// consumeCompletions calls each for every completion until there are no more, neither in the queue nor in the
// kernel.
func consumeCompletions(t *testing.T, r *ring, each func(cqe)) {
	t.Helper()
	const maxCompletions = 4 * cqEntries
	for taken := uint32(0); ; {
		r.enter(enterGetEvents, 0)
		n := r.completionCount()
		taken += n
		switch {
		case r.broken != 0:
			t.Fatalf("the ring is broken: %v", r.broken)
		case n > cqEntries || taken > maxCompletions:
			t.Fatalf("%d completions at a time, %d in all; want at most %d and %d", n, taken, cqEntries, maxCompletions)
		case n == 0:
			return
		}
		for range n {
			each(r.popCompletion())
		}
	}
}

// A kernel that is busy, or has no memory, accepts nothing: the next enter submits the same again.
func TestTransientEnterErrors(t *testing.T) {
	r := newTestRing(t)
	const nops = 5
	for _, errno := range []syscall.Errno{unix.EBUSY, unix.EAGAIN, unix.EINTR, unix.ENOMEM} {
		submitNops(r, nops)
		r.handleEnterResult(0, errno)
		if left := r.tail - r.submitted; left != nops || r.broken != 0 {
			t.Fatalf("after %v %d submissions are left, want %d; broken: %d", errno, left, nops, r.broken)
		}
		came := 0
		if consumeCompletions(t, r, func(cqe) { came++ }); came != nops {
			t.Errorf("after %v %d completions came, want %d", errno, came, nops)
		}
	}
	// The kernel had no memory to keep a completion, which is lost.
	if r.handleEnterResult(0, unix.EBADR); r.broken != unix.EBADR {
		t.Errorf("after a lost completion broken is %d, want EBADR", r.broken)
	}
}

// Events are not lost while the completion queue is full: bytes are echoed, and the eventfd can be signalled
// again.
func TestCompletionQueueOverflow(t *testing.T) {
	h := &handler{}
	full := make(chan net.Addr) // receives the talker's address
	h.received = func(in []byte) {
		switch string(in) {
		case "flood":
			overflowCompletionQueue(t, h.driver, full)
		case "ring":
			checkEventfdWatched(t, h.driver)
		}
	}
	e := startTestEngine(t, h)
	flooding, talking := dialEngine(t, e), dialEngine(t, e)
	for range 3 { // frequent input gets a receive
		talking.ExchangeLine("hello", "hello")
	}
	flooding.Send("flood")
	full <- talking.LocalAddr()
	talking.ExchangeLine("to a full queue", "to a full queue")
	talking.ExchangeLine("hello again", "hello again")
	flooding.Expect("flood")
	flooding.Send("ring")
	flooding.Expect("ring")
	dialEngine(t, e).ExchangeLine("hello", "hello")
	if n := len(h.closed); n != 0 {
		t.Errorf("%d connections were closed: %v", n, <-h.closed)
	}
}

// overflowCompletionQueue fills the queue on the loop, signals the eventfd, and makes the kernel receive what
// the talker sends.
func overflowCompletionQueue(t *testing.T, d *driver, talkerAddr <-chan net.Addr) {
	for range 2 * cqEntries {
		d.submitCancel(12345) // of nothing: completes at once
	}
	d.ring.enter(0, 0)
	d.loop.Eventfd().Signal()
	talker := (<-talkerAddr).String()
	var c *engine.Conn
	d.loop.ForEachConn(func(each *engine.Conn) {
		if each.Peer().String() == talker {
			c = each
		}
	})
	if c == nil || c.DriverFlags()&receiving == 0 {
		t.Error("the talker is not being received from")
		return
	}
	unix.Poll([]unix.PollFd{{Fd: c.FD(), Events: unix.POLLIN}}, int(testkit.Timeout.Milliseconds()))
	enterUntil(t, d.ring, "the kernel has taken the bytes", func() bool {
		_, _, err := unix.Recvfrom(int(c.FD()), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err == unix.EAGAIN
	})
	if n := d.ring.completionCount(); n != cqEntries {
		t.Errorf("%d completions, want %d: there was room", n, cqEntries)
	}
}

// checkEventfdWatched checks, on the loop, that the ring watches the eventfd.
func checkEventfdWatched(t *testing.T, d *driver) {
	d.ring.enter(enterGetEvents, 0)
	before := d.ring.completionCount()
	d.loop.Eventfd().Signal()
	enterUntil(t, d.ring, "the eventfd is heard", func() bool { return d.ring.completionCount() > before })
}

func enterUntil(t *testing.T, r *ring, what string, condition func() bool) {
	for end := time.Now().Add(testkit.Timeout); ; {
		if r.enter(enterGetEvents, 0); condition() {
			return
		}
		if time.Now().After(end) {
			t.Errorf("waited in vain: %s", what)
			return
		}
	}
}
