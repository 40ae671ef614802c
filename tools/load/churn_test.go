package load

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// TestLifetimeLost has a server that ends its connections: others take their places.
func TestLifetimeLost(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		s := serve(t, func(c net.Conn) {
			b := make([]byte, 64)
			_, _ = c.Read(b)
			_, _ = c.Write(b)
		})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		r, err := Run(ctx, Config{
			Target: s.addr(), Connections: 5, Model: model, Lifetime: time.Hour, Duration: time.Minute, ProgressEvery: 10 * time.Millisecond,
			Observe: func(e Event) {
				if s.accepted() >= 30 {
					cancel()
				}
			},
		})
		if err == nil || r.Connected < 25 || len(r.Lost) == 0 || r.Closed != 0 {
			t.Errorf("%v; %d connected, lost %v, closed %d; want some for those that were lost", err, r.Connected, r.Lost, r.Closed)
		}
	})
}

// TestLifetimeRefused tries again when nobody listens, and not too often.
func TestLifetimeRefused(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began := time.Now()
	r, err := Run(ctx, Config{
		Target: refusing(t), Connections: 10, Lifetime: time.Hour, Duration: time.Minute, ProgressEvery: 10 * time.Millisecond,
		Observe: func(e Event) {
			if e.Snapshot.Failed >= 30 {
				cancel()
			}
		},
	})
	most := 10 * (1 + int64(time.Since(began)/retryEvery))
	if n := r.ConnectErrors["connection refused"]; err == nil || n < 30 || n > most || len(r.ConnectErrors) != 1 {
		t.Errorf("%v; %v, want 10 at once and 10 each 100 ms, so up to %d", err, r.ConnectErrors, most)
	}
}

// TestTargetsOfAllKinds connects to a unix socket and to addresses of both families in
// turn, from sources that fit.
func TestTargetsOfAllKinds(t *testing.T) {
	one, unix := serve(t, echo), serveAt(t, "unix", filepath.Join(t.TempDir(), "s"), echo)
	f := &fakeEngine{}
	r, err := newRun(Config{Connections: 10}.filled(), []target{testTarget, {path: "/x"}})
	if err != nil {
		t.Fatal(err)
	}
	r.use(f, "")
	r.dialer.plan = []source{{addrs("127.0.0.1")[0], 10}} // as if there were many
	if err := r.dialer.issue(10); err != nil {
		t.Fatal(err)
	}
	for _, d := range f.dialled {
		if d.Check() != nil || d.Path == "" != d.Source.IsValid() {
			t.Errorf("dialled %+v", d)
		}
	}
	check(t, Config{Target: one.addr(), Also: []string{"unix:" + unix.addr()}, Connections: 10, Messages: 3})
	if n := unix.accepted(); n != 5 || one.accepted() != 5 {
		t.Errorf("%d connections to the unix socket and %d to the other, want 5 each", n, one.accepted())
	}
}

// TestMessagesThink waits for connections that think longer than the drain.
func TestMessagesThink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := simulation{run: fakeRun(Config{Connections: 2, Size: 2, Messages: 3, Think: 2 * time.Second, Drain: time.Second}, &fakeEngine{})}
		defer s.report.Stop()
		s.begin(0)
		var server sync.WaitGroup
		server.Go(func() { s.play(func() bool { return s.sum().run[nFinished] == 2 }) })
		if err := s.await(t.Context(), s.windowWait()); err != nil {
			t.Errorf("gave up: %v", err)
		}
		server.Wait()
		if sum := s.sum(); sum.run[nAnswered] != 6 || sum.run[nExchanged] != 2 {
			t.Errorf("%d answers, %d exchanged all; want 6 and 2", sum.run[nAnswered], sum.run[nExchanged])
		}
	})
}
