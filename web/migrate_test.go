package web

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

type receivedFuncHandler struct {
	tcp.Base
	received func(c *tcp.Conn, in []byte)
}

func (h receivedFuncHandler) Received(c *tcp.Conn, in []byte) int {
	h.received(c, in)
	return len(in)
}

// dialReceiver connects to a server that calls received.
func dialReceiver(t *testing.T, received func(c *tcp.Conn, in []byte)) *tcptest.Peer {
	return tcptest.NewServer(t, &tcp.Server{Handler: receivedFuncHandler{received: received}}).Dial()
}

func newEchoWebSocket() *WebSocket {
	return &WebSocket{Compression: true, MaxMessage: 16 << 10, Subprotocols: []string{"p"},
		Handler: OnMessage(func(s Socket, kind Kind, m []byte) { _ = s.Write(kind, m) })}
}

func encodeMaskedFrame(first byte, payload string) string {
	mask := [4]byte{1, 20, 75, 200}
	b := appendFrameHead(nil, first, len(payload))
	b[0], b[1] = first, b[1]|0x80
	return string(appendUnmasked(append(b, mask[:]...), []byte(payload), mask, 0))
}

// TestSavedInTheMiddle saves and restores a message between any two bytes of its payload and
// completes it.
func TestSavedInTheMiddle(t *testing.T) {
	const text = "grüße, and 世界 at the end"
	plain := encodeMaskedFrame(byte(Text), text[:20]) + encodeMaskedFrame(opContinuation, "") + encodeMaskedFrame(bitFin|opContinuation, text[20:])
	squeezed := string(compressFrame(Text, []byte(strings.Repeat(text, 40))))[2:]
	for _, c := range []struct {
		name, frames, want string
		deflate            bool
	}{
		{"text", plain, string(Frame(Text, text)), false},
		{"compressed", encodeMaskedFrame(byte(Text)|bitDeflate, squeezed[:9]) + encodeMaskedFrame(bitFin|opContinuation, squeezed[9:]), string(compressFrame(Text, []byte(strings.Repeat(text, 40)))), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			head, err := parseFrameHeadIfComplete([]byte(c.frames), socketOptions{deflate: c.deflate})
			testkit.RequireNoError(t, err)
			for cut := 1; cut < len(c.frames)-head.n; cut++ {
				v := newEchoWebSocket().handlerFor(socketOptions{"p", c.deflate, false})
				p := dialReceiver(t, func(conn *tcp.Conn, in []byte) {
					m := &partialMessage{negotiatedSocket: v, kind: Kind(head.op), deflate: head.deflate, frame: head, remaining: head.size}
					in = in[head.n:]
					used := m.readFramesAndDeliver(conn, in[:cut])
					r := saved.NewReader(m.appendState(nil))
					if m, err = v.restorePartialMessage(&r); err != nil {
						t.Errorf("saved after %d bytes: %v", cut, err)
						conn.CloseWith(err)
						return
					}
					if in = in[used:]; m.readFramesAndDeliver(conn, in) != len(in) {
						t.Errorf("saved after %d bytes: the rest is not used", cut)
					}
				})
				p.Send(c.frames)
				if got := p.Output(); got != c.want {
					t.Fatalf("saved after %d bytes: answered %q, want %q", cut, got, c.want)
				}
			}
		})
	}
}

// FuzzSaved restores any state: it is either rejected, or the resulting socket can be saved and
// restored unchanged and accepts frames.
func FuzzSaved(f *testing.F) {
	ws := newEchoWebSocket()
	kept := &Events{Save: func(*tcp.Conn, []byte) ([]byte, error) { return nil, nil }, Restore: func(_ *tcp.Conn, state []byte) error {
		if len(state) > 0 {
			return errors.New("there is no state")
		}
		return nil
	}}
	h := &HTTP{Endpoints: map[string]Endpoint{"s": ws, "e": kept}}
	part := partialMessage{kind: Text, frame: frameHead{mask: [4]byte{1, 2, 3, 4}, size: 9}, remaining: 4, message: []byte("hello")}
	f.Add([]byte{savedVersion, savedHTTP})
	f.Add([]byte{savedVersion, savedStream, 1, 'e'})
	f.Add([]byte{savedVersion, savedSocket, 1, 's', savedDeflate, 1, 'p'})
	f.Add(part.appendState([]byte{savedVersion, savedSocket, 1, 's', savedPartial, 0}))
	f.Fuzz(func(t *testing.T, state []byte) {
		if len(state) == 0 {
			return
		}
		p := dialReceiver(t, func(c *tcp.Conn, in []byte) {
			if err := h.RestoreHandler(c, in); err != nil {
				c.CloseWith(err)
			}
		})
		p.Send(string(state))
		_, _ = p.Write([]byte(encodeMaskedFrame(bitFin|opContinuation, "more") + encodeMaskedFrame(bitFin|byte(Binary), "x"))) // it may have closed
		p.CloseWrite()
		if _, ok := p.Closed(); !ok {
			t.Errorf("%q: the connection is left when its peer has ended", state)
		}
		if len(state) < 2 || state[1] != savedSocket {
			return
		}
		r := saved.NewReader(state[2:])
		if r.String() != "s" {
			return
		}
		flags := r.Byte()
		v := ws.handlerFor(socketOptions{r.String(), flags&savedDeflate != 0, flags&savedDialed != 0})
		if v == nil || flags&savedPartial == 0 {
			return
		}
		m, err := v.restorePartialMessage(&r)
		if err != nil {
			return
		}
		again := saved.NewReader(m.appendState(nil))
		if n, err := v.restorePartialMessage(&again); err != nil || !reflect.DeepEqual(n, m) || len(again.Remaining()) != 0 {
			t.Errorf("%q: %+v is restored as %+v, %v", state, m, n, err)
		}
	})
}

