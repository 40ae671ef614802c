package tcp

import (
	"errors"
	"io"

	"github.com/myriad-go/myriad/internal/engine"
)

// Migrator is a Handler or MessageHandler that saves and restores its state for each connection. During a
// Server.Upgrade, this state moves to the new process together with the connection. If the handler is not a Migrator,
// connections with a Value stay in the old process.
type Migrator interface {
	// Save appends the state for Restore to the given slice and returns the result. The state has at most 1 MiB. When
	// the connection has moved, the server calls Closed with ErrHandedOver. If the new process fails before the move,
	// the connection continues in this process. After ErrSaveLater, the server calls Save again. After any other error,
	// the connection stays in the old process, which drains it.
	Save(c *Conn, to []byte) (state []byte, err error)
	// Restore is called instead of Opened, as the first call for a connection from another process. It must set the
	// Value, and register c.Ref() wherever Opened would. Output of Restore is sent. The slice is valid only during the
	// call. If the format of the state may change, include a version number. If Restore returns an error, the
	// connection closes with this error as the reason.
	Restore(c *Conn, state []byte) error
}

// HandlerMigrator is a Handler or MessageHandler of a Server or Listener. It saves and restores connections that have
// their own handler, because Conn.SetHandler has replaced the handler of the Server or Listener. Without a
// HandlerMigrator, such connections stay in the old process. A HandlerMigrator may also be a Migrator. The server then
// calls the methods of Migrator for all connections that do not have their own handler.
type HandlerMigrator interface {
	// SaveHandler is like Migrator.Save, but also receives the connection's handler h. It must return an error if h is
	// unknown. For example, Server.Dial may have set h, or h may belong to a NetConn.
	SaveHandler(c *Conn, h Handler, to []byte) (state []byte, err error)
	// RestoreHandler is like Migrator.Restore, but must also set the handler with Conn.SetHandler. Before this call,
	// the connection has the handler of the Server or Listener.
	RestoreHandler(c *Conn, state []byte) error
}

// ErrSaveLater is returned by Migrator.Save, possibly wrapped, for a connection that can't move yet. The server calls
// Save again every few milliseconds, until Save succeeds or the context of Server.Upgrade ends.
var ErrSaveLater = engine.ErrSaveLater

// errNoHandlerSet is the close reason of a connection for which RestoreHandler has not called SetHandler.
var errNoHandlerSet = errors.New("myriad: RestoreHandler set no handler and returned no error; expected a call of SetHandler or an error")

func configureMigration(cfg *engine.Config, handler Handler) {
	if h, ok := handlerAs[Migrator](handler); ok {
		cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) { return h.Save((*Conn)(c), to) }
		cfg.Restore = func(c *engine.Conn, state []byte) error { return h.Restore((*Conn)(c), state) }
	}
	if h, ok := handlerAs[StateMigrator](handler); ok {
		cfg.SaveState, cfg.RestoreState = h.SaveState, h.RestoreState
	}
	h, ok := handlerAs[HandlerMigrator](handler)
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

// StateMigrator is a Handler or MessageHandler with state that does not belong to a single connection, such as a
// counter. A Server.Upgrade moves this state to the new process.
type StateMigrator interface {
	// SaveState writes the state, at most 1 GiB, in the old process before the first connection moves. Broadcasts are
	// queued from then on, so state that only SendToGroup changes stays equal in both processes. SaveState must not
	// change the state, because the upgrade may still fail.
	SaveState(w io.Writer) error
	// RestoreState reads the state in the new process before the first connection is restored. New connections may
	// already have been accepted. Include a version number in the format. If SaveState or RestoreState fails, the
	// server logs the error and the state is lost, but connections still move.
	RestoreState(r io.Reader) error
}
