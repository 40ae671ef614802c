package web

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// calls is a handler whose connections' input is taken by a function.
type calls struct {
	tcp.Base
	received func(c *tcp.Conn, in []byte)
}

func (h calls) Received(c *tcp.Conn, in []byte) int {
	h.received(c, in)
	return len(in)
}

func talker() *WebSocket {
	return &WebSocket{Compression: true, MaxMessage: 16 << 10, Subprotocols: []string{"p"},
		Handler: OnMessage(func(s Socket, kind Kind, m []byte) { _ = s.Write(kind, m) })}
}

// clientFrame is a frame whose mask is none that repeats.
func clientFrame(first byte, payload string) string {
	mask := [4]byte{1, 20, 75, 200}
	b := appendFrameHead(nil, first, len(payload))
	b[0], b[1] = first, b[1]|0x80
	return string(unmask(append(b, mask[:]...), []byte(payload), mask, 0))
}

// TestSavedInTheMiddle saves and restores a message between any two bytes of its payload: the rest
// makes it whole.
func TestSavedInTheMiddle(t *testing.T) {
	const text = "grüße, and 世界 at the end"
	plain := clientFrame(byte(Text), text[:20]) + clientFrame(opMore, "") + clientFrame(bitFin|opMore, text[20:])
	squeezed := string(deflated(Text, []byte(strings.Repeat(text, 20))))[2:]
	for _, c := range []struct {
		name, frames, want string
		deflate            bool
	}{
		{"text", plain, string(Frame(Text, text)), false},
		{"compressed", clientFrame(byte(Text)|bitDeflate, squeezed[:9]) + clientFrame(bitFin|opMore, squeezed[9:]), string(deflated(Text, []byte(strings.Repeat(text, 20)))), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			head, err := readFrameHead([]byte(c.frames), c.deflate)
			if err != nil {
				t.Fatal(err)
			}
			for cut := 1; cut < len(c.frames)-head.n; cut++ {
				v := talker().variant(variantKey{"p", c.deflate})
				p := tcptest.NewServer(t, &tcp.Server{Handler: calls{received: func(conn *tcp.Conn, in []byte) {
					m := &partial{variant: v, kind: Kind(head.op), deflate: head.deflate, frame: head, left: head.size}
					in = in[head.n:]
					used := m.take(conn, in[:cut])
					r := saved.NewReader(m.save(nil))
					if m, err = v.restorePartial(&r); err != nil {
						t.Errorf("saved after %d bytes: %v", cut, err)
						conn.CloseWith(err)
						return
					}
					if in = in[used:]; m.take(conn, in) != len(in) {
						t.Errorf("saved after %d bytes: the rest is not used", cut)
					}
				}}}).Dial()
				p.Send(c.frames)
				if got := p.Output(); got != c.want {
					t.Fatalf("saved after %d bytes: answered %q, want %q", cut, got, c.want)
				}
			}
		})
	}
}

// FuzzSaved restores whatever another process may have sent: it is refused, or what the socket is
// then is saved and restored as the same, and takes frames.
func FuzzSaved(f *testing.F) {
	ws := talker()
	kept := &Events{Save: func(*tcp.Conn, []byte) ([]byte, error) { return nil, nil }, Restore: func(_ *tcp.Conn, state []byte) error {
		if len(state) > 0 {
			return errors.New("there is no state")
		}
		return nil
	}}
	h := &HTTP{Endpoints: map[string]Endpoint{"s": ws, "e": kept}}
	part := partial{kind: Text, frame: frameHead{mask: [4]byte{1, 2, 3, 4}, size: 9}, left: 4, message: []byte("hello")}
	f.Add([]byte{savedVersion, savedHTTP})
	f.Add([]byte{savedVersion, savedStream, 1, 'e'})
	f.Add([]byte{savedVersion, savedSocket, 1, 's', savedDeflate, 1, 'p'})
	f.Add(part.save([]byte{savedVersion, savedSocket, 1, 's', savedPartial, 0}))
	f.Fuzz(func(t *testing.T, state []byte) {
		if len(state) == 0 {
			return
		}
		s := tcptest.NewServer(t, &tcp.Server{Handler: calls{received: func(c *tcp.Conn, in []byte) {
			if err := h.RestoreHandler(c, in); err != nil {
				c.CloseWith(err)
			}
		}}})
		p := s.Dial()
		p.Send(string(state))
		_, _ = p.Write([]byte(clientFrame(bitFin|opMore, "more") + clientFrame(bitFin|byte(Binary), "x"))) // it may have closed
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
		v := ws.variant(variantKey{r.String(), flags&savedDeflate != 0})
		if v == nil || flags&savedPartial == 0 {
			return
		}
		m, err := v.restorePartial(&r)
		if err != nil {
			return
		}
		again := saved.NewReader(m.save(nil))
		if n, err := v.restorePartial(&again); err != nil || !reflect.DeepEqual(n, m) || len(again.Remaining()) != 0 {
			t.Errorf("%q: %+v is restored as %+v, %v", state, m, n, err)
		}
	})
}

