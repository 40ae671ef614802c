package loop

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file is how a loop comes to connections that somebody else has accepted. A chore
// brings it a descriptor of its own. A shard has to fetch that out of the process's table;
// so a goroutine, which is on another thread, keeps the one there until it has.

func (g *group) Adopt(nc net.Conn, listener int, read []byte) error {
	to, read := g.loops[g.next.Add(1)%uint64(len(g.loops))], slices.Clone(read)
	if g.cfg.MaxConnsPerShard == 0 {
		_, err := to.adopt(nc, listener, read, nil)
		if err == nil {
			_ = nc.Close() // the loop has its own descriptor
		}
		return err
	}
	if best := g.roomiest(); best != nil {
		to = best
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopping.Load() {
		return engine.ErrClosed
	}
	result := make(chan error, 1)
	g.adopting.Go(func() {
		fetched := make(chan struct{})
		fd, err := to.adopt(nc, listener, read, fetched)
		result <- err
		if err == nil {
			<-fetched
			sock.Close(fd)
			_ = nc.Close()
		}
	})
	return <-result
}

// adopt leaves a connection for the loop, as a descriptor. A shard closes fetched when it
// has one of its own.
func (l *Loop) adopt(nc net.Conn, listener int, read []byte, fetched chan struct{}) (fd int32, err error) {
	if l.adopts.Add(1) > maxOrders {
		l.adopts.Add(-1)
		return -1, engine.ErrFull
	}
	peer := netip.AddrPort{}
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		peer = a.AddrPort()
	}
	fd, err = sock.Detach(nc)
	if err == nil && !l.addChore(func() { l.receive(fd, listener, peer, read, fetched) }) {
		sock.Close(fd)
		err = engine.ErrClosed
	}
	if err != nil {
		l.adopts.Add(-1)
	}
	return fd, err
}

// receive takes such a connection.
func (l *Loop) receive(fd int32, listener int, peer netip.AddrPort, read []byte, fetched chan struct{}) {
	l.adopts.Add(-1)
	if fetched != nil { // and who waits for that closes fd, which is not in this table
		own, err := sock.Fetch(fd)
		close(fetched)
		if err != nil {
			l.counters.Add(engine.AcceptErrors, 1)
			l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
				"a connection could not be adopted by a loop with a descriptor table of its own", slog.String("error", err.Error()))
			return
		}
		fd = own
	}
	if l.wanted.Load() >= stopping {
		sock.Close(fd)
		return
	}
	_ = sock.PrepareConn(fd) // without its options it serves all the same
	sock.SetUserTimeout(fd, l.host.Limits.WriteTimeout, l.group.cfg.DetectsDeadPeersWithin(sock.KeepaliveTimeout))
	if l.acceptor.Blocking {
		_ = sock.SetBlocking(fd)
	}
	if listener < 0 {
		listener = l.host.AdoptedListener()
	}
	l.addAccepted(fd, listener, peer, read)
}
