package supervisor

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
)

// BroadcastToAllConns implements engine.Engine. If p is longer than maxBroadcast, it returns engine.ErrTooLarge. If
// the queue of broadcasts is full, it returns engine.ErrFull.
func (s *Supervisor) BroadcastToAllConns(p []byte) error {
	frame, err := encodeBroadcast(p)
	if err != nil {
		return err
	}
	return s.tryEnqueueRelayFrame(frame, s.draining)
}

// PauseAccept implements engine.Engine. It makes all workers stop accepting connections if paused is true, and accept
// connections again if paused is false. It fails during a drain.
func (s *Supervisor) PauseAccept(paused bool) error {
	return s.tryEnqueueRelayFrame(encodePauseOrResumeAccept(paused), s.draining)
}

// QueueCloseOfPeerConns implements engine.Engine. It asks all workers, including workers that drain, to close the
// connections of a peer.
func (s *Supervisor) QueueCloseOfPeerConns(peer netip.AddrPort) error {
	return s.tryEnqueueRelayFrame(encodeClosePeerConns(peer), s.done)
}

func (s *Supervisor) tryEnqueueRelayFrame(frame []byte, stopped <-chan struct{}) error {
	if isClosed(stopped) {
		return engine.ErrClosed
	}
	select {
	case s.messages <- frame:
		return nil
	default:
		return engine.ErrFull
	}
}

// requestPauseStateResend makes the relay send the current pause or resume command to all workers again. Call it when a
// new worker has begun to serve, because the new worker has not received the command. If the queue is full, it waits
// for space until the supervisor drains or the new worker has ended. The argument unlessEnded is the new worker.
func (s *Supervisor) requestPauseStateResend(unlessEnded process) {
	select {
	case s.messages <- nil:
	case <-unlessEnded.ended():
	case <-s.draining:
	}
}

// relayFramesRememberingPause sends each queued frame to all workers, until the channel named ended is closed. A nil
// frame is a request to send the current pause or resume command again.
func (s *Supervisor) relayFramesRememberingPause(ended <-chan struct{}) {
	var currentCommand []byte
	for {
		var frame []byte
		select {
		case frame = <-s.messages:
		case <-ended:
			return
		}
		switch {
		case frame == nil:
			frame = currentCommand
		case frame[0] == kindPause, frame[0] == kindResume && s.cfg.IsSuccessor:
			currentCommand = frame
		case frame[0] == kindResume:
			currentCommand = nil
		}
		if frame != nil {
			s.enqueueForServingWorkersOrLog(frame)
		}
	}
}

func (s *Supervisor) enqueueForServingWorkersOrLog(frame []byte) {
	s.mu.Lock()
	all := slices.Clone(s.workers)
	s.mu.Unlock()
	for index, w := range all {
		p := w.process
		if p == nil {
			continue
		}
		if err := p.enqueueFrameIfServing(frame); errors.Is(err, engine.ErrFull) {
			s.cfg.Log.Error("worker process does not read messages; dropping a broadcast or command for it",
				"worker", index, "pid", p.pid(), "bytes", len(frame)-frameHeaderSize)
		}
	}
}