// TestSavedRefused has states refused, each for its reason, before anything has become of the
// connection.
func TestSavedRefused(t *testing.T) {
	socket := []byte{savedVersion, savedSocket, 1, 's', savedPartial, 0}
	h := &HTTP{Endpoints: map[string]Endpoint{"s": talker(), "e": &Events{}}}
	for _, c := range []struct {
		state []byte
		want  string
	}{
		{[]byte{savedVersion + 1, savedHTTP}, errSaved.Error()},
		{[]byte{savedVersion, 77}, errSaved.Error()},
		{[]byte{savedVersion, savedSocket, 1, 's', 0, 9, 'p'}, errSaved.Error()},
		{[]byte{savedVersion, savedSocket, 5, 'o', 't', 'h', 'e', 'r', 0, 0}, `endpoint "other"`},
		{[]byte{savedVersion, savedSocket, 1, 'e', 0, 0}, `endpoint "e"`},
		{[]byte{savedVersion, savedStream, 1, 's'}, `endpoint "s"`},
		{[]byte{savedVersion, savedSocket, 1, 's', 0, 1, 'q'}, `subprotocol "q" has come`},
		{(&partial{kind: Binary, frame: frameHead{size: 16<<10 + 1}, left: 16<<10 + 1}).save(socket), "a message has more than 16384 bytes"},
		{(&partial{kind: Text, message: []byte("\xff")}).save(socket), errSaved.Error()},
		{(&partial{kind: Text, deflate: true}).save(socket), errSaved.Error()},
		{(&partial{kind: opPing}).save(socket), errSaved.Error()},
	} {
		p := tcptest.NewServer(t, &tcp.Server{Handler: calls{received: func(conn *tcp.Conn, in []byte) {
			err := h.RestoreHandler(conn, in)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v, want an error with %q", c.state, err, c.want)
			}
			conn.CloseWith(io.EOF)
		}}}).Dial()
		p.Send(string(c.state))
	}
}

// TestSaveRefused has connections stay of which something is known that nobody saves.
func TestSaveRefused(t *testing.T) {
	ws, events := talker(), &Events{Opened: func(*tcp.Conn) {}}
	other := &HTTP{}
	h := &HTTP{Endpoints: map[string]Endpoint{"s": ws, "e": events, "v": &Events{}}}
	big := &partial{variant: ws.variant(variantKey{}), message: bytes.Repeat([]byte("x"), 1<<20)}
	for _, c := range []struct {
		name  string
		of    tcp.Handler
		value any
		want  error
	}{
		{"another handler", calls{}, nil, errNoEndpoint},
		{"another HTTP", other, nil, errNoEndpoint},
		{"a request", h, &exchange{}, tcp.ErrSaveLater},
		{"another WebSocket", talker().variant(variantKey{}), nil, errNoEndpoint},
		{"a WebSocket with a Value", ws.variant(variantKey{}), 1, errNoMigrator},
		{"a large message in part", big, nil, tcp.ErrSaveLater},
		{"other Events", stream{&Events{}}, nil, errNoEndpoint},
		{"Events with Opened", stream{events}, nil, errNobodySaves},
		{"Events with a Value", stream{h.Endpoints["v"].(*Events)}, 1, errNoMigrator},
	} {
		t.Run(c.name, func(t *testing.T) {
			tcptest.NewServer(t, &tcp.Server{Handler: calls{received: func(conn *tcp.Conn, in []byte) {
				conn.SetValue(c.value)
				if _, err := h.SaveHandler(conn, c.of, nil); !errors.Is(err, c.want) {
					t.Errorf("saved: %v, want %v", err, c.want)
				}
			}}}).Dial().Send("x")
		})
	}
}
