package tcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/publish"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// This file is what goes to the new process beside connections: counters, the handler's state, and
// broadcasts.
//
// The old process holds broadcasts, saves the state, and sends that with one end of a link. It hands
// the connections over, says its counters, and releases what was held, here and to the link. The new
// process has held broadcasts since its start. It runs what comes by the link at once, until it hears
// that there is no more of what was held, and then its own. After that both pass broadcasts on, until
// one of them ends. The old one says at its end what it has counted since.

// maxSavedState is the most bytes that SaveState writes.
const maxSavedState = 1 << 30

// broadcastTimeout bounds how long Hold waits for broadcasts in progress, and for how long more messages are held
// while those that were are run; holdTimeout how long they are held before.
var broadcastTimeout, holdTimeout = 10 * time.Second, 10 * time.Second

// upgradeTransfer is a Server's part in that.
type upgradeTransfer struct {
	baseCounts    engine.Counts            // of processes before; guarded by Server.mu, as the others
	baseListeners []upgrade.ListenerCounts // of them
	sentCounts    engine.Counts            // what the new process was told
	successorPeer *publish.Link            // to the new process; nil if there is none
	peers         map[*publish.Link]bool   // those that are read
	peersClosed   bool                     // there are to be no more
	peerReaders   sync.WaitGroup
	releaseOnce   sync.Once     // broadcasts, after a predecessor
	handoverDone  chan struct{} // closed when a predecessor has handed everything over; nil without
	backlogDone   chan struct{} // closed when what was held until then has been run; nil without
}

// outgoingUpgrade is the old process's side of one upgrade.
type outgoingUpgrade struct {
	s                 *Server
	state, peerSocket *os.File // nil if there is none
	peer              *publish.Link
	releaseOnce       sync.Once
	releaseTimer      *time.Timer // releases after holdTimeout
}

// awaitOwnTakeover waits until this server's own predecessor is done with it, if there was one.
func (s *Server) awaitOwnTakeover(ctx context.Context) error {
	if s.handoverDone == nil {
		return nil
	}
	for _, done := range []chan struct{}{s.handoverDone, s.backlogDone} {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("the upgrade before has not ended: %w", context.Cause(ctx))
		}
	}
	return nil
}

// pauseAndSaveState holds broadcasts, and saves the state.
func (s *Server) pauseAndSaveState(ctx context.Context) (d *outgoingUpgrade, err error) {
	d = &outgoingUpgrade{s: s}
	waiting, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	if err = s.broadcasts.Load().Hold(waiting); err != nil {
		d.finish(false)
		return nil, fmt.Errorf("broadcasts in progress do not end: %w", err)
	}
	if d.state, err = s.saveHandlerState(); err != nil {
		s.logger().Error("the handler's state is lost", "error", err)
	}
	pair, err := upgrade.LinkPair()
	if err == nil {
		d.peerSocket = pair[1]
		d.peer, err = publish.NewLink(pair[0], s.maxHeldBytes(), false)
		_ = pair[0].Close()
	}
	if err != nil {
		d.finish(false)
		return nil, err
	}
	return d, nil
}

// startReleaseTimer is called when the new process takes connections.
func (d *outgoingUpgrade) startReleaseTimer() {
	d.releaseTimer = time.AfterFunc(holdTimeout, func() { d.releaseBroadcasts(d.peer) })
}

// releaseBroadcasts lets broadcasts go on.
func (d *outgoingUpgrade) releaseBroadcasts(peer *publish.Link) {
	d.releaseOnce.Do(func() {
		if peer != nil && !d.s.addPeer(peer, true) {
			peer = nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), broadcastTimeout)
		defer cancel()
		d.s.broadcasts.Load().Release(ctx, peer)
	})
}

