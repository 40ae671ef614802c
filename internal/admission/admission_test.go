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

func addrs(s ...string) (a []netip.Addr) {
	for _, x := range s {
		a = append(a, netip.MustParseAddr(x))
	}
	return a
}

func list(s ...string) (p []netip.Prefix) {
	for _, x := range s {
		p = append(p, netip.MustParsePrefix(x))
	}
	return p
}

// TestPromise keeps places for those who are promised them.
func TestPromise(t *testing.T) {
	d := New(Config{MaxConns: 5})
	if !d.Acquire() || d.Promise(3) != 3 || !d.Acquire() || d.Acquire() || d.Promise(1) != 0 {
		t.Fatal("there are not 2 open and 3 promised of 5")
	}
	d.AcquirePromised()
	if d.Open() != 3 || d.Promised() != 2 || d.Acquire() {
		t.Errorf("%d are open, %d promised; want 3 and 2", d.Open(), d.Promised())
	}
	d.Unpromise(1)
	if !d.Acquire() || d.Acquire() {
		t.Error("there is not room for just one that was promised before")
	}
	d.Unpromise(1)
	if n := d.Promise(7); n != 1 {
		t.Errorf("%d are promised; want 1", n)
	}
}

// TestAcquireConcurrently has many threads at a controller: there are never too many in, and nobody is
// refused while there is room for all.
func TestAcquireConcurrently(t *testing.T) {
	const threads, turns = 8, 20_000
	for _, room := range []int{3, threads} {
		d := New(Config{MaxConns: room})
		var in, most, refused atomic.Int64
		var wg sync.WaitGroup
		for range threads {
			wg.Go(func() {
				for range turns {
					if !d.Acquire() {
						refused.Add(1)
						continue
					}
					n := in.Add(1)
					for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
					}
					runtime.Gosched() // so that others find it full
					in.Add(-1)
					d.Release()
				}
			})
		}
		wg.Wait()
		if most.Load() > int64(room) || d.Open() != 0 || room == threads && refused.Load() != 0 {
			t.Errorf("room for %d: %d were in at most, %d at the end, %d were refused", room, most.Load(), d.Open(), refused.Load())
		}
	}
}

