package hub

import (
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// BenchmarkCommands measures parsing and running pipelined commands, 100 at once, without a network.
func BenchmarkCommands(b *testing.B) {
	const batch = 100
	message := strings.Repeat("x", 64)
	for _, row := range []struct {
		name, setup, command string
		receivers            int
	}{
		{"PING", "", testkit.RESPCommand("PING"), 0},
		{"PUBLISH/0", "", testkit.RESPCommand("PUBLISH", "news.today", message), 0},
		{"PUBLISH/0/kept", "", testkit.RESPCommand("PUBLISH", "news.today", message), 0},
		{"PUBLISH/1/kept", "", testkit.RESPCommand("PUBLISH", "news.today", message), 1},
		{"PUBLISH/100/kept", "", testkit.RESPCommand("PUBLISH", "news.today", message), 100},
		{"PUBLISH/1", "", testkit.RESPCommand("PUBLISH", "news.today", message), 1},
		{"PUBLISH/100", "", testkit.RESPCommand("PUBLISH", "news.today", message), 100},
		{"SUBSCRIBE+UNSUBSCRIBE", "SUBSCRIBE first\r\n", testkit.RESPCommand("SUBSCRIBE", "news.today") + testkit.RESPCommand("UNSUBSCRIBE", "news.today"), 0},
	} {
		b.Run(row.name, func(b *testing.B) {
			h := new(Hub)
			if strings.HasSuffix(row.name, "/kept") {
				h.Replay = &Replay{Topics: []string{"news.*"}, MaxMessagesPerTopic: 1000}
			}
			s := serveVirtual(b, h, tcp.Limits{MaxMessage: 1 << 20, MaxUnsent: 64 << 20, HighWater: 64 << 20})
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
