package loop

import (
	"net/netip"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is our side's address of a connection. Anyone can ask the kernel for it, but
// where loops have descriptor tables of their own only the loop: then it is a chore, for
// which all may wait but loops, as two of them could wait for each other.

// threads are those of all loops of this process, by id.
var threads sync.Map

// loopHere is the loop whose thread the caller runs on, nil if that is no loop's. A thread that
// the caller were moved off in between could become a loop's: so it is kept.
func loopHere() *Loop {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	on, _ := threads.Load(unix.Gettid())
	l, _ := on.(*Loop)
	return l
}

// OnLoop implements engine.Loop.
func (*Loop) OnLoop() bool { return loopHere() != nil }

// local is Host.LocalAddr.
func local(c *engine.Conn) netip.AddrPort { return sock.LocalAddr(c.FD()) }

// FetchLocalAddr implements engine.Loop.
func (l *Loop) FetchLocalAddr(r engine.Ref) (addr netip.AddrPort, ok bool) {
	switch loopHere() {
	case l:
		return l.localOf(r)
	case nil:
	default:
		return addr, false
	}
	done := make(chan struct{})
	if !l.addChore(func() {
		addr, ok = l.localOf(r)
		close(done)
	}) {
		return addr, false
	}
	<-done
	return addr, ok
}

// localOf is for the loop. A connection that a worker has keeps its descriptor until it
// is back.
func (l *Loop) localOf(r engine.Ref) (netip.AddrPort, bool) {
	c := r.ConnOwnedBy(&l.host)
	if c == nil {
		return netip.AddrPort{}, false
	}
	return local(c), true
}