func TestAllowed(t *testing.T) {
	for _, c := range []struct {
		name        string
		allow, deny []netip.Prefix
		let, denied []netip.Addr
	}{
		{"no lists", nil, nil, addrs("192.0.2.1", "::1", "::ffff:192.0.2.1", "fe80::1%eth0"), nil},
		{"deny", nil, list("192.0.2.0/24", "2001:db8::/32"),
			addrs("192.0.1.255", "192.0.3.0", "::ffff:192.0.3.0", "2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db9::", "0.0.0.0", "::", "255.255.255.255"),
			addrs("192.0.2.0", "192.0.2.255", "::ffff:192.0.2.7", "2001:db8::", "2001:db8:ffff:ffff:ffff:ffff:ffff:ffff")},
		{"allow", list("10.0.0.0/8", "fe80::/64"), nil,
			addrs("10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3", "fe80::1", "fe80::1%eth0"),
			addrs("9.255.255.255", "11.0.0.0", "fe80:0:0:1::", "::10.0.0.1", "::")},
		{"deny wins", list("10.0.0.0/8"), list("10.1.0.0/16"), addrs("10.0.0.1", "10.2.0.0"), addrs("10.1.2.3", "1.1.1.1")},
		{"deny wins over a smaller one", list("10.1.0.0/16"), list("10.0.0.0/8"), nil, addrs("10.1.2.3", "10.2.0.0")},
		{"all of IPv4", list("0.0.0.0/0"), nil, addrs("0.0.0.0", "255.255.255.255", "::ffff:1.2.3.4"), addrs("::", "::1", "ffff::")},
		{"all of IPv6", list("::/0"), nil, addrs("::", "2001:db8::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), addrs("1.2.3.4", "::ffff:1.2.3.4")},
		{"all", nil, list("::/0", "0.0.0.0/0"), nil, addrs("::", "1.2.3.4", "::ffff:1.2.3.4")},
		{"IPv4 in the form of IPv6", nil, list("::ffff:10.0.0.0/104"), addrs("11.0.0.0", "::"), addrs("10.0.0.1", "::ffff:10.255.255.255")},
		{"all of IPv4 in the form of IPv6", nil, list("::ffff:0:0/96"), addrs("::"), addrs("0.0.0.0", "::ffff:255.255.255.255")},
		{"beyond IPv4 in the form of IPv6", nil, list("::ffff:0:0/95"), addrs("1.2.3.4", "::ffff:1.2.3.4", "::ffff:ffff:ffff:ffff"), addrs("::fffe:0:1")},
		{"not masked", nil, list("10.1.2.3/8"), addrs("11.0.0.0"), addrs("10.0.0.0", "10.255.255.255")},
		{"single", nil, list("10.0.0.1/32", "::1/128"), addrs("10.0.0.0", "10.0.0.2", "::", "::2"), addrs("10.0.0.1", "::1")},
		{"one within the other", nil, list("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3/32"), addrs("11.0.0.0"), addrs("10.0.0.0", "10.1.2.3", "10.1.2.4", "10.2.0.0")},
		{"halves of 64 bits", nil, list("2001:db8:0:1::/64", "2001:db8::8000:0:0:0/65"),
			addrs("2001:db8::7fff:ffff:ffff:ffff", "2001:db8:0:2::"), addrs("2001:db8::8000:0:0:0", "2001:db8:0:1::", "2001:db8:0:1:ffff::")},
	} {
		d := New(Config{Allow: c.allow, Deny: c.deny})
		for want, some := range map[bool][]netip.Addr{true: append(c.let, netip.Addr{}), false: c.denied} {
			for _, a := range some {
				if got := d.Allowed(a); got != want {
					t.Errorf("%s: %v is allowed: %v, want %v", c.name, a, got, want)
				}
			}
		}
	}
}

// near is an address of few bits that vary, so that prefixes and addresses meet.
func near(r *rand.Rand) netip.Addr {
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

// plain asks each prefix, after both are in the form that netip compares.
func plain(list []netip.Prefix, a netip.Addr) bool {
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
				a := near(r)
				*l = append(*l, netip.PrefixFrom(a, a.BitLen()-min(r.IntN(12)*r.IntN(12), a.BitLen())))
			}
		}
		d := New(c)
		for range 200 {
			a := near(r)
			want := !plain(c.Deny, a) && (len(c.Allow) == 0 || plain(c.Allow, a))
			if deny := NewPrefixes(c.Deny); deny.Contain(a) != plain(c.Deny, a) {
				t.Fatalf("seed %d: %v in %v: %v", seed, a, c.Deny, deny.Contain(a))
			}
			if got := d.Allowed(a); got != want {
				t.Fatalf("seed %d: %v is allowed: %v, want %v; allow %v, deny %v", seed, a, got, want, c.Allow, c.Deny)
			}
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for says, c := range map[string]Config{
		"MaxConns:-1":      {MaxConns: -1},
		"MaxPerSource:-1":  {MaxPerSource: -1},
		"SourcePrefix:-1":  {SourcePrefix: -1},
		"SourcePrefix:129": {SourcePrefix: 129},
		"Rate:-1":          {Rate: -1},
		"Allow[1] is no":   {Allow: append(list("::/0"), netip.Prefix{})},
		"Deny[0] is no":    {Deny: make([]netip.Prefix, 1)},
	} {
		if got := panics(func() { New(c) }); !strings.Contains(got, says) {
			t.Errorf("New panics with %q; want it to say %q", got, says)
		}
	}
}

func TestMisuse(t *testing.T) {
	d := New(Config{MaxConns: 1, MaxPerSource: 1})
	if got := panics(d.Release); !strings.Contains(got, "without Acquire") {
		t.Errorf("Release panics with %q", got)
	}
	if got := panics(func() { d.ReleaseSource(netip.IPv6Loopback()) }); !strings.Contains(got, "without AcquireSource") {
		t.Errorf("ReleaseSource panics with %q", got)
	}
	if !d.AcquireSource(netip.IPv6Loopback()) {
		t.Error("a lock was kept, or a count")
	}
}

// panics is what do panics with.
func panics(do func()) (what string) {
	defer func() { what = fmt.Sprint(recover()) }()
	do()
	return ""
}
