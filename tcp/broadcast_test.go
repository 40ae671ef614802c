package tcp

import "testing"

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
		expectEqual(t, "broadcasts counted", s.Stats().Broadcasts, 1)
	})
}
