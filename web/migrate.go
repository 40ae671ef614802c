package web

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
)

// This file is how WebSockets and streams of events move to another process: see
// HTTP.Endpoints. An HTTP connection between two requests has no state, and moves by itself.

// Endpoint is a *WebSocket or an *Events.
type Endpoint interface{ endpoint() }

func (*WebSocket) endpoint() {}
func (*Events) endpoint()    {}

// SocketMigrator is a SocketHandler that can save what it knows about a socket, so that
// another process can go on with it: see HTTP.Endpoints. Without it, sockets that have a Value
// stay in the old process, and the others move.
type SocketMigrator interface {
	// Save is like that of a tcp.Migrator, between two calls of Message; it need not
	// save a partly received message, nor what Socket itself has. What it and
	// package web save is at most 1 MiB together.
	Save(s Socket, to []byte) (state []byte, err error)
	// Restore is the first call for a socket that has come from another process, instead of
	// Opened: it sets the Value, and enters the socket in groups and tables. state is
	// valid during the call. An error closes the socket with its code, if it is a
	// *CloseError, or else with CloseInternal.
	Restore(s Socket, state []byte) error
}

// savedVersion is of the form of what SaveHandler writes: what the connection is, and the name
// of its endpoint. For a socket follow its flags, its subprotocol and the message that has
// come in part, with flags of its own; last is what the user's Save has written.
const savedVersion = 1

// What a connection is.
const (
	savedHTTP byte = iota
	savedSocket
	savedStream
)

// The flags of a socket, and of a message in part.
const (
	savedDeflate byte = 1 << iota
	savedPartial
	savedFin // the frame at hand is the last one
)

var (
	errNoEndpoint  = errors.New("web: the connection's handler is none of HTTP.Endpoints")
	errNoMigrator  = errors.New("web: the connection has a Value, which nobody saves")
	errNobodySaves = errors.New("web: Events has Opened, and no Restore")
	errSaved       = errors.New("web: the state of a connection is cut off or of another version")
)

// SaveHandler implements tcp.HandlerMigrator for connections whose handler is h itself, a
// WebSocket's or a stream's of Endpoints. A handler that passes connections on to an HTTP, by
// Conn.SetHandler, calls it in its own SaveHandler.
func (h *HTTP) SaveHandler(c *tcp.Conn, of tcp.Handler, to []byte) ([]byte, error) {
	switch of := of.(type) {
	case *HTTP:
		if of != h {
			return nil, errNoEndpoint
		}
		if c.Value() != nil { // a request
			return nil, tcp.ErrSaveLater
		}
		return append(to, savedVersion, savedHTTP), nil
	case *variant:
		return h.saveSocket(c, of, nil, to)
	case *partial:
		return h.saveSocket(c, of.variant, of, to)
	case stream:
		return h.saveStream(c, of.events, to)
	}
	return nil, errNoEndpoint
}

// RestoreHandler implements tcp.HandlerMigrator. A handler that passes connections on to an
// HTTP calls it in its own RestoreHandler.
func (h *HTTP) RestoreHandler(c *tcp.Conn, state []byte) error {
	r := saved.NewReader(state)
	version, what := r.Byte(), r.Byte()
	switch {
	case version != savedVersion || !r.Complete() || what > savedStream:
		return errSaved
	case what == savedHTTP:
		return c.SetHandler(h)
	}
	name := r.String()
	switch e := h.Endpoints[name].(type) {
	case *WebSocket:
		if what == savedSocket {
			return e.restore(c, &r)
		}
	case *Events:
		if what == savedStream {
			return e.restore(c, &r)
		}
	}
	return fmt.Errorf("web: a connection has come from another process for the endpoint %q, which HTTP.Endpoints does not have any more", name)
}

// nameOf is the name of an endpoint.
func (h *HTTP) nameOf(e Endpoint) (string, error) {
	for name, known := range h.Endpoints {
		if known == e {
			return name, nil
		}
	}
	return "", errNoEndpoint
}

