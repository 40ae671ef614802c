package tcp

import (
	"cmp"
	"context"
	"errors"

	"github.com/myriad-go/myriad/internal/broadcastlog"
	"github.com/myriad-go/myriad/internal/engine"
)

// Broadcast is a message of Server.Broadcast.
type Broadcast struct {
	// All selects every connection of the server. Otherwise Kind and Group, of at most 1 MiB, select
	// connections by the rules of the BroadcastHandler.
	All   bool
	Kind  uint32
	Group string
	// Message is what the connections get. It is not changed.
	Message []byte
}

// BroadcastHandler is a Handler, or a MessageHandler, with groups of connections, such as rooms, that
// it finds by a name in any process.
type BroadcastHandler interface {
	// SendToGroup sends b.Message to those connections of this process that b.Kind and b.Group
	// select, and returns their number. Server.Broadcast calls it, or a goroutine of the server for
	// broadcasts that were held or made in the other process, possibly concurrently. It does not keep
	// b.Message. What it changes in the handler, such as a newest value, it changes in both processes.
	SendToGroup(b Broadcast) (receivers int)
}

// Held is the number of receivers of a broadcast that waits for connections that move.
const Held = broadcastlog.Queued

// Broadcast sends a message to all connections of the server, or has the BroadcastHandler send it to
// those of a group, on this goroutine. It returns at once, with the number that SendToGroup returns;
// for all connections, which are not counted, that is 0. Broadcasts of one goroutine arrive in the
// order of its calls.
//
// An upgrade neither loses, repeats nor reorders broadcasts: each connection that stays connected gets each one once.
// While connections move between two processes, Broadcast holds a copy and returns Held; when they have moved, both
// processes send it. From then until the old process has ended, both send what either broadcasts;
// the number of receivers is that of this process. Each hand-over holds at most Limits.MaxMail
// broadcasts, of Limits.MaxMailBytes in all, or 64 MiB where that is not set, with 64 bytes added for
// each. Broadcast returns ErrFull, and nobody gets the message, beyond that, while held broadcasts are still being
// sent after 10 seconds, and if the new process does not take them.
//
// To all connections the server keeps one copy of the message. Each loop walks through its connections, a few
// hundred at a time, and serves others meanwhile; broadcasts that wait together go out in one send.
// They have no order with Ref.Send, and a connection that opens meanwhile may get them or not.
// Server.SlowConsumer decides about connections without room. At most 1,024 may be under way, of
// Limits.MaxMailBytes together; beyond that Broadcast returns ErrFull. It returns ErrTooLarge for
// more than Limits.MaxUnsent bytes, and ErrServerClosed before the start and after the end.
//
// For a group it returns ErrBadUse if the Handler is not a BroadcastHandler.
//
// With Server.Processes a group's broadcast reaches the connections of this process. One to all
// reaches those of all worker processes, from any of them or their supervisor, in one order; it has
// at most 1 MiB, and 64 may wait in each process on the way. A worker process that takes none for a
// second misses one, which is logged.
func (s *Server) Broadcast(b Broadcast) (receivers int, err error) {
	if b.All {
		s.mu.Lock()
		_, err = s.started()
		worker := s.worker
		s.mu.Unlock()
		switch {
		case err != nil:
			return 0, err
		case len(b.Message) > s.limits.MaxUnsent:
			return 0, ErrTooLarge
		case worker != nil:
			return 0, named(worker.Broadcast(b.Message))
		}
	} else if len(b.Group) > broadcastlog.MaxGroupName {
		return 0, ErrTooLarge
	}
	if g := s.broadcasts.Load(); g != nil {
		return g.Broadcast(broadcastlog.Broadcast(b))
	}
	return s.sendToGroup(b) // before the start
}

func (s *Server) sendToGroup(b Broadcast) (receivers int, err error) {
	h, ok := extension[BroadcastHandler](s.Handler)
	if !ok {
		return 0, errNoGroups
	}
	return h.SendToGroup(b), nil
}

var errNoGroups = badUse("Broadcast to a group: the Handler is no BroadcastHandler")

// Upgrading reports whether an upgrade is in progress: in the old process from before SaveState until
// the process ends or the upgrade fails, and in the new one from its start until the old one has
// ended. While it is false, Broadcast to a group does no more than call SendToGroup, which a BroadcastHandler may
// then do itself, for less: its SaveState must wait for calls whose check of Upgrading came first.
func (s *Server) Upgrading() bool {
	g := s.broadcasts.Load()
	return g != nil && g.IsUpgrading()
}

// maxHeld is the most bytes that are held in an upgrade.
func (s *Server) maxHeld() int { return cmp.Or(s.Limits.MaxMailBytes, 64<<20) }

// addBroadcasts makes the gate of broadcasts. It holds them until a predecessor has handed everything
// over.
func (s *Server) addBroadcasts(e engine.Engine, l Limits) {
	log := s.log()
	g := &broadcastlog.Log{ErrFull: ErrFull, MaxMessages: l.MaxMail, MaxBytes: s.maxHeld()}
	g.Deliver = func(b broadcastlog.Broadcast) (int, error) {
		if b.All {
			return 0, named(e.Broadcast(b.Message))
		}
		return s.sendToGroup(Broadcast(b))
	}
	g.OnDropped = func(err error) {
		if !errors.Is(err, ErrServerClosed) { // then nobody is there to miss it
			log.Error("a broadcast that was made during an upgrade is lost here", "error", err)
		}
	}
	if s.predecessor != nil {
		_ = g.Pause(context.Background()) // nobody broadcasts yet
	}
	s.broadcasts.Store(g)
}
