package door

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"
)

func BenchmarkEnterLeave(b *testing.B) {
	d := New(Config{MaxConns: 1 << 20})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if !d.Enter() {
				b.Error("full")
			}
			d.Leave()
		}
	})
}

func BenchmarkOpen(b *testing.B) {
	d := New(Config{MaxConns: 1})
	for b.Loop() {
		d.Open()
	}
}

// clients are random addresses, half of them of IPv6.
func clients(n int) []netip.Addr {
	r := rand.New(rand.NewPCG(1, 4))
	some := make([]netip.Addr, n)
	for i := range some {
		var a [16]byte
		binary.BigEndian.PutUint64(a[:], r.Uint64())
		if i%2 == 0 {
			some[i] = netip.AddrFrom4([4]byte(a[:4]))
		} else {
			some[i] = netip.AddrFrom16(a)
		}
	}
	return some
}

// blocks is n prefixes, such as lists of networks have them.
func blocks(n int) (list []netip.Prefix) {
	r := rand.New(rand.NewPCG(1, 5))
	for _, a := range clients(n) {
		bits := 16 + r.IntN(9)
		if a.Is6() {
			bits = 32 + r.IntN(17)
		}
		list = append(list, netip.PrefixFrom(a, bits))
	}
	return list
}

func BenchmarkCheck(b *testing.B) {
	some := clients(1 << 12)
	for _, c := range []struct {
		name string
		c    Config
	}{
		{"none", Config{}},
		{"deny-10", Config{Deny: blocks(10)}},
		{"deny-50000", Config{Deny: blocks(50_000)}},
		{"both-50000", Config{Allow: append(blocks(49_998), list("0.0.0.0/0", "::/0")...), Deny: blocks(50_000)}},
	} {
		d := New(c.c)
		b.Run(c.name, func(b *testing.B) {
			i := 0
			for b.Loop() {
				d.Check(some[i%len(some)])
				i++
			}
		})
	}
}

func BenchmarkNew(b *testing.B) {
	deny := blocks(50_000)
	for b.Loop() {
		New(Config{Deny: deny})
	}
}

func BenchmarkRegister(b *testing.B) {
	some := clients(1 << 12)
	for _, c := range []struct {
		name string
		max  int
	}{{"unbounded", 0}, {"bounded", 100}} {
		d := New(Config{MaxPerSource: c.max})
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			var thread atomic.Int64
			b.RunParallel(func(pb *testing.PB) {
				i := int(thread.Add(1)) * 1000
				for pb.Next() {
					a := some[i%len(some)]
					if d.Register(a) {
						d.Unregister(a)
					}
					i++
				}
			})
		})
	}
}

func BenchmarkReady(b *testing.B) {
	for _, c := range []struct {
		name string
		rate int
	}{{"unbounded", 0}, {"bounded", 1_000_000}} {
		d := New(Config{Rate: c.rate})
		b.Run(c.name, func(b *testing.B) {
			start := time.Now()
			b.RunParallel(func(pb *testing.PB) {
				now := time.Since(start)
				for pb.Next() {
					now += 100
					d.Ready(now)
				}
			})
		})
	}
}
