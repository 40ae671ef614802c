package admission

import (
	"math/rand/v2"
	"net/netip"
	"testing"
)

func (c *Controller) countSources() (n int) {
	for i := range c.sources.shards {
		s := &c.sources.shards[i]
		s.mu.Lock()
		n += len(s.count)
		s.mu.Unlock()
	}
	return n
}

func TestSourceUncounted(t *testing.T) {
	if NewController(Config{}).AcquireConn() {
		t.Error("one of 0 connections got in")
	}
	d := NewController(Config{MaxPerSource: 1})
	for range 3 {
		if !d.AcquireSourceConn(netip.Addr{}) {
			t.Fatal("a unix socket was counted")
		}
	}
	d.ReleaseSourceConn(netip.Addr{})
	if d.countSources() != 0 {
		t.Error("a unix socket has an entry")
	}

	d = NewController(Config{})
	a := netip.IPv6Loopback()
	for range 3 {
		if !d.AcquireSourceConn(a) || d.TakeRateToken(0) != 0 {
			t.Fatal("there is no bound, and it was reached")
		}
	}
	if n := testing.AllocsPerRun(100, func() { d.AcquireSourceConn(a); d.ReleaseSourceConn(a) }); n != 0 || d.sources != nil {
		t.Errorf("without a bound: %v allocations, maps %v", n, d.sources != nil)
	}
}

// TestAgainstPlain compares random operations with counts in plain maps.
func TestAgainstPlain(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		c := Config{MaxConns: r.IntN(40), MaxPerSource: 1 + r.IntN(4), SourcePrefix: 1 + r.IntN(128)}
		d := NewController(c)
		counts := make(map[netip.Prefix]int)
		var in []netip.Addr
		key := func(a netip.Addr) netip.Prefix {
			a = a.Unmap().WithZone("")
			bits := 32
			if a.Is6() {
				bits = c.SourcePrefix
			}
			return netip.PrefixFrom(a, bits).Masked()
		}
		for step := range 2000 {
			if r.IntN(5) < 2 && len(in) > 0 {
				i := r.IntN(len(in))
				a := in[i]
				in[i] = in[len(in)-1]
				in = in[:len(in)-1]
				d.ReleaseSourceConn(a)
				d.ReleaseConn()
				if counts[key(a)]--; counts[key(a)] == 0 {
					delete(counts, key(a))
				}
			} else {
				a := randomAddr(r)
				entered := d.AcquireConn()
				if want := len(in) < c.MaxConns; entered != want {
					t.Fatalf("seed %d, step %d: Acquire with %d of %d: %v", seed, step, len(in), c.MaxConns, entered)
				}
				if !entered {
					continue
				}
				registered := d.AcquireSourceConn(a)
				if want := counts[key(a)] < c.MaxPerSource; registered != want {
					t.Fatalf("seed %d, step %d: AcquireSourceConn(%v) with %d of %d: %v", seed, step, a, counts[key(a)], c.MaxPerSource, registered)
				}
				if !registered {
					d.ReleaseConn()
					continue
				}
				in = append(in, a)
				counts[key(a)]++
			}
			if d.OpenConns() != int64(len(in)) || step%16 == 0 && d.countSources() != len(counts) {
				t.Fatalf("seed %d, step %d: %d in of %d sources, want %d of %d", seed, step, d.OpenConns(), d.countSources(), len(in), len(counts))
			}
		}
		for _, a := range in {
			d.ReleaseSourceConn(a)
			d.ReleaseConn()
		}
		if d.OpenConns() != 0 || d.countSources() != 0 {
			t.Fatalf("seed %d: %d in of %d sources at the end", seed, d.OpenConns(), d.countSources())
		}
	}
}
