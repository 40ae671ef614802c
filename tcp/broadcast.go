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
	// All selects every connection of the server. If All is false, the BroadcastHandler selects connections by Kind and
	// Group. Group is limited to 1 MiB.
	All   bool
	Kind  uint32
	Group string
	// Message is sent to the connections. Broadcast does not change it.
	Message []byte
}

// BroadcastHandler is a Handler or MessageHandler with named groups of connections, such as chat rooms.
type BroadcastHandler interface {
	// SendToGroup sends b.Message to the connections of this process that b.Kind and b.Group select, and returns their
	// number. Server.Broadcast calls SendToGroup. During an upgrade, a goroutine of the server also calls it, possibly
	// concurrently, for broadcasts that were queued or come from the other process. SendToGroup must not retain
	// b.Message. If it changes the handler's state, such as a newest value, the change happens in both processes.
	SendToGroup(b Broadcast) (receivers int)
}

// Held is the result of a Broadcast that was queued during an upgrade: the number of its receivers is not known yet.
const Held = broadcastlog.Queued

// Broadcast sends a message to all connections of the server. For a group, it calls the BroadcastHandler on this
// goroutine. If Listeners have their own handlers, it calls each handler that is a BroadcastHandler once. It does not
// block. It returns the sum of the results of SendToGroup, or 0 for All, whose receivers are not counted.
// Broadcasts of one goroutine arrive in the order of its calls.
//
// For All, a loop sends the message to a few hundred connections at a time and serves other connections in between.
// Broadcasts and Ref.Send are not ordered with each other. A connection that opens during a broadcast may or may not
// get the message. Server.SlowConsumer applies to connections whose output is full.
//
// Broadcast returns ErrFull if 1,024 broadcasts to all connections, or Limits.MaxMailBytes of such messages, are
// already in progress. It returns ErrTooLarge for more than Limits.MaxUnsent bytes, and ErrServerClosed before the
// start and after the end. For a group, it returns ErrBadUse if no handler is a BroadcastHandler.
//
// During an upgrade, each connection that stays connected gets every broadcast once and in order. While connections
// move to the new process, Broadcast queues a copy and returns Held. It queues at most Limits.MaxMail messages with
// Limits.MaxMailBytes in all (64 MiB if MaxMailBytes is not set), counting 64 extra bytes per message. Beyond these
// limits it returns ErrFull and sends nothing. It also returns ErrFull if the queue takes longer than 10 seconds to
// send, or if the new process does not accept it. Until the old process ends, both processes send every broadcast, and
// the result counts the receivers in the calling process.
//
// With Server.Processes, a broadcast to a group reaches the connections of this process. A broadcast to all may be sent
// from any worker or the supervisor. All workers get such broadcasts in the same order. A broadcast to all is limited
// to 1 MiB, and every process on its path queues at most 64 broadcasts. A worker that accepts no broadcast for a second
// misses one, which is logged.
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

var errNoGroups = badUse("Broadcast to a group: neither Server.Handler nor Handler of a Listener is a BroadcastHandler")

// Upgrading reports whether an upgrade is in progress. In the old process, the upgrade lasts from before SaveState
// until the process ends or the upgrade fails. In the new process, it lasts from the start until the old process has
// ended. While Upgrading returns false, a BroadcastHandler may call its own SendToGroup directly, which is faster than
// Broadcast. Its SaveState must then wait for such calls to end.
func (s *Server) Upgrading() bool {
	g := s.broadcasts.Load()
	return g != nil && g.IsPausedOrHasPeers()
}

// HandedOver reports whether an upgrade has moved connections from this process to a new one, which also delivers this
// process's broadcasts. It is true from just before the queued broadcasts are sent until the new process ends. A
// BroadcastHandler whose state must change in only one of the processes changes it where HandedOver is false.
func (s *Server) HandedOver() bool { return s.broadcastsHandedOver.Load() }

func (s *Server) maxHeldBytes() int { return cmp.Or(s.Limits.MaxMailBytes, 64<<20) }

// initBroadcastLogPausedIfUpgrading creates the queue for broadcasts during upgrades. If this process takes over from
// another one, the queue holds broadcasts until the transfer of connections is complete.
func (s *Server) initBroadcastLogPausedIfUpgrading(e engine.Engine, l Limits) {
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
			log.Error("broadcast made during the upgrade lost", "error", err)
		}
	}
	if s.predecessor != nil {
		_ = g.Pause(context.Background()) // nobody broadcasts yet
	}
	s.broadcasts.Store(g)
}
