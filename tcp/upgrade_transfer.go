package tcp

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/broadcastlog"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// Besides connections, an upgrade transfers counters, the handler's state and broadcasts.
//
// The old process pauses broadcasts, saves the state and sends it together with one end of a socket pair, the peer
// connection. After it has handed over the connections, it sends its counters. It then releases the queued broadcasts
// to its connections and to the peer.
//
// The new process queues broadcasts from its start. It first sends the broadcasts that the peer had queued, and then
// its own. From then on, each process forwards its broadcasts to the other until one of them ends. Finally, the old
// process sends what it has counted since its first counters.

const maxSavedState = 1 << 30

// An upgrade queues broadcasts for at most holdTimeout, and then sends the queue within broadcastTimeout.
var holdTimeout, broadcastTimeout = 10 * time.Second, 10 * time.Second

// upgradeTransfer is the state of a Server for transferring counters, broadcasts and handler states in an upgrade.
// Server.mu guards the fields from predecessorCounts to peersClosed.
type upgradeTransfer struct {
	predecessorCounts    engine.Counts               // of earlier processes
	predecessorListeners []upgrade.ListenerCounts    // of earlier processes
	sentCounts           engine.Counts               // sent to the new process
	successorPeer        *broadcastlog.Peer          // nil if there is no new process
	peers                map[*broadcastlog.Peer]bool // peers whose broadcasts are being read
	peersClosed          bool                        // no more peers are accepted
	peerReaders          sync.WaitGroup
	broadcastsHandedOver atomic.Bool   // see HandedOver
	resumeOnce           sync.Once     // for replayQueueAndResumeOnce
	handoverDone         chan struct{} // closed when the predecessor has handed over everything; nil if there is none
	backlogDone          chan struct{} // closed when this process has sent its queue; nil if there is no predecessor
}

type outgoingUpgrade struct {
	s                 *Server
	state, peerSocket *os.File // nil if there is none
	peer              *broadcastlog.Peer
	resumeOnce        sync.Once
	resumeTimer       *time.Timer // resumes broadcasts after holdTimeout
}

func (s *Server) awaitPredecessorHandover(ctx context.Context) error {
	if s.handoverDone == nil {
		return nil
	}
	for _, done := range []chan struct{}{s.handoverDone, s.backlogDone} {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("the previous upgrade has not completed: %w", context.Cause(ctx))
		}
	}
	return nil
}

func (s *Server) pauseAndPrepareUpgrade(ctx context.Context) (d *outgoingUpgrade, err error) {
	d = &outgoingUpgrade{s: s}
	waiting, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	if err = s.pauseTicks(waiting); err != nil { // first, because OnTick may broadcast
		return nil, err
	}
	if err = s.broadcasts.Load().Pause(waiting); err != nil {
		d.resumeAndClose(false)
		return nil, fmt.Errorf("waiting for broadcasts in progress: %w", err)
	}
	if d.state, err = s.saveHandlerStates(); err != nil {
		s.rateLimitedLogger().Error("handler state was lost", "error", err)
	}
	pair, err := upgrade.NewBroadcastSocketpair()
	if err == nil {
		d.peerSocket = pair[1]
		d.peer, err = broadcastlog.NewPeer(pair[0], s.maxHeldBytes(), false)
		_ = pair[0].Close()
	}
	if err != nil {
		d.resumeAndClose(false)
		return nil, err
	}
	return d, nil
}

func (d *outgoingUpgrade) resumeBroadcastsAfterTimeout() {
	d.resumeTimer = time.AfterFunc(holdTimeout, func() { d.addPeerAndResumeOnce(d.peer) })
}

func (d *outgoingUpgrade) addPeerAndResumeOnce(peerOrNil *broadcastlog.Peer) {
	d.resumeOnce.Do(func() {
		d.s.broadcastsHandedOver.Store(peerOrNil != nil) // before the reader starts, because the reader resets it
		if peerOrNil != nil && !d.s.addPeerAndStartReading(peerOrNil, true) {
			d.s.broadcastsHandedOver.Store(false)
			peerOrNil = nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), broadcastTimeout)
		defer cancel()
		d.s.broadcasts.Load().DeliverQueueAndResume(ctx, peerOrNil)
	})
}

