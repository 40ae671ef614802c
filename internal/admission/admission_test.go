package admission

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// TestReserve checks that reserved slots are not taken by others.
func TestReserve(t *testing.T) {
	d := NewController(Config{MaxConns: 5})
	if !d.AcquireConn() || d.ReserveConns(3) != 3 || !d.AcquireConn() || d.AcquireConn() || d.ReserveConns(1) != 0 {
		t.Fatal("there are not 2 open and 3 promised of 5")
	}
	d.AcquireReservedConn()
	if d.OpenConns() != 3 || d.ReservedConns() != 2 || d.AcquireConn() {
		t.Errorf("%d are open, %d promised; want 3 and 2", d.OpenConns(), d.ReservedConns())
	}
	d.CancelReservedConns(1)
	if !d.AcquireConn() || d.AcquireConn() {
		t.Error("there is not room for just one that was promised before")
	}
	d.CancelReservedConns(1)
	if n := d.ReserveConns(7); n != 1 {
		t.Errorf("%d are promised; want 1", n)
	}
}

// TestAcquireConcurrently checks that the limits are never exceeded, and that no connection is rejected
// while there are slots for all.
func TestAcquireConcurrently(t *testing.T) {
	const threads, turns, rate = 8, 20_000, 1000
	source := netip.IPv6Loopback()
	for _, room := range []int{3, threads} {
		d := NewController(Config{MaxConns: room, MaxPerSource: room, Rate: rate})
		var in, most, refused, tokens atomic.Int64
		var wg sync.WaitGroup
		for range threads {
			wg.Go(func() {
				for range turns {
					if !d.AcquireConn() {
						refused.Add(1)
						continue
					}
					if !d.AcquireSourceConn(source) {
						t.Error("the source has too many connections")
					}
					if d.TakeRateToken(0) == 0 {
						tokens.Add(1)
					}
					n := in.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					runtime.Gosched() // so that others find all slots taken
					in.Add(-1)
					d.ReleaseSourceConn(source)
					d.ReleaseConn()
				}
			})
		}
		wg.Wait()
		if most.Load() > int64(room) || d.OpenConns() != 0 || room == threads && refused.Load() != 0 {
			t.Errorf("room for %d: %d were in at most, %d at the end, %d were refused", room, most.Load(), d.OpenConns(), refused.Load())
		}
		if n := tokens.Load(); n != rate || d.countSources() != 0 {
			t.Errorf("%d tokens were taken, %d sources are left; want %d, 0", n, d.countSources(), rate)
		}
	}
}

func randomAddr(r *rand.Rand) netip.Addr {
	b := [4]byte{10, byte(r.IntN(3)), 0, byte(r.IntN(256))}
	switch r.IntN(4) {
	case 0:
		return netip.AddrFrom4(b)
	case 1:
		return netip.AddrFrom16(netip.AddrFrom4(b).As16())
	}
	a := [16]byte{0x20, 1, 5: byte(r.IntN(3)), 7: byte(r.IntN(4)), 8: byte(r.IntN(2) * 128), 15: byte(r.IntN(256))}
	if r.IntN(8) == 0 {
		a = [16]byte{15: byte(r.IntN(256))}
	}
	return netip.AddrFrom16(a).WithZone([]string{"", "eth0"}[r.IntN(2)])
}

func anyContains(list []netip.Prefix, a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	for _, p := range list {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if p.Contains(a) {
			return true
		}
	}
	return false
}

func TestAllowedAgainstPlain(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var c Config
		for _, l := range []*[]netip.Prefix{&c.Allow, &c.Deny} {
			for range r.IntN(12) {
				a := randomAddr(r)
				*l = append(*l, netip.PrefixFrom(a, a.BitLen()-min(r.IntN(12)*r.IntN(12), a.BitLen())))
			}
		}
		d := NewController(c)
		if !d.IsAllowed(netip.Addr{}) {
			t.Fatal("a unix socket is not allowed")
		}
		for range 200 {
			a := randomAddr(r)
			want := !anyContains(c.Deny, a) && (len(c.Allow) == 0 || anyContains(c.Allow, a))
			if deny := NewPrefixes(c.Deny); deny.Contains(a) != anyContains(c.Deny, a) {
				t.Fatalf("seed %d: %v in %v: %v", seed, a, c.Deny, deny.Contains(a))
			}
			if got := d.IsAllowed(a); got != want {
				t.Fatalf("seed %d: %v is allowed: %v, want %v; allow %v, deny %v", seed, a, got, want, c.Allow, c.Deny)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for says, c := range map[string]Config{
		"MaxConns:-1":      {MaxConns: -1},
		"SourcePrefix:129": {SourcePrefix: 129},
		"Rate:-1":          {Rate: -1},
		"Allow[1] is not":  {Allow: []netip.Prefix{netip.MustParsePrefix("::/0"), {}}},
		"Deny[0] is not":   {Deny: make([]netip.Prefix, 1)},
	} {
		if got := recoverPanic(func() { NewController(c) }); !strings.Contains(got, says) {
			t.Errorf("New panics with %q; want it to say %q", got, says)
		}
	}
}

func TestMisuse(t *testing.T) {
	d := NewController(Config{MaxConns: 1, MaxPerSource: 1})
	if got := recoverPanic(d.ReleaseConn); !strings.Contains(got, "without Acquire") {
		t.Errorf("Release panics with %q", got)
	}
	if got := recoverPanic(func() { d.ReleaseSourceConn(netip.IPv6Loopback()) }); !strings.Contains(got, "without AcquireSourceConn") {
		t.Errorf("ReleaseSourceConn panics with %q", got)
	}
	if !d.AcquireSourceConn(netip.IPv6Loopback()) {
		t.Error("a lock was kept, or a count")
	}
}

func recoverPanic(do func()) (what string) {
	defer func() { what = fmt.Sprint(recover()) }()
	do()
	return ""
}
