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

const (
	// minRateShare is the share of their rate that honest clients keep under attack, checked at full scale only. They
	// mostly think, so the rate depends little on the speed of the machine.
	minRateShare = 0.8
	// tinyBuffer keeps the kernel's memory for all sockets below net.ipv4.tcp_mem; the server has to buffer the rest.
	tinyBuffer = 4 << 10
)

// TestNeverReadInCgroup has clients that send and never read attack a server in a small control group: 100,000 in
// 512 MiB at full scale. The server refuses or disconnects them, counted by reason, and is not killed. Honest clients,
// from another address, lose no connection and keep minRateShare of their rate.
//
// The server refuses what its descriptor limit does not allow. A server that admits all 100,000, with a descriptor
// table for each loop, is not tested: on two CPUs shared with the attackers, the kernel has killed it in some runs.
func TestNeverReadInCgroup(t *testing.T) {
	for _, model := range modelsToAttack() {
		t.Run(model, func(t *testing.T) { testNeverReadInCgroup(t, model) })
	}
}

func testNeverReadInCgroup(t *testing.T, model string) {
	n, memory, window, think, interval := 2000, int64(64<<20), 150*time.Millisecond, 20*time.Millisecond, 100*time.Millisecond
	if fullScale {
		n, memory, window, think, interval = 100_000, 512<<20, 5*time.Second, 100*time.Millisecond, 10*time.Second
	} else if testkit.RaceEnabled {
		memory *= 16
	}
	spec := serverSpec{Model: model, Socket: tcp.Socket{SendBuffer: tinyBuffer, ReceiveBuffer: tinyBuffer}}
	spec.Limits.WriteTimeout = max(2*window, shortTimeout/2)
	group := testkit.NewMemoryCgroup(t, memory)
	command := group.Command(os.Args[0])
	s := startServer(t, spec, exec.Command(command[0], command[1:]...))
	s.startHonestClients(&HonestClients{Conns: 100, ThinkTime: think})

	before := s.honestRate(window, func() {})
	var swarms []*Swarm
	during := s.honestRate(window, func() { swarms = s.startNeverReaders(n, interval) })
	s.waitEachClientAnswered()
	st := s.waitForStats("all are admitted or refused, and some are refused or disconnected", func(st tcp.Stats) bool {
		c := st.Closed
		return st.Accepted+st.Refused.Total() >= s.statsBefore.Accepted+int64(n) &&
			st.Refused.Full+st.Refused.Overload+c.Budget+c.Write+c.SlowConsumer > 0
	})
	t.Logf("%d open, overload actions [%v], refused %+v, closed %+v", st.Open, st.Overload, st.Refused, st.Closed)
	s.stopSwarms(swarms...)
	alone := (before + s.honestRate(window, func() {})) / 2

	s.waitEachClientAnswered()
	t.Logf("honest clients: %.0f answers/s under attack, %.0f without: %.2f", during, alone, during/alone)
	if fullScale && during < minRateShare*alone {
		t.Errorf("honest clients had %.0f answers/s under attack, %.0f without; want a share of %v", during, alone, minRateShare)
	}
	if st = s.readStats(); st.Refused.Other+st.Closed.Other > 0 {
		t.Errorf("connections ended for reasons without a counter: %+v, %+v", st.Refused, st.Closed)
	}
	if kills := group.OOMKills(t); kills > 0 {
		t.Errorf("the kernel has killed %d processes", kills)
	}
	s.stopServer()
}

// startNeverReaders starts n attackers with as many source addresses and descriptor tables as they need. It returns
// when all have dialed.
func (s *testServer) startNeverReaders(n int, interval time.Duration) (swarms []*Swarm) {
	const perSource = 16_700 // a source has 28,232 ports, and a table 20,000 descriptors or more
	lines := bytes.Repeat(append(bytes.Repeat([]byte("r"), 1023), '\n'), 4)
	for source := netip.MustParseAddr("127.0.1.1"); n > 0; source = source.Next() {
		w := NeverRead(s.addr, min(n, perSource), lines, interval)
		w.Source, w.OwnTable, w.SocketBuffers = source, true, tinyBuffer
		swarms = append(swarms, s.startSwarm(w))
		s.waitForSwarm(w, "all have dialed", func(c SwarmCounts) bool { return c.Dials == int64(w.Conns) })
		n -= w.Conns
	}
	return swarms
}

// honestRate returns the answers per second to honest clients while event runs and for a window after it.
func (s *testServer) honestRate(window time.Duration, event func()) float64 {
	from, begun := s.clients.Report().Answers, time.Now()
	event()
	after := time.Now()
	testkit.WaitFor(s, "the window is over", func() bool { return time.Since(after) >= window })
	return float64(s.clients.Report().Answers-from) / time.Since(begun).Seconds()
}
