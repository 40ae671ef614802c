package hub

import (
	"strconv"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// BenchmarkCommands runs commands that come pipelined, 100 at once, without a network: what
// parsing and running them costs, with the way of messages and replies through a connection.
func BenchmarkCommands(b *testing.B) {
	const batch = 100
	message := strings.Repeat("x", 64)
	for _, row := range []struct {
		name, setup, command string
		receivers            int
	}{
		{"PING", "", array("PING"), 0},
		{"PUBLISH/0", "", array("PUBLISH", "news.today", message), 0},
		{"PUBLISH/1", "", array("PUBLISH", "news.today", message), 1},
		{"PUBLISH/100", "", array("PUBLISH", "news.today", message), 100},
		{"SUBSCRIBE+UNSUBSCRIBE", "SUBSCRIBE first\r\n", array("SUBSCRIBE", "news.today") + array("UNSUBSCRIBE", "news.today"), 0},
	} {
		b.Run(row.name, func(b *testing.B) {
			h := new(Hub)
			s := virtual(b, h, tcp.Limits{MaxMessage: 1 << 20, MaxUnsent: 64 << 20, HighWater: 64 << 20})
			var receivers []*tcptest.Peer
			for range row.receivers {
				p := s.Dial()
				p.Send("SUBSCRIBE news.today\r\n")
				receivers = append(receivers, p)
			}
			p := s.Dial()
			p.Send(row.setup + "PING\r\n")
			in := []byte(strings.Repeat(row.command, batch))
			b.ReportAllocs()
			for n := 0; n < b.N; n += batch {
				if _, err := p.Write(in); err != nil {
					b.Fatal(err)
				}
				if len(p.Output()) < batch {
					b.Fatal("commands are not answered")
				}
				for _, r := range receivers {
					if r.Output() == "" {
						b.Fatal("messages have not come")
					}
				}
			}
		})
	}
}

// BenchmarkRead reads commands of some arguments.
func BenchmarkRead(b *testing.B) {
	for _, n := range []int{3, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			words := make([]string, n)
			for i := range words {
				words[i] = "argument"
			}
			in := []byte(array(words...))
			r := reader{sizes: sizesFor(1<<20, false)}
			b.ReportAllocs()
			b.SetBytes(int64(len(in)))
			for b.Loop() {
				if size, err := r.next(in, new(scan)); size != len(in) || err != nil {
					b.Fatal(size, err)
				}
			}
		})
	}
}
