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

// This file adopts connections that the caller has accepted. A function queued with enqueueCallAndWake passes a
// descriptor to the loop. A loop with its own descriptor table first copies the descriptor from the process's table;
// until then, a goroutine on another thread keeps it open.

func (e *loopEngine) Adopt(conn net.Conn, listener int, alreadyRead []byte) error {
	target, alreadyRead := e.loops[e.nextLoop.Add(1)%uint64(len(e.loops))], slices.Clone(alreadyRead)
	if e.cfg.MaxConnsPerShard == 0 {
		_, err := target.enqueueAdoption(conn, listener, alreadyRead, nil)
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	if best := e.leastLoadedLoopUnlessFull(); best != nil {
		target = best
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.stopping.Load() {
		return engine.ErrClosed
	}
	result := make(chan error, 1)
	e.adoptions.Go(func() {
		copied := make(chan struct{})
		fd, err := target.enqueueAdoption(conn, listener, alreadyRead, copied)
		result <- err
		if err == nil {
			<-copied
			sock.Close(fd)
			_ = conn.Close()
		}
	})
	return <-result
}

// enqueueAdoption duplicates the descriptor of conn, and passes the duplicate, dupFD, to the loop. alreadyRead is input
// that the caller has already read from conn. If the loop has its own descriptor table, copiedToShard must not be nil.
// The loop then copies dupFD into its table and closes the channel copiedToShard. After that, the caller must close
// dupFD.
func (l *Loop) enqueueAdoption(conn net.Conn, listener int, alreadyRead []byte, copiedToShard chan struct{}) (dupFD int32, err error) {
	if l.pendingAdoptions.Add(1) > maxQueuedRequests {
		l.pendingAdoptions.Add(-1)
		return -1, engine.ErrFull
	}
	peer := netip.AddrPort{}
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		peer = a.AddrPort()
	}
	dupFD, err = sock.DupConnDescriptor(conn)
	if err == nil && !l.enqueueCallAndWake(func() { l.addAdoptedConn(dupFD, listener, peer, alreadyRead, copiedToShard) }) {
		sock.Close(dupFD)
		err = engine.ErrClosed
	}
	if err != nil {
		l.pendingAdoptions.Add(-1)
	}
	return dupFD, err
}

func (l *Loop) addAdoptedConn(fd int32, listener int, peer netip.AddrPort, alreadyRead []byte, copiedToShard chan struct{}) {
	l.pendingAdoptions.Add(-1)
	if copiedToShard != nil { // fd is in the process's table; the waiting goroutine closes fd
		own, err := sock.CopyFDFromProcessTable(fd)
		close(copiedToShard)
		if err != nil {
			l.counters.Add(engine.AcceptErrors, 1)
			l.host.Log.LogAttrs(context.Background(), slog.LevelWarn,
				"cannot adopt a connection: copying its descriptor to the shard failed", slog.String("error", err.Error()))
			return
		}
		fd = own
	}
	if l.requestedStopStage.Load() >= stageStopping {
		sock.Close(fd)
		return
	}
	_ = sock.SetConnNoDelayKeepalive(fd) // an error leaves the connection without its socket options
	sock.SetDeadPeerTimeoutFD(fd, l.host.Limits.WriteTimeout, l.engine.cfg.DetectsDeadPeersWithin(sock.KeepaliveTimeout))
	if l.acceptor.Blocking {
		_ = sock.SetBlocking(fd)
	}
	if listener < 0 {
		listener = l.host.ListenerNumberForAdopted()
	}
	l.openOrRejectAcceptedConn(fd, listener, peer, alreadyRead)
}
