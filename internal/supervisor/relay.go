package supervisor

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/myriad-go/myriad/internal/engine"
)

// Broadcast implements engine.Engine: it has a message sent to the connections of all
// workers. It returns engine.ErrFull when too many wait, and engine.ErrTooLarge beyond
// maxBroadcast.
func (s *Supervisor) Broadcast(p []byte) error {
	frame, err := broadcastFrame(p)
	if err != nil {
		return err
	}
	return s.enqueue(frame, s.draining)
}

// PauseAccept implements engine.Engine: all workers accept nothing, or accept again. Workers
// that drain accept nothing.
func (s *Supervisor) PauseAccept(on bool) error { return s.enqueue(holdFrame(on), s.draining) }

// ClosePeerConns implements engine.Engine: it closes the connections from a peer in all workers,
// those that drain included.
func (s *Supervisor) ClosePeerConns(peer netip.AddrPort) error {
	return s.enqueue(expelFrame(peer), s.done)
}

// enqueue leaves a message for the relay, until end.
func (s *Supervisor) enqueue(frame []byte, end <-chan struct{}) error {
	if closed(end) {
		return engine.ErrClosed
	}
	select {
	case s.messages <- frame:
		return nil
	default:
		return engine.ErrFull
	}
}

// repeatCommand has the relay repeat the command in force, for a new worker.
func (s *Supervisor) repeatCommand(p process) {
	select {
	case s.messages <- nil:
	case <-p.ended():
	case <-s.draining:
	}
}

// relay sends each message to all workers, until they have ended. It remembers the command
// in force, nil for none: workers that start later accept, or do not if the supervisor
// succeeds another process, until they get it.
func (s *Supervisor) relay(ended <-chan struct{}) {
	var inForce []byte
	for {
		var frame []byte
		select {
		case frame = <-s.messages:
		case <-ended:
			return
		}
		switch {
		case frame == nil:
			frame = inForce
		case frame[0] == kindPause, frame[0] == kindResume && s.cfg.Succeeds:
			inForce = frame
		case frame[0] == kindResume:
			inForce = nil
		}
		if frame != nil {
			s.sendAll(frame)
		}
	}
}

// sendAll sends a message to all workers that serve.
func (s *Supervisor) sendAll(frame []byte) {
	s.mu.Lock()
	all := slices.Clone(s.workers)
	s.mu.Unlock()
	for index, w := range all {
		p := w.process
		if p == nil {
			continue
		}
		if err := p.send(frame); errors.Is(err, engine.ErrFull) {
			s.cfg.Log.Error("worker process takes no messages; a broadcast or command for its connections is dropped",
				"worker", index, "pid", p.pid(), "bytes", len(frame)-headSize)
		}
	}
}
