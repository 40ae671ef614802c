package loop

import (
	"net/netip"
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

// onLoop is Host.OnLoop.
func onLoop() bool {
	_, ok := threads.Load(unix.Gettid())
	return ok
}

// local is Host.LocalAddr.
func local(c *engine.Conn) netip.AddrPort { return sock.LocalAddr(c.FD()) }

// askLocalAddr is Host.AskLocalAddr.
func (l *Loop) askLocalAddr(r engine.Ref) (addr netip.AddrPort, ok bool) {
	on, _ := threads.Load(unix.Gettid())
	switch on {
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
	c := r.On(&l.host)
	if c == nil {
		return netip.AddrPort{}, false
	}
	return local(c), true
}
