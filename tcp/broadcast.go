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
	// All selects every connection of the server. Otherwise the BroadcastHandler interprets Kind
	// and Group. Group has at most 1 MiB.
	All   bool
	Kind  uint32
	Group string
	// Message is sent to the connections. It is not changed.
	Message []byte
}

// BroadcastHandler is a Handler or MessageHandler with groups of connections, such as chat rooms,
// that it can look up by name in any process.
type BroadcastHandler interface {
	// SendToGroup sends b.Message to the connections of this process that b.Kind and b.Group
	// select, and returns their number. It is called by Server.Broadcast, or by a goroutine of
	// the server for broadcasts that were queued or made in the other process, possibly
	// concurrently. It must not retain b.Message. State that it changes, such as a newest value,
	// changes in both processes.
	SendToGroup(b Broadcast) (receivers int)
}

// Held is the number of receivers that Broadcast returns for a message that it has queued during
// an upgrade.
const Held = broadcastlog.Queued

// Broadcast sends a message to all connections of the server, or calls the BroadcastHandler on
// this goroutine to send it to a group. It does not block and returns the result of SendToGroup,
// or 0 for All, whose receivers are not counted. Broadcasts of one goroutine arrive in the order
// of its calls.
//
// For All, the server keeps one copy of the message. Each loop sends it to a few hundred
// connections at a time and serves others in between; several waiting broadcasts are sent
// together. There is no order between broadcasts and Ref.Send, and a connection that opens
// meanwhile may or may not get the message. Server.SlowConsumer applies to connections whose
// output is full.
//
// Broadcast returns ErrFull if 1,024 broadcasts to all, or Limits.MaxMailBytes of them, are
// already in progress; ErrTooLarge for more than Limits.MaxUnsent bytes; ErrServerClosed before
// the start and after the end; and, for a group, ErrBadUse if the Handler is not a
// BroadcastHandler.
//
// An upgrade does not lose, repeat or reorder broadcasts: each connection that stays connected
// gets each of them once. While connections move to the new process, Broadcast queues a copy and
// returns Held; both processes send it afterwards. From then until the old process ends, both
// send what either of them broadcasts, and the result counts the receivers in this process. Each
// transfer queues at most Limits.MaxMail broadcasts with Limits.MaxMailBytes in all (64 MiB if
// that is not set), counting 64 extra bytes for each. Broadcast returns ErrFull, and sends the
// message to nobody, beyond these limits, while queued broadcasts are still being sent after 10
// seconds, and if the new process does not accept them.
//
// With Server.Processes, a broadcast to a group reaches the connections of this process. One to
// all may be sent from any worker or from the supervisor; it reaches all workers, in one order.
// It has at most 1 MiB, and each process on the way queues at most 64. A worker that accepts none
// for a second misses one, which is logged.
func (s *Server) Broadcast(b Broadcast) (receivers int, err error) {
	if b.All {
		s.mu.Lock()
		_, err = s.startedEngine()
		worker := s.worker
		s.mu.Unlock()
		switch {
		case err != nil:
			return 0, err
		case len(b.Message) > s.limits.MaxUnsent:
			return 0, ErrTooLarge
		case worker != nil:
			return 0, publicError(worker.Broadcast(b.Message))
		}
	} else if len(b.Group) > broadcastlog.MaxGroupName {
		return 0, ErrTooLarge
	}
	if g := s.broadcasts.Load(); g != nil {
		return g.Broadcast(broadcastlog.Broadcast(b))
	}
	return s.callHandlerSendToGroup(b) // before the start
}

func (s *Server) callHandlerSendToGroup(b Broadcast) (receivers int, err error) {
	h, ok := handlerAs[BroadcastHandler](s.Handler)
	if !ok {
		return 0, errNoGroups
	}
	return h.SendToGroup(b), nil
}

var errNoGroups = badUse("Broadcast to a group: Server.Handler is not a BroadcastHandler")

// Upgrading reports whether an upgrade is in progress: in the old process from before SaveState
// until it ends or the upgrade fails, in the new one from its start until the old one has ended.
// While it is false, Broadcast to a group only calls SendToGroup, so a BroadcastHandler may call
// that directly to save time. Its SaveState must then wait for calls that checked Upgrading
// earlier.
func (s *Server) Upgrading() bool {
	g := s.broadcasts.Load()
	return g != nil && g.IsUpgrading()
}

// maxHeldBytes returns the limit of bytes in broadcasts that an upgrade queues.
func (s *Server) maxHeldBytes() int { return cmp.Or(s.Limits.MaxMailBytes, 64<<20) }

// initBroadcastLog creates the queue for broadcasts during upgrades. If there is a predecessor, it
// stays paused until the predecessor has handed everything over.
func (s *Server) initBroadcastLog(e engine.Engine, l Limits) {
	log := s.rateLimitedLogger()
	g := &broadcastlog.Log{ErrFull: ErrFull, MaxMessages: l.MaxMail, MaxBytes: s.maxHeldBytes()}
	g.Deliver = func(b broadcastlog.Broadcast) (int, error) {
		if b.All {
			return 0, publicError(e.Broadcast(b.Message))
		}
		return s.callHandlerSendToGroup(Broadcast(b))
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
