package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// owning is the handler of connections that have said "own". It counts on, and answers each line
// with "own" in front. What else a line does, it does in an upgrade.
type owning struct{ *counted }

func (h owning) Message(c *Conn, line []byte) {
	n, _ := c.Value().(int)
	_, _ = c.WriteString("own ")
	h.counted.Message(c, line)
	switch string(line) {
	case "later", "remain", "panic":
		c.SetValue(string(line))
	case "forget":
		c.SetValue(-1)
	case "go":
		c.SetValue(n + 1)
	}
}

var errOwn = errors.New("no handler of ours")

func (h *counted) SaveHandler(c *Conn, of Handler, to []byte) ([]byte, error) {
	f, ok := of.(*framer)
	if !ok {
		return nil, errOwn
	}
	if _, ok := f.MessageHandler.(owning); !ok {
		return nil, errOwn
	}
	switch v := c.Value().(type) {
	case int:
		return binary.AppendVarint(to, int64(v)), nil
	case string:
		if v == "later" {
			return nil, ErrSaveLater
		} else if v == "panic" {
			panic(v)
		}
	}
	return nil, errOwn
}

func (h *counted) RestoreHandler(c *Conn, state []byte) error {
	n, _ := binary.Varint(state)
	if n < 0 {
		return nil
	}
	c.SetValue(int(n))
	return c.SetHandler(Lines(owning{h}))
}

// TestUpgradeOwnHandlers hands on connections with a handler of their own, and half a line, to
// their handler in the new process; one when it can be saved. Those stay that are not saved, and
// one is closed that gets no handler.
func TestUpgradeOwnHandlers(t *testing.T) {
	for _, model := range Models() {
		t.Run(model, func(t *testing.T) {
			srv := &Server{Addr: "127.0.0.1:0", Model: model}
			srv.Successor = succeeded(t, successorConfig{Addr: srv.Addr, Model: model})
			whys := make(chan error, 10)
			srv.Handler = Lines(&counted{srv: srv, closed: func(why error) { whys <- why }})
			s := start(t, srv)
			var clients []*lineClient
			for _, says := range []string{"x", "remain", "later", "forget", "panic", ""} {
				client := newLineClient(t, "tcp", s.addr)
				client.want(t, "a", "a 1")
				if says != "" {
					client.want(t, "own", "is")
					client.want(t, says, "own "+says+" 3")
				}
				_, err := io.WriteString(client, "half ")
				must(t, err)
				clients = append(clients, client)
			}
			moves, stays, later, lost, panics, plain := clients[0], clients[1], clients[2], clients[3], clients[4], clients[5]
			eventually(t, func() bool { return s.Stats().BytesIn == 6*7+5*4+2+7+6+7+6 }, func() string { return "not all input has come" })
			upgraded := make(chan Upgraded, 1)
			go func() {
				u, err := s.Upgrade(context.Background())
				if err != nil {
					t.Error(err)
				}
				upgraded <- u
			}()
			panicked := 0
			for range 4 { // moves, lost, panics, plain
				why := testkit.Receive(t, whys, "the end of a connection here")
				if _, ok := errors.AsType[*PanicError](why); ok {
					panicked++
				} else if !errors.Is(why, ErrHandedOver) {
					t.Errorf("closed for %v, want ErrHandedOver", why)
				}
			}
			if panicked != 1 {
				t.Errorf("%d were closed for a panic, want 1", panicked)
			}
			later.want(t, "a line", "own half a line 1") // the number was no number
			later.want(t, "go", "own go 2")
			u := testkit.Receive(t, upgraded, "the end of the upgrade")
			if u.Moved != 4 || u.Lost != 0 {
				t.Errorf("%+v; want 4 moved", u)
			}
			moves.want(t, "a line", "own half a line 4")
			if answer, err := moves.ask("pid"); err != nil || answer == "" {
				t.Errorf("the new process: %q, %v", answer, err)
			}
			plain.want(t, "a line", "half a line 2")
			later.want(t, "x", "own x 3")
			stays.want(t, "a line", "own half a line 1") // then it is drained
			for _, c := range []*lineClient{lost, panics, stays} {
				if line, err := c.in.ReadString('\n'); err == nil {
					t.Errorf("a connection that was to end says %q", line)
				}
			}
			ok(t, s.result(t))
			ends(t, "tcp", s.addr)
		})
	}
}
