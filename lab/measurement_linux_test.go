package lab

import (
	"net"
	"testing"
)

// TestBeginAsks has a server that shows fewer connections than it is to have: it is asked.
func TestBeginAsks(t *testing.T) {
	o := children(t)
	l := newLauncher()
	t.Cleanup(l.close)
	var addrs []string
	for range 2 {
		addr, err := freeAddr()
		if err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr)
	}
	p, err := l.start([]string{o.Self, "plain", addrs[0], Echo, "", "", "", addrs[1]}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	m := &measurement{runner: &runner{sampled: true}, server: &server{process: p, addr: addrs[0]}, record: &RunRecord{}, processes: 1,
		metrics: MetricsSource{Addr: addrs[1]}, workload: Workload{Kind: Throughput, Connections: 50}}
	conn, err := m.server.awaitReady(t.Context(), Echo, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.ready(t.Context(), conn); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		conn, err := net.Dial("tcp", addrs[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if err := ask(conn, Echo); err != nil {
			t.Fatal(err)
		}
	}
	for asked, want := range map[int]int{50: 3, 3: 0} {
		m.workload.Connections = asked
		m.record.Samples = m.record.Samples[:1]
		if err := m.begin(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := m.record.sample(Measuring).Connections; got != want {
			t.Errorf("%d connections of 3: the server said %d, want %d", asked, got, want)
		}
	}
}