// finish ends it: the connections have moved, or all goes on here.
func (d *outgoingUpgrade) finish(moved bool) {
	if d.releaseTimer != nil {
		d.releaseTimer.Stop()
	}
	if moved {
		d.releaseBroadcasts(d.peer)
	} else {
		d.releaseBroadcasts(nil)
		if d.peer != nil {
			d.peer.Abort()
			d.peer.Close()
		}
	}
	for _, f := range []*os.File{d.state, d.peerSocket} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// newDoneMessage is what the new process is told.
func (d *outgoingUpgrade) newDoneMessage() (done upgrade.Done) {
	s := d.s
	for _, l := range s.ListenerStats() {
		done.Listeners = append(done.Listeners, upgrade.ListenerCounts{Accepted: l.Accepted, Refused: l.Refused})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.engine.Listening() {
		done.Listeners[i].Network, done.Listeners[i].Addr = at.Addr.Network(), listenerKey(&s.activeListeners[i], at.Addr)
	}
	s.sentCounts = s.engine.Counters()
	s.sentCounts.Add(&s.baseCounts)
	done.Counters = s.sentCounts.Named()
	return done
}

// addBaseCounts has counters begin where the old process's were.
func (s *Server) addBaseCounts(counters map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.baseCounts.AddNamed(counters)
}

// baseListenerCounts is what processes before have counted of a listener.
func (s *Server) baseListenerCounts(l *Listener, addr net.Addr) upgrade.ListenerCounts {
	for _, base := range s.baseListeners {
		if base.Network == addr.Network() && base.Addr == listenerKey(l, addr) {
			return base
		}
	}
	return upgrade.ListenerCounts{}
}

// awaitFinalCounts takes what the old process has counted, when it has handed everything over.
func (s *Server) awaitFinalCounts(p *upgrade.Predecessor) {
	d, err := p.Wait()
	if err != nil {
		return // it has gone, or this server has ended
	}
	s.addBaseCounts(d.Counters)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.baseListeners = d.Listeners
}

// importState takes what comes before the first connection.
func (s *Server) importState(state, socket *os.File) {
	if state != nil {
		if err := s.restoreHandlerState(state); err != nil {
			s.logger().Error("the handler's state is lost", "error", err)
		}
	}
	if socket == nil {
		return
	}
	l, err := publish.NewLink(socket, s.maxHeldBytes(), true)
	if err != nil {
		s.logger().Error("broadcasts of the old process do not come here", "error", err)
		return
	}
	s.addPeer(l, false)
}

// finishImport ends the taking over.
func (s *Server) finishImport() {
	s.mu.Lock()
	linked := len(s.peers) > 0
	s.mu.Unlock()
	if !linked { // otherwise the link says when
		s.releaseBroadcasts(nil)
	}
	close(s.handoverDone)
}

// releaseBroadcasts runs what was held here until what was held in the old process has come.
func (s *Server) releaseBroadcasts(peer *publish.Link) {
	s.releaseOnce.Do(func() {
		defer close(s.backlogDone)
		ctx, cancel := context.WithTimeout(context.Background(), broadcastTimeout)
		defer cancel()
		s.broadcasts.Load().Release(ctx, peer)
	})
}

// addPeer reads what comes by a link, to a successor or from a predecessor, until it ends.
func (s *Server) addPeer(peer *publish.Link, successor bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peersClosed {
		peer.Abort()
		return false
	}
	if s.peers == nil {
		s.peers = make(map[*publish.Link]bool)
	}
	s.peers[peer] = true
	if successor {
		s.successorPeer = peer
	}
	s.peerReaders.Go(func() { s.readPeer(peer, successor) })
	return true
}

func (s *Server) readPeer(peer *publish.Link, successor bool) {
	g, ahead := s.broadcasts.Load(), !successor
	err := peer.Receive(publish.Receiver{
		Message: func(m publish.Broadcast) {
			if ahead {
				g.RunNow(m)
			} else {
				g.Forwarded(m, peer)
			}
		},
		Released: func() {
			if ahead {
				ahead = false
				s.releaseBroadcasts(peer)
			}
		},
		Counters: func(p []byte) {
			var counters map[string]int64
			if json.Unmarshal(p, &counters) == nil {
				s.addBaseCounts(counters)
			}
		},
	})
	if err != nil {
		s.logger().Error("broadcasts of the other process do not come here any more", "error", err)
	}
	if !successor {
		s.releaseBroadcasts(nil) // it has died before
	}
	g.Unlink(peer)
	peer.Close()
	s.mu.Lock()
	delete(s.peers, peer)
	s.mu.Unlock()
}

// closePeers ends all links, when the engine has ended.
func (s *Server) closePeers() {
	s.mu.Lock()
	s.peersClosed = true
	if s.successorPeer != nil {
		since := s.engine.Counters()
		since.Add(&s.baseCounts)
		for i := range since {
			since[i] -= s.sentCounts[i]
		}
		p, _ := json.Marshal(since.Named()) // numbers by name can be written
		s.successorPeer.SendCounters(p)
	}
	var all []*publish.Link
	for l := range s.peers {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.Close()
	}
	s.peerReaders.Wait()
}

// saveHandlerState has the handler write its state into a file in memory; nil if it has none.
func (s *Server) saveHandlerState() (f *os.File, err error) {
	h, ok := handlerAs[StateMigrator](s.Handler)
	if !ok || s.isSupervisor() {
		return nil, nil
	}
	if f, err = upgrade.StateFile(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			f = nil
		}
	}()
	out := bufio.NewWriterSize(&limitedWriter{f, maxSavedState}, 1<<16)
	if err = recoverAsError(func() error { return h.SaveState(out) }); err == nil {
		err = out.Flush()
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	return f, err
}

func (s *Server) restoreHandlerState(f *os.File) error {
	h, ok := handlerAs[StateMigrator](s.Handler)
	if !ok || s.isSupervisor() {
		return errors.New("there is no StateMigrator in this process")
	}
	return recoverAsError(func() error { return h.RestoreState(bufio.NewReaderSize(f, 1<<16)) })
}

// recoverAsError makes an error of a panic.
func recoverAsError(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// limitedWriter writes so many bytes at most.
type limitedWriter struct {
	w         io.Writer
	remaining int
}

func (b *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > b.remaining {
		return 0, fmt.Errorf("the state has more than %d bytes", maxSavedState)
	}
	b.remaining -= len(p)
	return b.w.Write(p)
}
