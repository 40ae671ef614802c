package lab

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/myriad-go/myriad"
)

// collecting is a server's address for figures that counts how often garbage is to be
// collected.
func collecting(t *testing.T) (addr string, times *atomic.Int32) {
	t.Helper()
	times = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/debug/pprof/heap" && r.FormValue("gc") == "1" {
			times.Add(1)
			return
		}
		json.NewEncoder(w).Encode(myriad.Stats{Model: "epoll"})
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), times
}

// someServer is a process without connections.
func someServer(t *testing.T) *server {
	t.Helper()
	l := newLauncher()
	t.Cleanup(l.close)
	addr, err := freeAddr()
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.start([]string{children(t).Self, "plain", addr, Echo}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.end)
	return &server{process: p, addr: addr}
}

// TestIdleCollects has a server collect what its start has left before the first sample,
// and a little before the later ones; one of several processes is left alone.
func TestIdleCollects(t *testing.T) {
	srv := someServer(t)
	for _, want := range []struct {
		moment    Moment
		processes int
		times     int32
	}{
		{Touched, 1, firstCollections}, {Held, 1, laterCollections}, {Exchanged, 1, laterCollections}, {Touched, 2, 0},
	} {
		addr, times := collecting(t)
		m := &measurement{runner: &runner{sampled: true}, server: srv, record: &RunRecord{}, processes: want.processes,
			metrics: MetricsSource{Addr: addr}, workload: Workload{Kind: Idle}}
		if ok, err := m.settled(t.Context(), want.moment, 0, 0, func(int) bool { return true }); !ok || err != nil {
			t.Fatalf("%s: got %v, %v", want.moment, ok, err)
		}
		if got := times.Load(); got != want.times || m.record.sample(want.moment) == nil {
			t.Errorf("%s, %d processes: collected %d times, want %d, and a sample", want.moment, want.processes, got, want.times)
		}
	}
}

// TestMillionCollects has it so before the two samples that sizes are told by.
func TestMillionCollects(t *testing.T) {
	srv := someServer(t)
	for processes, want := range map[int][3]int32{0: {firstCollections, 0, laterCollections}, 2: {0, 0, 0}} {
		addr, times := collecting(t)
		m := &millionRunner{
			runner: &runner{progress: newProgress(io.Discard, nil)}, server: srv, stats: newServerStats(addr),
			whole: &RunRecord{Processes: processes}, record: &MillionRun{},
		}
		defer m.stats.close()
		var got [3]int32
		if err := m.before(t.Context()); err != nil || m.record.Before.Server.RSS == 0 {
			t.Fatalf("got %+v, %v, want a sample", m.record.Before, err)
		}
		got[0] = times.Swap(0)
		for i, phase := range []string{phaseCheck, phaseIdle} {
			m.phase = phase
			if err := m.end(t.Context(), "", func(*MillionPhase) {}); err != nil {
				t.Fatal(err)
			}
			got[i+1] = times.Swap(0)
		}
		if got != want {
			t.Errorf("%d processes: collected %v times before the first sample, behind check and behind idle, want %v", processes, got, want)
		}
	}
}