// TestSavedRefused checks the errors for invalid states.
func TestSavedRefused(t *testing.T) {
	socket := []byte{savedVersion, savedSocket, 1, 's', savedPartial, 0}
	h := &HTTP{Endpoints: map[string]Endpoint{"s": newEchoWebSocket(), "e": &Events{}}}
	for _, c := range []struct {
		state []byte
		want  string
	}{
		{[]byte{savedVersion + 1, savedHTTP}, errBadState.Error()},
		{[]byte{savedVersion, 77}, errBadState.Error()},
		{[]byte{savedVersion, savedSocket, 1, 's', 0, 9, 'p'}, errBadState.Error()},
		{[]byte{savedVersion, savedSocket, 5, 'o', 't', 'h', 'e', 'r', 0, 0}, `endpoint "other"`},
		{[]byte{savedVersion, savedSocket, 1, 'e', 0, 0}, `endpoint "e"`},
		{[]byte{savedVersion, savedStream, 1, 's'}, `endpoint "s"`},
		{[]byte{savedVersion, savedSocket, 1, 's', 0, 1, 'q'}, `the subprotocol "q"`},
		{(&partialMessage{kind: Binary, frame: frameHead{size: 16<<10 + 1}, remaining: 16<<10 + 1}).appendState(socket), "the message is larger than 16384 bytes"},
		{(&partialMessage{kind: Text, message: []byte("\xff")}).appendState(socket), errBadState.Error()},
		{(&partialMessage{kind: Text, deflate: true}).appendState(socket), errBadState.Error()},
		{(&partialMessage{kind: opPing}).appendState(socket), errBadState.Error()},
	} {
		dialReceiver(t, func(conn *tcp.Conn, in []byte) {
			err := h.RestoreHandler(conn, in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v, want an error with %q", c.state, err, c.want)
			}
			conn.CloseWith(io.EOF)
		}).Send(string(c.state))
	}
}

// TestSaveRefused checks that connections with unsaved state stay.
func TestSaveRefused(t *testing.T) {
	ws, events := newEchoWebSocket(), &Events{Opened: func(*tcp.Conn) {}}
	other := &HTTP{}
	h := &HTTP{Endpoints: map[string]Endpoint{"s": ws, "e": events, "v": &Events{}}}
	big := &partialMessage{negotiatedSocket: ws.handlerFor(socketOptions{}), message: bytes.Repeat([]byte("x"), 1<<20)}
	for _, c := range []struct {
		name  string
		of    tcp.Handler
		value any
		want  error
	}{
		{"another handler", receivedFuncHandler{}, nil, errNoEndpoint},
		{"another HTTP", other, nil, errNoEndpoint},
		{"a request", h, &exchange{}, tcp.ErrSaveLater},
		{"another WebSocket", newEchoWebSocket().handlerFor(socketOptions{}), nil, errNoEndpoint},
		{"a WebSocket with a Value", ws.handlerFor(socketOptions{}), 1, errUnsavedValue},
		{"a large message in part", big, nil, tcp.ErrSaveLater},
		{"other Events", eventStream{&Events{}}, nil, errNoEndpoint},
		{"Events with Opened", eventStream{events}, nil, errNoRestore},
		{"Events with a Value", eventStream{h.Endpoints["v"].(*Events)}, 1, errUnsavedValue},
	} {
		dialReceiver(t, func(conn *tcp.Conn, in []byte) {
			conn.SetValue(c.value)
			if _, err := h.SaveHandler(conn, c.of, nil); !errors.Is(err, c.want) {
				t.Errorf("%s is saved: %v, want %v", c.name, err, c.want)
			}
		}).Send("x")
	}
}
