package tcp

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// countersOnlyEngine is an engine with nothing but counters.
type countersOnlyEngine struct{ counts engine.Counts }

func (e countersOnlyEngine) Addr() net.Addr                        { return nil }
func (e countersOnlyEngine) ListenerStats() []engine.ListenerStats { return nil }
func (e countersOnlyEngine) Loops() int                            { return 3 }
func (e countersOnlyEngine) Dial(engine.DialRequest) error         { return nil }
func (e countersOnlyEngine) Broadcast([]byte) error                { return nil }
func (e countersOnlyEngine) Stop(context.Context) error            { return nil }
func (e countersOnlyEngine) PauseAccept(bool) error                { return nil }
func (e countersOnlyEngine) ClosePeerConns(netip.AddrPort) error   { return nil }
func (e countersOnlyEngine) Wait()                                 {}
func (e countersOnlyEngine) Counters() engine.Counts               { return e.counts }
func (e countersOnlyEngine) Adopt(net.Conn, int, []byte) error     { return nil }

// Each counter of the engines, which have different values here, appears in exactly one field of
// Stats.
func TestStatsHasEveryCounter(t *testing.T) {
	var n engine.Counts
	for i := range n {
		n[i] = 1_000_003 * int64(i+1)
	}
	times := map[int64]int{}
	var count func(v reflect.Value)
	count = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct, reflect.Array:
			if v.Kind() == reflect.Array {
				for i := range v.Len() {
					count(v.Index(i))
				}
				return
			}
			for i := range v.NumField() {
				count(v.Field(i))
			}
		case reflect.Int64:
			times[v.Int()]++
		}
	}
	s := &Server{engine: countersOnlyEngine{n}, model: "counting"}
	stats := s.Stats()
	count(reflect.ValueOf(stats))
	for i, v := range n {
		want := 1
		if engine.Counter(i) == engine.AcceptPausedCount {
			want = 0 // AcceptingPaused is no number
		}
		if times[v] != want {
			t.Errorf("counter %d is in %d fields of Stats, want %d", i, times[v], want)
		}
	}
	if stats.Loops != 3 || stats.Model != "counting" {
		t.Errorf("Loops is %d and Model %q", stats.Loops, stats.Model)
	}
	for name, h := range map[string]Histogram{"HandlerTime": stats.HandlerTime, "Lag": stats.Lag} {
		var sum int64
		for _, b := range h.Buckets {
			sum += b
		}
		if h.Count != sum {
			t.Errorf("%s.Count is %d, its buckets have %d", name, h.Count, sum)
		}
	}
}

// Each cause is counted in its own field and in the total.
func TestCausesByName(t *testing.T) {
	for i, cause := range []struct {
		cause engine.Cause
		of    func(Stats) int64
	}{
		{engine.RefusedFull, func(s Stats) int64 { return s.Refused.Full }},
		{engine.RefusedSource, func(s Stats) int64 { return s.Refused.Source }},
		{engine.RefusedDenied, func(s Stats) int64 { return s.Refused.Denied }},
		{engine.RefusedProxy, func(s Stats) int64 { return s.Refused.Proxy }},
		{engine.RefusedHandshake, func(s Stats) int64 { return s.Refused.Handshake }},
		{engine.RefusedTimeout, func(s Stats) int64 { return s.Refused.Timeout }},
	} {
		var c engine.Counters
		c.CountRefused(cause.cause)
		var n engine.Counts
		c.AddTo(&n)
		stats := (&Server{engine: countersOnlyEngine{n}}).Stats()
		if cause.of(stats) != 1 || stats.Refused.Total() != 1 {
			t.Errorf("cause %d: %+v", i, stats.Refused)
		}
	}
}

func TestHistogramBounds(t *testing.T) {
	var h Histogram
	if h.Bound(0) != time.Microsecond || h.Bound(3) != 8*time.Microsecond || h.Bound(Buckets-1) != Never {
		t.Errorf("bounds are %v, %v, %v", h.Bound(0), h.Bound(3), h.Bound(Buckets-1))
	}
	for i, d := range map[int]time.Duration{0: time.Microsecond, 1: 1500 * time.Nanosecond, 10: 1024 * time.Microsecond, Buckets - 1: time.Hour} {
		var c engine.Counters
		c.CountHandlerCall(d)
		var n engine.Counts
		c.AddTo(&n)
		if got := toHistogram(n.HandlerCallTimes()); got.Buckets[i] != 1 || got.Count != 1 || got.Sum != d {
			t.Errorf("%v is not in bucket %d: %+v", d, i, got)
		}
	}
}

func TestStatsBeforeTheStart(t *testing.T) {
	var s Server
	if got := s.Stats(); got != (Stats{}) {
		t.Errorf("Stats before the start: %+v", got)
	}
	s.Close()
	if !s.Stats().Draining {
		t.Error("a server that was closed is not draining")
	}
}
