package faults

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// TestNeverReadInCgroup has clients that send and never read attack a server in a small control group: 100,000 in
// 512 MiB at full scale. The server refuses or disconnects them, counted by reason, and is not killed. Honest clients,
// from another address, lose no connection and keep minRateShare of their rate.
//
// Loops have their own descriptor tables if one does not suffice. The goroutine model has one table, and refuses what
// exceeds it.
func TestNeverReadInCgroup(t *testing.T) {
	models := tcp.Models()
	if testing.Short() {
		models = models[min(1, len(models)-1):min(2, len(models))]
	}
	for _, model := range models {
		t.Run(model, func(t *testing.T) { testNeverReadInCgroup(t, model) })
	}
}

// minRateShare is the share of their rate without an attack that honest clients keep. They mostly think, so the rate
// depends little on the speed of the machine.
const minRateShare = 0.8

func testNeverReadInCgroup(t *testing.T, model string) {
	n, memory, rounds, window := 2000, int64(64<<20), 1, 250*time.Millisecond
	if fullScale {
		n, memory, rounds, window = 100_000, 512<<20, 1, 5*time.Second
	} else if raceEnabled {
		memory *= 4
	}
	group := testkit.NewMemoryCgroup(t, memory)
	spec := serverSpec{Model: model, Socket: tcp.Socket{SendBuffer: tinyBuffer, ReceiveBuffer: tinyBuffer}}
	spec.Limits.WriteTimeout = 2 * window
	if model != tcp.Goroutine {
		spec.Limits.MaxConns = n + 1000
	}
	command := group.Command(os.Args[0])
	s := startServer(t, spec, exec.Command(command[0], command[1:]...))
	s.startHonestClients(&HonestClients{Conns: 100, ThinkTime: window / 50})
	var alone, attacked float64
	for range rounds {
		alone += s.measureHonestRate(nil, window, func(tcp.Stats) bool { return true })
		var swarms []*Swarm
		before := s.readStats()
		last, begun := time.Now(), time.Now()
		most := int64(0)
		attacked += s.measureHonestRate(func() { swarms = s.startNeverReaders(n, window) }, window, func(st tcp.Stats) bool {
			most = max(most, st.Open)
			if testing.Verbose() && fullScale && time.Since(last) > 500*time.Millisecond {
				last = time.Now()
				ms, _ := os.ReadFile(string(group) + "/memory.stat")
				us, _ := os.ReadFile(string(group) + "/memory.usage_in_bytes")
				lines := ""
				for l := range bytes.Lines(ms) { if bytes.HasPrefix(l, []byte("total_cache")) || bytes.HasPrefix(l, []byte("total_rss ")) { lines += string(bytes.TrimSpace(l)) + " " } }
				s.Logf("%v open %d paused %d refused %d write %d budget %d reset %d closing %d buffered %d [%s] usage %s %s p99 %d", time.Since(begun), st.Open, st.Paused, st.Refused.Total(), st.Closed.Write, st.Closed.Budget, st.Closed.Reset, st.Closing, st.Buffered, st.Overload, bytes.TrimSpace(us), lines,s.clients.TakeLatency().ValueAtQuantile(99))
			}
			c := st.Closed
			return st.Accepted+st.Refused.Total() >= before.Accepted+before.Refused.Total()+int64(n) &&
				st.Refused.Total()+c.Budget+c.Write+c.Close+c.SlowConsumer > 0
		})
		if testing.Verbose() {
		for _, w := range swarms {
			s.Logf("%+v", w.Counts())
		}
		st := s.readStats()
		s.Logf("open %d paused %d most %d buffered %d %+v acceptErr %d", st.Open, st.Paused, most, st.Buffered, st.Overload, st.AcceptErrors)
		mx, _ := os.ReadFile(string(group)+"/memory.max_usage_in_bytes")
		ss, _ := os.ReadFile("/proc/net/sockstat")
		s.Logf("group max %s %v %s", mx, s.readFootprint(), ss)
		}
		s.stopSwarms(swarms...)
	}
	st := s.readStats()
	t.Logf("refused %+v, closed %+v", st.Refused, st.Closed)
	t.Logf("honest clients: %.0f answers per second alone, %.0f under attack: %.2f p99 %d", alone/float64(rounds), attacked/float64(rounds), attacked/alone, s.clients.TakeLatency().ValueAtQuantile(99))
	if attacked < minRateShare*alone {
		t.Error("rate")
	}
	s.waitEachClientAnswered()
	if kills := group.OOMKills(t); kills != 0 || st.Refused.Other+st.Closed.Other != 0 {
		t.Error("killed", kills)
	}
	s.stopServer()
}

// tinyBuffer keeps the kernel's memory for all sockets below net.ipv4.tcp_mem, and leaves the rest to the server.
const tinyBuffer = 4 << 10

// startNeverReaders starts n attackers with as many source addresses and descriptor tables as they need.
func (s *testServer) startNeverReaders(n int, interval time.Duration) (swarms []*Swarm) {
	const perSource = 16_700 // a source has 28,232 ports, a table may have 20,000 descriptors
	request := bytes.Repeat(append(bytes.Repeat([]byte("r"), 1023), '\n'), 4)
	for source := netip.MustParseAddr("127.0.1.1"); n > 0; source = source.Next() {
		w := NeverRead(s.addr, min(n, perSource), request, interval)
		w.Source, w.OwnTable, w.SocketBuffers = source, true, tinyBuffer
		swarms = append(swarms, s.startSwarm(w))
		s.waitForSwarm(w, "all have dialed", func(c SwarmCounts) bool { return c.Dials == int64(w.Conns) })
		n -= w.Conns
	}
	return swarms
}

// measureHonestRate returns the answers per second of honest clients, for at least window and until done.
func (s *testServer) measureHonestRate(f func(), window time.Duration, done func(tcp.Stats) bool) float64 {
	from, begun := s.clients.Report().Answers, time.Now()
	if f != nil { f() }
	s.waitForStats("done", func(st tcp.Stats) bool { time.Sleep(10*time.Millisecond); return done(st) && time.Since(begun) >= window })
	return float64(s.clients.Report().Answers-from) / time.Since(begun).Seconds()
}
