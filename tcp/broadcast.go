package tcp

import (
	"cmp"
	"context"
	"errors"

	"github.com/myriad-go/myriad/internal/broadcastlog"
	"github.com/myriad-go/myriad/internal/engine"
)

// Broadcast is a message for Server.Broadcast.
type Broadcast struct {
	// All selects every connection of the server. If All is false, a BroadcastHandler selects connections by Kind and
	// Group. The maximum length of Group is 1 MiB.
	All   bool
	Kind  uint32
	Group string
	// Message is sent to the connections. Broadcast does not change it.
	Message []byte
}

// BroadcastHandler is a Handler or MessageHandler with named groups of connections, such as chat rooms.
type BroadcastHandler interface {
	// SendToGroup sends b.Message to the connections of this process that b.Kind and b.Group select. It returns the
	// number of these connections. Server.Broadcast calls SendToGroup. During an upgrade, a goroutine of the server
	// also calls SendToGroup, possibly concurrently, for queued broadcasts and for broadcasts of the other process.
	// SendToGroup must not retain b.Message. If SendToGroup changes the handler's state, such as a latest value, the
	// change happens in both processes.
	SendToGroup(b Broadcast) (receivers int)
}

// Held is the number of receivers that Server.Broadcast returns if it has queued the message during an upgrade.
const Held = broadcastlog.Queued

// Broadcast sends a message to all connections of the server, or to a group. It does not block. Broadcasts from one
// goroutine arrive in the order of the calls.
//
// For a group, Broadcast calls SendToGroup of each handler that is a BroadcastHandler, on the calling goroutine.
// receivers is the sum of the results. If b.All is true, receivers is 0, because the connections are not counted.
//
// If b.All is true, a loop sends the message to a few hundred connections at a time and serves other connections in
// between. Broadcasts and Ref.Send are not ordered with each other. A connection that opens during a broadcast may or
// may not get the message. Server.SlowConsumer applies to connections whose output is full.
//
// Broadcast fails with
//   - ErrFull if 1,024 broadcasts to all connections are in progress, or if their size would exceed Limits.MaxMailBytes
//   - ErrTooLarge if the message exceeds Limits.MaxUnsent
//   - ErrServerClosed before the start and after the end
//   - ErrBadUse for a group if no handler is a BroadcastHandler
//
// During an upgrade, each connection that stays connected gets every broadcast once and in order. While connections
// move to the new process, Broadcast queues a copy of the message and returns Held. The queue holds at most
// Limits.MaxMail messages and Limits.MaxMailBytes in total. If MaxMailBytes is not set, the queue may hold 64 MiB. Each
// message counts 64 bytes more than its size. If the queue is full, Broadcast returns ErrFull and sends nothing. If
// sending the queue to the new process takes longer than 10 seconds, or if that process rejects it, further calls
// return ErrFull, too. Until the old process ends, both processes send every broadcast, and receivers counts only
// connections of the calling process.
//
// With Server.Processes, a broadcast to a group reaches only the connections of this process. Any worker or the
// supervisor may broadcast to all connections. All workers get these broadcasts in the same order. Such a message is
// limited to 1 MiB. Each process that forwards such messages queues at most 64. If a worker's queue stays full for one
// second, that worker does not get the broadcast, and the server logs this.
func (s *Server) Broadcast(b Broadcast) (receivers int, err error) {
	if b.All {
		s.mu.Lock()
		_, err = s.startedEngineLocked()
		worker := s.worker
		s.mu.Unlock()
		switch {
		case err != nil:
			return 0, err
		case len(b.Message) > s.limits.MaxUnsent:
			return 0, ErrTooLarge
		case worker != nil:
			return 0, publicError(worker.BroadcastToAllWorkers(b.Message))
		}
	} else if len(b.Group) > broadcastlog.MaxGroupName {
		return 0, ErrTooLarge
	}
	if g := s.broadcasts.Load(); g != nil {
		return g.BroadcastOrQueue(broadcastlog.Broadcast(b))
	}
	return sendToGroups(handlersAs[BroadcastHandler](s), b) // before the start
}

func sendToGroups(handlers []BroadcastHandler, b Broadcast) (receivers int, err error) {
	if len(handlers) == 0 {
		return 0, errNoGroups
	}
	for _, h := range handlers {
		receivers += h.SendToGroup(b)
	}
	return receivers, nil
}

var errNoGroups = badUse("Broadcast to a group: neither Server.Handler nor the Handler of a Listener is a BroadcastHandler; expected at least one")

// Upgrading reports whether an upgrade is in progress. In the old process, it lasts from before SaveState until the
// process ends or the upgrade fails; in the new process, from the start until the old process has ended.
//
// While Upgrading returns false, a BroadcastHandler may call its own SendToGroup directly, which is faster than
// Broadcast. SaveState of this handler must wait until direct calls have returned.
func (s *Server) Upgrading() bool {
	g := s.broadcasts.Load()
	return g != nil && g.IsPausedOrHasPeers()
}

// HandedOver reports whether an upgrade has moved connections from this process to a new process. It returns true from
// just before the queued broadcasts are sent until the new process ends. Meanwhile, both processes deliver the same
// broadcasts. Work that must be done only once for each broadcast, such as storing it, belongs in the process in which
// HandedOver returns false.
func (s *Server) HandedOver() bool { return s.broadcastsHandedOver.Load() }

func (s *Server) maxHeldBytes() int { return cmp.Or(s.Limits.MaxMailBytes, 64<<20) }

// initUpgradeBroadcastLog creates the log that queues broadcasts in upgrades. A successor process pauses it at once.
func (s *Server) initUpgradeBroadcastLog(e engine.Engine, l Limits) {
	log := s.rateLimitedLogger()
	g := &broadcastlog.Log{ErrFull: ErrFull, MaxMessages: l.MaxMail, MaxBytes: s.maxHeldBytes()}
	groups := handlersAs[BroadcastHandler](s)
	g.Deliver = func(b broadcastlog.Broadcast) (int, error) {
		if b.All {
			return 0, publicError(e.BroadcastToAllWorkers(b.Message))
		}
		return sendToGroups(groups, Broadcast(b))
	}
	g.OnDropped = func(err error) {
		if !errors.Is(err, ErrServerClosed) { // no connection is left to miss it
			log.Error("a broadcast during the upgrade was lost", "error", err)
		}
	}
	if s.predecessor != nil {
		_ = g.Pause(context.Background()) // nobody broadcasts yet
	}
	s.broadcasts.Store(g)
}