// resumeAndClose resumes broadcasts and closes the files. If no connections have moved, it also resumes
// ticks.
func (d *outgoingUpgrade) resumeAndClose(connsMoved bool) {
	if d.resumeTimer != nil {
		d.resumeTimer.Stop()
	}
	if connsMoved {
		d.addPeerAndResumeOnce(d.peer)
	} else {
		d.addPeerAndResumeOnce(nil)
		d.s.resumeTicks()
		if d.peer != nil {
			d.peer.Abort()
			d.peer.FlushAndClose()
		}
	}
	for _, f := range []*os.File{d.state, d.peerSocket} {
		if f != nil {
			_ = f.Close()
		}
	}
}

func (d *outgoingUpgrade) newDoneRememberingSentCounts() (done upgrade.Done) {
	s := d.s
	for _, l := range s.ListenerStats() {
		done.Listeners = append(done.Listeners, upgrade.ListenerCounts{Accepted: l.Accepted, Refused: l.Refused})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.engine.ListenerStats() {
		done.Listeners[i].Network, done.Listeners[i].Addr = at.Addr.Network(), upgradeMatchAddr(&s.activeListeners[i], at.Addr)
	}
	s.sentCounts = s.engine.Counters()
	s.sentCounts.Add(&s.predecessorCounts)
	done.Counters = s.sentCounts.NonzeroCountersByName()
	return done
}

func (s *Server) addPredecessorCounts(counters map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.predecessorCounts.AddByName(counters)
}

func (s *Server) predecessorListenerCountsLocked(l *Listener, addr net.Addr) upgrade.ListenerCounts {
	for _, base := range s.predecessorListeners {
		if base.Network == addr.Network() && base.Addr == upgradeMatchAddr(l, addr) {
			return base
		}
	}
	return upgrade.ListenerCounts{}
}

func (s *Server) awaitAndAddPredecessorCounts(p *upgrade.Predecessor) {
	d, err := p.AnswerProbesUntilDone()
	if err != nil {
		return // the old process has died, or this server has ended
	}
	s.addPredecessorCounts(d.Counters)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.predecessorListeners = d.Listeners
}

func (s *Server) restoreStateAndAddBroadcastPeer(stateFile, peerSocket *os.File) {
	if stateFile != nil {
		if err := s.restoreHandlerStates(stateFile); err != nil {
			s.rateLimitedLogger().Error("handler state was lost", "error", err)
		}
	}
	if peerSocket == nil {
		return
	}
	l, err := broadcastlog.NewPeer(peerSocket, s.maxHeldBytes(), true)
	if err != nil {
		s.rateLimitedLogger().Error("broadcasts from the old process were lost", "error", err)
		return
	}
	s.addPeerAndStartReading(l, false)
}

func (s *Server) finishHandoverResumingBroadcastsIfNoPeer() {
	s.mu.Lock()
	linked := len(s.peers) > 0
	s.mu.Unlock()
	if !linked { // otherwise handlePeerFramesUntilClosed resumes broadcasts
		s.replayQueueAndResumeOnce(nil)
	}
	close(s.handoverDone)
}

// replayQueueAndResumeOnce sends the broadcasts that this process has queued during the upgrade, and stops queueing. If
// peerToAdd is not nil, the queued and all later broadcasts also go to this peer. In the new process, call it after the
// old process has sent its own queue. Only the first call has an effect.
func (s *Server) replayQueueAndResumeOnce(peerToAdd *broadcastlog.Peer) {
	s.resumeOnce.Do(func() {
		defer close(s.backlogDone)
		ctx, cancel := context.WithTimeout(context.Background(), broadcastTimeout)
		defer cancel()
		s.broadcasts.Load().DeliverQueueAndResume(ctx, peerToAdd)
	})
}

// addPeerAndStartReading adds peer, which is a link to the successor or predecessor process, and starts to read the
// broadcasts of that process. If the peers are already closed, it aborts peer and returns false.
func (s *Server) addPeerAndStartReading(peer *broadcastlog.Peer, peerIsSuccessor bool) (added bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.peersClosed {
		peer.Abort()
		return false
	}
	if s.peers == nil {
		s.peers = make(map[*broadcastlog.Peer]bool)
	}
	s.peers[peer] = true
	if peerIsSuccessor {
		s.successorPeer = peer
	}
	s.peerReaders.Go(func() { s.handlePeerFramesUntilClosed(peer, peerIsSuccessor) })
	return true
}

func (s *Server) handlePeerFramesUntilClosed(peer *broadcastlog.Peer, peerIsSuccessor bool) {
	g, ahead := s.broadcasts.Load(), !peerIsSuccessor
	err := peer.ReceiveFrames(broadcastlog.FrameHandler{
		OnBroadcast: func(m broadcastlog.Broadcast) {
			if ahead {
				g.DeliverEvenIfPaused(m)
			} else {
				g.DeliverAndForwardToOtherPeers(m, peer)
			}
		},
		OnResumed: func() {
			if ahead {
				ahead = false
				s.replayQueueAndResumeOnce(peer)
			}
		},
		OnCounters: func(p []byte) {
			var counters map[string]int64
			if json.Unmarshal(p, &counters) == nil {
				s.addPredecessorCounts(counters)
			}
		},
	})
	if err != nil {
		s.rateLimitedLogger().Error("broadcasts from the other process were lost", "error", err)
	}
	if !peerIsSuccessor {
		s.replayQueueAndResumeOnce(nil) // the peer may have died before OnResumed
	}
	g.RemovePeer(peer)
	if peerIsSuccessor {
		s.broadcastsHandedOver.Store(false)
	}
	peer.FlushAndClose()
	s.mu.Lock()
	delete(s.peers, peer)
	s.mu.Unlock()
}

func (s *Server) sendCountersToSuccessorAndClosePeers() {
	s.mu.Lock()
	s.peersClosed = true
	if s.successorPeer != nil {
		since := s.engine.Counters()
		since.Add(&s.predecessorCounts)
		for i := range since {
			since[i] -= s.sentCounts[i]
		}
		p, _ := json.Marshal(since.NonzeroCountersByName()) // a map of numbers can be encoded
		s.successorPeer.EnqueueCounters(p)
	}
	var all []*broadcastlog.Peer
	for l := range s.peers {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.FlushAndClose()
	}
	s.peerReaders.Wait()
}

// stateHeader precedes the state of each handler in the state file. Listener is the number of a listener with this
// handler, or -1 for Server.Handler. Size is the size of the state in bytes.
type stateHeader struct{ Listener, Size int64 }

const stateHeaderSize = 16

// saveHandlerStates makes each StateMigrator write its state, and returns a file with all states. If some states can't
// be saved, f contains the others, and err is not nil. In a supervisor, f is nil.
func (s *Server) saveHandlerStates() (f *os.File, err error) {
	if s.isSupervisor() {
		return nil, nil
	}
	if f, err = upgrade.NewMemoryStateFile(); err != nil {
		return nil, err
	}
	var saved []StateMigrator
	at := int64(0)
	for number := len(s.activeListeners) - 1; number >= -1; number-- {
		h, ok := handlerAs[StateMigrator](s.listenerHandler(number))
		if !ok || len(appendIfNew(saved, h)) == len(saved) {
			continue
		}
		saved = append(saved, h)
		w := &limitedWriter{io.NewOffsetWriter(f, at+stateHeaderSize), maxSavedState}
		out := bufio.NewWriterSize(w, 1<<16)
		saveErr := callConvertingPanic(func() error { return errors.Join(h.SaveState(out), out.Flush()) })
		if saveErr == nil {
			header := stateHeader{int64(number), int64(maxSavedState - w.remaining)}
			saveErr = binary.Write(io.NewOffsetWriter(f, at), binary.LittleEndian, header)
			at += stateHeaderSize + header.Size
		}
		err = errors.Join(err, saveErr)
	}
	return f, errors.Join(err, f.Truncate(at)) // removes the part of a state that failed
}

// restoreHandlerStates reads the states in f. It passes each state to the handler in this process that corresponds to
// the handler that saved the state.
func (s *Server) restoreHandlerStates(f *os.File) (err error) {
	in := bufio.NewReaderSize(f, 1<<16)
	for header := (stateHeader{}); binary.Read(in, binary.LittleEndian, &header) == nil; {
		number, state := int(header.Listener), io.LimitReader(in, header.Size)
		if number >= 0 {
			number = s.predecessorNumbers[number]
		}
		h, ok := handlerAs[StateMigrator](s.listenerHandler(number))
		if gone := header.Listener >= 0 && number < 0; !ok || gone || s.isSupervisor() {
			err = errors.Join(err, errors.New("the handler of this process is not a StateMigrator"))
		} else {
			err = errors.Join(err, callConvertingPanic(func() error { return h.RestoreState(state) }))
		}
		_, _ = io.Copy(io.Discard, state) // skips what RestoreState has not read
	}
	return err
}

func callConvertingPanic(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

type limitedWriter struct {
	w         io.Writer
	remaining int
}

func (b *limitedWriter) Write(p []byte) (int, error) {
	if len(p) > b.remaining {
		return 0, fmt.Errorf("the state is larger than %d bytes", maxSavedState)
	}
	b.remaining -= len(p)
	return b.w.Write(p)
}
