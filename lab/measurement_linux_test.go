package lab

import (
	"net"
	"testing"

	"github.com/myriad-go/myriad/load"
)

// TestBeginCounts counts the connections of a server whose sockets say little: when it was
// ready it had more than later, as one does that then shares them out among tables of its
// own. Only where the kernel does not tell, here because they are too many, it is the
// sockets that count.
func TestBeginCounts(t *testing.T) {
	o := children(t)
	l := newLauncher()
	t.Cleanup(l.close)
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.start([]string{o.Self, "plain", addr, Echo}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	m := &measurement{runner: &runner{sampled: true}, server: &server{process: p, addr: addr}, record: &RunRecord{Result: &load.Result{}}}
	conn, err := m.server.awaitReady(t.Context(), Echo, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ready(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	const open, more = 3, 53
	for range open {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := askSlow(conn, Echo); err != nil {
			t.Fatal(err)
		}
	}
	m.record.Samples[0].Sockets += more
	for asked, want := range map[int]int{50: open, open - 1 - room: open - more} {
		m.workload = Workload{Kind: Throughput, Connections: asked}
		m.record.Samples = m.record.Samples[:1]
		if err := m.begin(); err != nil {
			t.Fatal(err)
		}
		if err := m.sample(Measured, cpu); err != nil {
			t.Fatal(err)
		}
		if f := m.record.serverFiguresAt(1, Pinning{}); f == nil || f.Connections != want {
			t.Errorf("%d connections asked for, %d open: got %+v, want %d", asked, open, f, want)
		}
	}
}
