package supervisor

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is what an operator commands of all workers. A command goes from where
// it is given to the relay, as broadcasts do, and from there to all workers. The
// relay remembers whether anything is to be accepted. When a worker serves that has
// been started again, its keeper has the relay tell it: until then it accepts.

// The commands: the first byte of what follows the head of a frame.
const (
	holds   = 'h'
	resumes = 'r'
	expels  = 'x' // the address and port follow, as netip.AddrPort marshals them
	reminds = 'm' // to the relay alone: a worker is new
)

func holdFrame(on bool) []byte {
	if on {
		return frameOf(commands, []byte{holds})
	}
	return frameOf(commands, []byte{resumes})
}

func expelFrame(peer netip.AddrPort) []byte {
	at, _ := peer.MarshalBinary() // which can't fail
	return frameOf(commands, append([]byte{expels}, at...))
}

// Hold has all workers accept nothing, or accept again.
func (w *Worker) Hold(on bool) error { return w.out.put(holdFrame(on), 0) }

// Expel closes the connections from a peer in all workers.
func (w *Worker) Expel(peer netip.AddrPort) error { return w.out.put(expelFrame(peer), 0) }

// Hold implements engine.Engine, as Worker.Hold does. Workers that drain accept nothing.
func (s *Supervisor) Hold(on bool) error {
	if closed(s.draining) {
		return engine.ErrClosed
	}
	return s.command(holdFrame(on))
}

// Expel implements engine.Engine, as Worker.Expel does.
func (s *Supervisor) Expel(peer netip.AddrPort) error { return s.command(expelFrame(peer)) }

// command leaves one for the relay. Workers that drain have connections to close.
func (s *Supervisor) command(frame []byte) error {
	if closed(s.done) {
		return engine.ErrClosed
	}
	select {
	case s.relayed <- frame:
		return nil
	default:
		return engine.ErrFull
	}
}

// remind has the relay tell a worker that is new what was commanded before.
func (s *Supervisor) remind(l life) {
	select {
	case s.relayed <- frameOf(commands, []byte{reminds}):
	case <-l.ended():
	case <-s.draining:
	}
}

// memory is what the relay remembers: the command that holds, nil for none.
type memory struct{ frame []byte }

// keep takes note of what is passed on, and says what is: nil for nothing.
func (m *memory) keep(frame []byte) []byte {
	if frame[0] != commands {
		return frame
	}
	switch frame[headSize] {
	case holds:
		m.frame = frame
	case resumes:
		m.frame = nil
	case reminds:
		return m.frame
	}
	return frame
}

// obeyCommand does in a worker what is commanded. What its engine has no room for
// is logged; one that has ended has nothing left to do.
func obeyCommand(e engine.Engine, command []byte, log *slog.Logger) {
	var err error
	switch command[0] {
	case holds, resumes:
		err = e.Hold(command[0] == holds)
	case expels:
		var peer netip.AddrPort
		if err = peer.UnmarshalBinary(command[1:]); err == nil && !peer.IsValid() {
			err = errors.New("no address")
		}
		if err == nil {
			err = e.Expel(peer)
		}
	}
	if err != nil && err != engine.ErrClosed {
		log.LogAttrs(context.Background(), slog.LevelError, "an operator's command is dropped for the connections of this worker process",
			slog.String("error", err.Error()))
	}
}
