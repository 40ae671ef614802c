package tcp

import (
	"bufio"
	"testing"
)

func TestBroadcast(t *testing.T) {
	forEachModel(t, func(t *testing.T, model string, loops int) {
		s := startServer(t, &Server{Model: model, Loops: loops, Limits: Limits{MaxUnsent: 1000}})
		c := dial(t, s.addr)
		c.ExchangeLine("hello", "hello")
		_, err := s.Broadcast(Broadcast{All: true, Message: make([]byte, 1001)})
		expectError(t, "too much", err, ErrTooLarge)
		_, err = s.Broadcast(Broadcast{All: true, Message: []byte("news\n")})
		expectNoError(t, err)
		c.Expect("news\n")
		if n := s.Stats().Broadcasts; n != 1 {
			t.Errorf("counted %d broadcasts, want 1", n)
		}
	})
}

// Writable and Draining are found behind framers, and only where a handler has them.
func TestExtensions(t *testing.T) {
	for _, c := range []struct {
		h    Handler
		want bool
	}{
		{extendedHandler{}, true}, {Lines(extendedHandler{}), true}, {Split(bufio.ScanWords, extendedHandler{}), true},
		{Base{}, false}, {Lines(MessageFunc(echoLine)), false},
	} {
		_, writable := handlerAs[WritableHandler](c.h)
		_, draining := handlerAs[DrainingHandler](c.h)
		if writable != c.want || draining != c.want {
			t.Errorf("%T: Writable %v, Draining %v; want %v", c.h, writable, draining, c.want)
		}
	}
}

type extendedHandler struct{ hooks }

func (extendedHandler) Writable(*Conn) {}
func (extendedHandler) Draining(*Conn) {}
