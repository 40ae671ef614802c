package tcp

import (
	"cmp"
	"context"
	"errors"
	"io"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/publish"
)

// Publication is a message of Server.Publish.
type Publication struct {
	// Kind and Topic, of at most 1 MiB, say who gets it, as the PublishHandler knows.
	Kind  uint32
	Topic string
	// Message is what they get. It is not changed.
	Message []byte
}

// PublishHandler is a Handler, or a MessageHandler, that publishes to connections of its own
// choice, such as Groups, with Server.Publish, so that an upgrade of the server neither loses nor
// repeats messages: see Server.Upgrade.
type PublishHandler interface {
	// Published gives a message to those connections of this process that are to have it, and
	// returns how many they are. It is called by Publish, or on a goroutine of its own for what was
	// held or published in the other process, possibly concurrently, and does not keep p.Message.
	// What it changes in the handler, such as a newest value, is changed in both processes.
	Published(p Publication) (receivers int)
}

// StartHandler is a Handler, or a MessageHandler, that wants to know which Server serves it.
type StartHandler interface {
	// Starting is called once, before s serves.
	Starting(s *Server)
}

// StateMigrator is a Handler, or a MessageHandler, with state that belongs to no connection and is
// to move in an upgrade: see Server.Upgrade.
type StateMigrator interface {
	// SaveState writes, in the old process, at most 1 GiB, before the first connection leaves.
	// From then on nothing is published, so that state that changes by Published alone is
	// the same in both processes. It changes nothing: the upgrade may fail after it.
	SaveState(w io.Writer) error
	// RestoreState reads that in the new process, before the first connection is restored, while
	// others may have come already. The handler gives the form a version. An error of either is
	// logged, and the state lost; the connections move.
	RestoreState(r io.Reader) error
}

// Held is the number of receivers of a message that waits for the end of a hand-over.
const Held = publish.Held

// Publish has the PublishHandler give a message to connections, on this goroutine, and returns
// what Published does, or ErrBadUse if the Handler is not a PublishHandler. It is made for
// upgrades: while connections move between two processes, a copy of
// the message is held and run afterwards, in both of them, and Publish returns Held. Until the
// old process has ended, what is published in either is run in both. So each connection gets each
// message once, and those of one goroutine, or connection, in order; the number of receivers
// is that of this process.
//
// In one hand-over at most Limits.MaxMail messages are held, of at most Limits.MaxMailBytes in all,
// or 64 MiB where that is not set, with 64 bytes added for each. Beyond that, while what was held is still being run after 10 seconds,
// and if the new process does not take them, Publish returns ErrFull, and
// nobody gets the message. With Server.Processes, Published is called in this process alone.
func (s *Server) Publish(p Publication) (receivers int, err error) {
	if len(p.Topic) > publish.MaxTopic {
		return 0, ErrTooLarge
	}
	if g := s.published.Load(); g != nil {
		return g.Publish(publish.Message{Kind: p.Kind, Topic: p.Topic, Bytes: p.Message})
	}
	h, ok := extension[PublishHandler](s.Handler)
	if !ok {
		return 0, errNoPublisher
	}
	return h.Published(p), nil // before the start
}

// Upgrading reports whether an upgrade is in progress: in the old process from before SaveState is
// called until it ends, or the upgrade has failed, and in the new one from its start until the old one
// has ended. While it is false, Publish does nothing but call Published. A handler may then do that
// itself, for less; its SaveState has to wait until all such calls have returned whose check of Upgrading came first.
func (s *Server) Upgrading() bool {
	g := s.published.Load()
	return g != nil && g.Upgrading()
}

var errNoPublisher = badUse("Publish: the Handler is no PublishHandler")

// maxHeld is the most bytes that are held in an upgrade.
func (s *Server) maxHeld() int { return cmp.Or(s.Limits.MaxMailBytes, 64<<20) }

// addPublishing makes the gate of what is published. It is held until a predecessor has handed
// everything over.
func (s *Server) addPublishing(e engine.Engine, l Limits) {
	h, ok := extension[PublishHandler](s.Handler)
	g := &publish.Gate{Full: ErrFull, MaxMessages: l.MaxMail, MaxBytes: s.maxHeld()}
	g.Run = func(m publish.Message) (int, error) {
		switch {
		case m.All:
			return 0, named(e.Broadcast(m.Bytes))
		case !ok:
			return 0, errNoPublisher
		}
		return h.Published(Publication{m.Kind, m.Topic, m.Bytes}), nil
	}
	log := s.log()
	g.Failed = func(err error) {
		if !errors.Is(err, ErrServerClosed) { // then nobody is there to miss it
			log.Error("a message that was published during an upgrade is lost here", "error", err)
		}
	}
	if s.predecessor != nil {
		_ = g.Hold(context.Background()) // nobody publishes yet
	}
	s.published.Store(g)
}
