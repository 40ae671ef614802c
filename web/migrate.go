package web

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
)

// This file moves WebSockets and streams of events to another process; see HTTP.Endpoints. An HTTP connection between
// two requests has no state and always moves.

// Endpoint is a *WebSocket or an *Events.
type Endpoint interface{ endpoint() }

func (*WebSocket) endpoint() {}
func (*Events) endpoint()    {}

// SocketMigrator is implemented by a SocketHandler that can move sockets with their state to another process; see
// HTTP.Endpoints. Sockets of other handlers stay in the old process if they have a Value.
type SocketMigrator interface {
	// Save works like Save of a tcp.Migrator and is called between two calls of Message. Package web itself saves
	// partially received messages and the properties of Socket. Both states together are limited to 1 MiB.
	Save(s Socket, to []byte) (state []byte, err error)
	// Restore is the first call for a socket from another process, instead of Opened. It sets the Value and registers
	// the socket in groups and maps. state is valid only during the call. If Restore returns an error, the socket
	// closes with the code of a *CloseError, or CloseInternal for other errors.
	Restore(s Socket, state []byte) error
}

// savedVersion is the version of the format in which SaveHandler saves connections.
const savedVersion = 1

const (
	savedHTTP byte = iota
	savedSocket
	savedStream
)

// Flags in the saved state of a socket or of a partial message.
const (
	savedDeflate byte = 1 << iota
	savedPartial
	savedFin    // the current frame is the last one
	savedDialed // this process or an earlier one has dialed the socket
)

var (
	errNoEndpoint   = errors.New("web: the connection's handler is not in HTTP.Endpoints")
	errUnsavedValue = errors.New("web: the connection has a Value, but its handler has no Save")
	errNoRestore    = errors.New("web: Events has Opened but no Restore; expected both for an upgrade")
	errBadState     = errors.New("web: the saved state of a connection is truncated or of a different version")
)

// SaveHandler implements tcp.HandlerMigrator. It saves connections of h and of the Endpoints of h. A handler that
// passes connections to h with Conn.SetHandler must call this method in its own SaveHandler.
func (h *HTTP) SaveHandler(c *tcp.Conn, handler tcp.Handler, dst []byte) ([]byte, error) {
	switch handler := handler.(type) {
	case *HTTP:
		if handler != h {
			return nil, errNoEndpoint
		}
		if c.Value() != nil { // it is a request
			return nil, tcp.ErrSaveLater
		}
		return append(dst, savedVersion, savedHTTP), nil
	case *negotiatedSocket:
		return h.saveSocket(c, handler, nil, dst)
	case *partialMessage:
		return h.saveSocket(c, handler.negotiatedSocket, handler, dst)
	case eventStream:
		return h.saveEventStream(c, handler.events, dst)
	}
	return nil, errNoEndpoint
}

// RestoreHandler implements tcp.HandlerMigrator. It restores a connection that SaveHandler has saved. A handler that
// passes connections to h with Conn.SetHandler must call this method in its own RestoreHandler.
func (h *HTTP) RestoreHandler(c *tcp.Conn, state []byte) error {
	r := saved.NewReader(state)
	version, what := r.Byte(), r.Byte()
	switch {
	case version != savedVersion || !r.Complete() || what > savedStream:
		return errBadState
	case what == savedHTTP:
		return c.SetHandler(h)
	}
	name := r.String()
	switch e := h.Endpoints[name].(type) {
	case *WebSocket:
		if what == savedSocket {
			return e.restoreSocket(c, &r)
		}
	case *Events:
		if what == savedStream {
			return e.restoreEventStream(c, &r)
		}
	}
	return fmt.Errorf("web: a connection from another process belongs to the endpoint %q, which HTTP.Endpoints does not contain", name)
}

func (h *HTTP) endpointName(e Endpoint) (string, error) {
	for name, known := range h.Endpoints {
		if known == e {
			return name, nil
		}
	}
	return "", errNoEndpoint
}

func (h *HTTP) saveSocket(c *tcp.Conn, v *negotiatedSocket, partial *partialMessage, dst []byte) ([]byte, error) {
	name, err := h.endpointName(v.WebSocket)
	if err != nil {
		return nil, err
	}
	dst = saved.AppendString(append(dst, savedVersion, savedSocket), name)
	dst = append(dst, flagBit(v.deflate, savedDeflate)|flagBit(partial != nil, savedPartial)|flagBit(v.client, savedDialed))
	if dst = saved.AppendString(dst, v.protocol); partial != nil {
		dst = partial.appendState(dst)
	}
	if m, ok := v.Handler.(SocketMigrator); ok {
		dst, err = appendUserState(dst, func(dst []byte) ([]byte, error) { return m.Save(Socket{c, v}, dst) })
	} else if c.Value() != nil {
		err = errUnsavedValue
	}
	if err == nil && partial != nil && len(dst) > maxSavedState {
		err = tcp.ErrSaveLater // save again when the message has been received
	}
	return dst, err
}

