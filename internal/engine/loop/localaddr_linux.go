package loop

import (
	"net/netip"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file finds local addresses. Any goroutine can ask the kernel for the local address of a connection, unless loops
// have their own descriptor tables. Then FetchLocalAddr asks the loop. A loop must not wait for the answer of another
// loop, because two loops could wait for each other.

var loopsByThread sync.Map

// currentLoop returns the loop that runs on the current thread, or nil if there is none.
func currentLoop() *Loop {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	on, _ := loopsByThread.Load(unix.Gettid())
	l, _ := on.(*Loop)
	return l
}

func (*Loop) OnLoop() bool { return currentLoop() != nil }

func localAddr(c *engine.Conn) netip.AddrPort { return sock.LocalAddr(c.FD()) }

func (l *Loop) FetchLocalAddr(ref engine.Ref) (addr netip.AddrPort, ok bool) {
	switch currentLoop() {
	case l:
		return l.localAddrOf(ref)
	case nil:
	default:
		return addr, false
	}
	done := make(chan struct{})
	if !l.enqueueCallAndWake(func() {
		addr, ok = l.localAddrOf(ref)
		close(done)
	}) {
		return addr, false
	}
	<-done
	return addr, ok
}

// localAddrOf returns the local address of a connection. It must be called on the loop's goroutine.
func (l *Loop) localAddrOf(ref engine.Ref) (_ netip.AddrPort, ok bool) {
	c := ref.ConnIfOwnedBy(&l.host)
	if c == nil {
		return netip.AddrPort{}, false
	}
	return localAddr(c), true
}
