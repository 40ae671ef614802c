package loop

import (
	"net/netip"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Local addresses. Any goroutine can ask the kernel for the local address of a connection, unless loops have
// descriptor tables of their own. Then a remote call asks the loop. Other goroutines may wait for it; loops
// must not, because two could wait for each other.

var loopsByThread sync.Map

// currentLoop returns the loop on whose thread the caller runs, or nil. The thread is locked because another
// thread could become a loop's after a move.
func currentLoop() *Loop {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	on, _ := loopsByThread.Load(unix.Gettid())
	l, _ := on.(*Loop)
	return l
}

// OnLoop implements engine.Loop.
func (*Loop) OnLoop() bool { return currentLoop() != nil }

// localAddr implements Host.LocalAddr.
func localAddr(c *engine.Conn) netip.AddrPort { return sock.LocalAddr(c.FD()) }

// FetchLocalAddr implements engine.Loop.
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

// localAddrOf must be called on the loop. A connection with a worker keeps its descriptor.
func (l *Loop) localAddrOf(ref engine.Ref) (netip.AddrPort, bool) {
	c := ref.ConnOwnedBy(&l.host)
	if c == nil {
		return netip.AddrPort{}, false
	}
	return localAddr(c), true
}