func flagBit(on bool, bit byte) byte {
	if on {
		return bit
	}
	return 0
}

func appendUserState(dst []byte, save func(dst []byte) ([]byte, error)) ([]byte, error) {
	state, err := save(dst[len(dst):])
	return append(dst, state...), err
}

func (m *partialMessage) appendState(dst []byte) []byte {
	at := m.frame.size - m.remaining
	dst = append(dst, byte(m.kind), flagBit(m.deflate, savedDeflate)|flagBit(m.frame.fin, savedFin))
	for i := range m.frame.mask { // rotated, so that the mask begins at the next byte
		dst = append(dst, m.frame.mask[(at+i)&3])
	}
	return saved.AppendString(binary.AppendUvarint(dst, uint64(m.remaining)), m.message)
}

func (ws *WebSocket) restoreSocket(c *tcp.Conn, r *saved.Reader) error {
	flags := r.Byte()
	k := socketOptions{r.String(), flags&savedDeflate != 0, flags&savedDialed != 0}
	v := ws.handlerFor(k)
	switch {
	case !r.Complete():
		return errBadState
	case v == nil:
		return fmt.Errorf("web: a socket from another process has the subprotocol %q; expected one of %q", k.protocol, ws.Subprotocols)
	}
	if flags&savedPartial == 0 {
		_ = c.SetHandler(v) // does not fail during a call
	} else {
		m, err := v.restorePartialMessage(r)
		if err != nil {
			return err
		}
		_ = c.SetHandler(m)
		setHandlerMemory(c, partialMemory+cap(m.message), true)
	}
	if m, ok := ws.Handler.(SocketMigrator); ok {
		if err := m.Restore(Socket{c, v}, r.Remaining()); err != nil {
			v.sendCloseFrameAndClose(c, err)
		}
	}
	return nil
}

func (v *negotiatedSocket) restorePartialMessage(r *saved.Reader) (*partialMessage, error) {
	m := &partialMessage{negotiatedSocket: v, kind: Kind(r.Byte())}
	flags := r.Byte()
	m.deflate, m.frame.fin = flags&savedDeflate != 0, flags&savedFin != 0
	for i := range m.frame.mask {
		m.frame.mask[i] = r.Byte()
	}
	left := r.Uvarint()
	m.message = append([]byte(nil), r.Bytes()...)
	switch limit := v.maxMessageBytes(); {
	case !r.Complete(), m.kind != Text && m.kind != Binary, m.deflate && !v.deflate:
		return nil, errBadState
	case len(m.message) > limit || left > uint64(limit-len(m.message)):
		return nil, &CloseError{CloseTooLarge, fmt.Sprintf("the message is larger than %d bytes", limit)}
	case m.kind == Text && !m.deflate && !m.checker.validateIncrementally(m.message, false):
		return nil, errBadState
	}
	m.remaining = int(left)
	m.frame.size = m.remaining
	return m, nil
}

func (h *HTTP) saveEventStream(c *tcp.Conn, e *Events, dst []byte) ([]byte, error) {
	name, err := h.endpointName(e)
	switch {
	case err != nil:
		return nil, err
	case e.Opened != nil && e.Restore == nil:
		return nil, errNoRestore
	case e.Save == nil && c.Value() != nil:
		return nil, errUnsavedValue
	}
	dst = saved.AppendString(append(dst, savedVersion, savedStream), name)
	if e.Save == nil {
		return dst, nil
	}
	return appendUserState(dst, func(dst []byte) ([]byte, error) { return e.Save(c, dst) })
}

func (e *Events) restoreEventStream(c *tcp.Conn, r *saved.Reader) error {
	if !r.Complete() {
		return errBadState
	}
	_ = c.SetHandler(eventStream{e}) // does not fail during a call
	if e.Restore != nil {
		if err := e.Restore(c, r.Remaining()); err != nil {
			c.CloseWith(err)
		}
	}
	return nil
}

var _ tcp.HandlerMigrator = (*HTTP)(nil)