func (h *HTTP) saveSocket(c *tcp.Conn, v *variant, part *partial, to []byte) ([]byte, error) {
	name, err := h.nameOf(v.WebSocket)
	if err != nil {
		return nil, err
	}
	to = saved.AppendString(append(to, savedVersion, savedSocket), name)
	to = append(to, flag(v.deflate, savedDeflate)|flag(part != nil, savedPartial))
	if to = saved.AppendString(to, v.protocol); part != nil {
		to = part.save(to)
	}
	if m, ok := v.Handler.(SocketMigrator); ok {
		to, err = saveBehind(to, func(to []byte) ([]byte, error) { return m.Save(Socket{c, v}, to) })
	} else if c.Value() != nil {
		err = errNoMigrator
	}
	if err == nil && part != nil && len(to) > maxSavedState {
		err = tcp.ErrSaveLater // when the message has ended
	}
	return to, err
}

func flag(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

// saveBehind appends what a user's function appends to nothing.
func saveBehind(to []byte, save func(to []byte) ([]byte, error)) ([]byte, error) {
	state, err := save(to[len(to):])
	return append(to, state...), err
}

// save appends the message as far as it has come.
func (m *partial) save(to []byte) []byte {
	at := m.frame.size - m.left
	to = append(to, byte(m.kind), flag(m.deflate, savedDeflate)|flag(m.frame.fin, savedFin))
	for i := range m.frame.mask { // that of the rest
		to = append(to, m.frame.mask[(at+i)&3])
	}
	return saved.AppendString(binary.AppendUvarint(to, uint64(m.left)), m.message)
}

// restore makes the connection a socket again.
func (ws *WebSocket) restore(c *tcp.Conn, r *saved.Reader) error {
	flags := r.Byte()
	k := variantKey{r.String(), flags&savedDeflate != 0}
	v := ws.variant(k)
	switch {
	case !r.Complete():
		return errSaved
	case v == nil:
		return fmt.Errorf("web: a socket of the subprotocol %q has come from another process; expected one of %q", k.protocol, ws.Subprotocols)
	}
	if flags&savedPartial == 0 {
		_ = c.SetHandler(v) // in a call of a handler
	} else {
		m, err := v.restorePartial(r)
		if err != nil {
			return err
		}
		_ = c.SetHandler(m)
		reserve(c, partialMemory+cap(m.message), true)
	}
	if m, ok := ws.Handler.(SocketMigrator); ok {
		if err := m.Restore(Socket{c, v}, r.Remaining()); err != nil {
			v.fail(c, err)
		}
	}
	return nil
}

// restorePartial reads a message that has come in part.
func (v *variant) restorePartial(r *saved.Reader) (*partial, error) {
	m := &partial{variant: v, kind: Kind(r.Byte())}
	flags := r.Byte()
	m.deflate, m.frame.fin = flags&savedDeflate != 0, flags&savedFin != 0
	for i := range m.frame.mask {
		m.frame.mask[i] = r.Byte()
	}
	left := r.Uvarint()
	m.message = append([]byte(nil), r.Bytes()...)
	switch most := v.most(); {
	case !r.Complete(), m.kind != Text && m.kind != Binary, m.deflate && !v.deflate:
		return nil, errSaved
	case len(m.message) > most || left > uint64(most-len(m.message)):
		return nil, &CloseError{CloseTooLarge, fmt.Sprintf("a message has more than %d bytes", most)}
	case m.kind == Text && !m.deflate && !m.text.check(m.message, false):
		return nil, errSaved
	}
	m.left = int(left)
	m.frame.size = m.left
	return m, nil
}

func (h *HTTP) saveStream(c *tcp.Conn, e *Events, to []byte) ([]byte, error) {
	name, err := h.nameOf(e)
	switch {
	case err != nil:
		return nil, err
	case e.Opened != nil && e.Restore == nil:
		return nil, errNobodySaves
	case e.Save == nil && c.Value() != nil:
		return nil, errNoMigrator
	}
	to = saved.AppendString(append(to, savedVersion, savedStream), name)
	if e.Save == nil {
		return to, nil
	}
	return saveBehind(to, func(to []byte) ([]byte, error) { return e.Save(c, to) })
}

// restore makes the connection a stream again.
func (e *Events) restore(c *tcp.Conn, r *saved.Reader) error {
	if !r.Complete() {
		return errSaved
	}
	_ = c.SetHandler(stream{e}) // in a call of a handler
	if e.Restore != nil {
		if err := e.Restore(c, r.Remaining()); err != nil {
			c.CloseWith(err)
		}
	}
	return nil
}

var _ tcp.HandlerMigrator = (*HTTP)(nil)
