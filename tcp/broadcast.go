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
	// All selects every connection of the server. If All is false, the handlers that implement BroadcastHandler select
	// connections by Kind and Group, whose meaning the application defines. The maximum length of Group is 1 MiB.
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

// BroadcastQueued is a special value that Server.Broadcast returns instead of the number of receivers. It means that an
// upgrade is in progress and that the message was queued. BroadcastQueued is negative.
const BroadcastQueued = broadcastlog.Queued

// Broadcast sends a message to all connections of the server, or to a group. It does not block. Broadcasts from one
// goroutine arrive in the order of the calls.
//
// For a group, Broadcast calls SendToGroup of each handler that is a BroadcastHandler, on the calling goroutine.
// receivers is the sum of the results. If b.All is true, receivers is 0, because the connections are not counted.
//
// If b.All is true, each event loop sends the message to a few hundred connections at a time and serves other
// connections in between. A broadcast may overtake a message of Ref.Send, and vice versa. A connection that opens
// during a broadcast may or may not get the message. Server.SlowConsumer applies to connections whose output is full.
//
// Broadcast fails with
//   - ErrFull if 1,024 broadcasts to all connections are in progress, or if their total size would exceed
//     Limits.MaxMailBytes
//   - ErrTooLarge if a message to all connections exceeds Limits.MaxUnsent, or if Group is too long
//   - ErrServerClosed for a message to all connections before the server has started and after it has ended
//   - ErrBadUse for a group if no handler is a BroadcastHandler
//
// During an upgrade, each connection that stays connected gets every broadcast once and in order. While connections
// move to the new process, Broadcast queues a copy of the message and returns BroadcastQueued. The queue holds at most
// Limits.MaxMail messages. Their total size is limited to Limits.MaxMailBytes or, if MaxMailBytes is not set, to 64
// MiB. Each message counts 64 bytes more than its size. If the queue is full, Broadcast returns ErrFull and sends
// nothing. Broadcast also returns ErrFull if the new process has not accepted the queued messages within 10 seconds.
// Until the old process ends, both processes send every broadcast, and receivers counts only connections of the calling
// process.
//
// With Server.Processes, a broadcast to a group reaches only the connections of the calling process. A broadcast to all
// connections reaches the connections of all workers, and may be sent by any worker or by the supervisor. All workers
// get these broadcasts in the same order. Their messages are limited to 1 MiB. A worker sends such a message to the
// supervisor, which forwards the message to all workers. Each process queues at most 64 messages for another process.
// If the queue for a worker stays full for one second, that worker does not get the broadcast, and the server logs
// this.
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
			return 0, publicError(worker.BroadcastToAllConns(b.Message))
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

// Upgrading reports whether an upgrade is in progress. In the old process, it returns true from just before SaveState
// is called until the process ends or the upgrade fails. In the new process, it returns true from the start until the
// old process has ended.
//
// While Upgrading returns false, a BroadcastHandler may call its own SendToGroup method directly, which is faster than
// Server.Broadcast. If it does so, its SaveState method must wait until all direct calls have returned.
func (s *Server) Upgrading() bool {
	g := s.broadcasts.Load()
	return g != nil && g.IsPausedOrHasPeers()
}

// HandedOver reports whether an upgrade has moved connections from this process to a new process. While it returns
// true, both processes deliver the same broadcasts. Work that must be done only once for each broadcast, such as
// storing it, belongs in the process in which HandedOver returns false. If the new process ends before this one,
// HandedOver returns false again.
func (s *Server) HandedOver() bool { return s.broadcastsHandedOver.Load() }

func (s *Server) maxHeldBytes() int { return cmp.Or(s.Limits.MaxMailBytes, 64<<20) }

// initUpgradeBroadcastLog creates the log that queues broadcasts during upgrades. If this process takes over from an
// old process, the log is paused from the beginning, so it queues all broadcasts.
func (s *Server) initUpgradeBroadcastLog(e engine.Engine, l Limits) {
	log := s.rateLimitedLogger()
	g := &broadcastlog.Log{ErrFull: ErrFull, MaxMessages: l.MaxMail, MaxBytes: s.maxHeldBytes()}
	groups := handlersAs[BroadcastHandler](s)
	g.Deliver = func(b broadcastlog.Broadcast) (int, error) {
		if b.All {
			return 0, publicError(e.BroadcastToAllConns(b.Message))
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
