package tcptest_test

import (
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// TestRandom lets peers act in random order.
func TestRandom(t *testing.T) {
	for seed := range uint64(20) {
		if first, again := playRandomScript(t, seed), playRandomScript(t, seed); first != again {
			t.Errorf("seed %d: %d and %d events, expected the same course", seed, strings.Count(first, "\n"), strings.Count(again, "\n"))
		}
	}
}

// playRandomScript plays a random script and returns a record of it.
func playRandomScript(t *testing.T, seed uint64) string {
	dice := rand.New(rand.NewPCG(seed, 0))
	s, srv, d := startRecorded(t, func(srv *tcp.Server) {
		srv.Limits = tcp.Limits{
			HighWater: 300, LowWater: 100, MaxUnsent: 4000,
			FirstByteTimeout: tcp.Never, MessageTimeout: tcp.Never, WriteTimeout: tcp.Never,
		}
	})
	peers := []*tcptest.Peer{s.Dial(), s.Dial(), s.Dial()}
	var said, got [3]string
	for range 100 {
		i := dice.IntN(len(peers))
		p := peers[i]
		switch dice.IntN(8) {
		case 0:
			p.StopReading()
		case 1:
			p.StopReading()
			p.ReadMore(dice.IntN(500))
		case 2:
			p.StartReading()
		case 3:
			s.Advance(time.Duration(dice.IntN(int(time.Minute))))
		case 4:
			got[i] += p.Output()
		default:
			text := strings.Repeat("abcdefg\n", 30)[:1+dice.IntN(240)]
			said[i] += text
			p.Send(text)
		}
	}
	for i, p := range peers {
		said[i] += "end\n"
		p.Send("end\n")
		p.StartReading()
		p.CloseWrite()
		p.ExpectClosed(io.EOF)
		if got[i] += p.Output(); got[i] != said[i] {
			t.Errorf("seed %d: peer %d got %d bytes of %d", seed, i, len(got[i]), len(said[i]))
		}
	}
	if n := srv.Stats().Open; n != 0 {
		t.Errorf("seed %d: %d connections are open", seed, n)
	}
	return strings.Join(d.events, "\n")
}
