package tcp

import (
	"errors"
	"io"

	"github.com/myriad-go/myriad/internal/engine"
)

// This file is how what a handler knows of a connection gets to another process: see
// Server.Upgrade.

// Migrator is a Handler, or MessageHandler, that can save what it knows about a connection,
// so that another process can go on with it: see Server.Upgrade. Without it, connections
// that have a Value stay in the old process.
type Migrator interface {
	// Save appends what Restore needs, at most 1 MiB, to to, and returns the result. After an error
	// the connection stays in the old process, which drains it; after ErrSaveLater it is asked
	// again. Then Closed is called with ErrHandedOver, or the connection goes on here if the new
	// process fails.
	Save(c *Conn, to []byte) (state []byte, err error)
	// Restore is the first call for a connection that has come from another process, instead
	// of Opened: it sets the Value, and enters c.Ref() wherever Opened does. state is valid
	// during the call, and has a version if what Save writes may change. An error
	// closes the connection for that reason; Closed is called. What is written is sent.
	Restore(c *Conn, state []byte) error
}

// HandlerMigrator is a Handler, or MessageHandler, of a Server that can do the same for connections
// with a handler of their own: see Conn.SetHandler. Without it they stay in the old process.
// It may be a Migrator as well, for the others.
type HandlerMigrator interface {
	// SaveHandler is like Migrator.Save, with the connection's handler as it was set. It fails
	// for a handler that it does not know, such as that of Server.Adopt, Dial, or a NetConn.
	SaveHandler(c *Conn, h Handler, to []byte) (state []byte, err error)
	// RestoreHandler is like Migrator.Restore, and sets the handler. Until then the
	// connection has the Server's.
	RestoreHandler(c *Conn, state []byte) error
}

// ErrSaveLater is what Save returns, wrapped or not, for a connection that can't move at the
// moment: it goes on in the old process, and is asked again after some milliseconds, until it
// can, or the context of Server.Upgrade ends.
var ErrSaveLater = engine.ErrSaveLater

// errNoHandlerSet closes a connection that a HandlerMigrator has not given a handler.
var errNoHandlerSet = errors.New("myriad: RestoreHandler has set no handler; expected SetHandler, or an error")

// addMigration tells the engine how to save and restore what the handler knows.
func (s *Server) addMigration(cfg *engine.Config) {
	if h, ok := extension[Migrator](s.Handler); ok {
		cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) { return h.Save((*Conn)(c), to) }
		cfg.Restore = func(c *engine.Conn, state []byte) error { return h.Restore((*Conn)(c), state) }
	}
	h, ok := extension[HandlerMigrator](s.Handler)
	if !ok {
		return
	}
	cfg.SaveConnHandler = func(c *engine.Conn, to []byte) ([]byte, error) {
		o, ok := c.ConnHandler().(interface{ handler() Handler })
		if !ok {
			return nil, engine.ErrNotExportable
		}
		return h.SaveHandler((*Conn)(c), o.handler(), to)
	}
	cfg.RestoreConnHandler = func(c *engine.Conn, state []byte) error {
		err := h.RestoreHandler((*Conn)(c), state)
		if err == nil && c.ConnHandler() == nil && !c.IsClosing() {
			err = errNoHandlerSet
		}
		return err
	}
}

// StateMigrator is a Handler, or a MessageHandler, with state that belongs to no connection and is
// to move in an upgrade: see Server.Upgrade.
type StateMigrator interface {
	// SaveState writes, in the old process, at most 1 GiB, before the first connection leaves.
	// From then on broadcasts are held, so that state that changes by SendToGroup alone is
	// the same in both processes. It changes nothing: the upgrade may fail after it.
	SaveState(w io.Writer) error
	// RestoreState reads that in the new process, before the first connection is restored, while
	// others may have come already. The handler gives the form a version. An error of either is
	// logged, and the state lost; the connections move.
	RestoreState(r io.Reader) error
}
