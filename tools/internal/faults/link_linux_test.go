package faults

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Weather is what a Link does to packets, in both directions.
type Weather struct {
	// Loss is how many of all packets are lost, from 0 to 1.
	Loss float64
	// Delay is how long a packet takes at least, Jitter how much longer it takes at
	// most, so that packets overtake each other.
	Delay, Jitter time.Duration
	Seed          uint64
}

// The addresses at the ends of a Link.
var (
	ClientAddr = netip.AddrFrom4([4]byte{10, 77, 0, 1})
	ServerAddr = netip.AddrFrom4([4]byte{10, 77, 0, 2})
)

// Link is two networks, one for clients and one for a server, and the link between them,
// whose packets go through this process: so no queueing discipline of the kernel, such as
// netem, is needed. Each direction has a goroutine, and each packet under way a timer; Close
// waits for them.
type Link struct {
	Clients, Server *Namespace

	weather                            atomic.Pointer[Weather]
	cut                                atomic.Bool
	passed, lost, overtaken, overflown atomic.Int64
	files                              [2]*os.File
	carries                            sync.WaitGroup
}

const (
	// maxInFlight is how many packets are on the way in one direction at most.
	maxInFlight = 8192
	// maxPacket is more than the largest packet, whose size is the interface's
	// default of 1,500 bytes.
	maxPacket = 2048
)

// link makes one that ends with the test, or skips the test where that is not allowed.
func link(t *testing.T, w Weather) *Link {
	t.Helper()
	l := &Link{}
	l.weather.Store(&w)
	t.Cleanup(l.close)
	for i, end := range []struct {
		in **Namespace
		ip netip.Addr
	}{{&l.Clients, ClientAddr}, {&l.Server, ServerAddr}} {
		var err error
		if *end.in, err = NewNamespace(); err == nil {
			err = (*end.in).Do(func() (err error) {
				l.files[i], err = tunnel("myriad0", end.ip.AsSlice())
				return err
			})
		}
		if errors.Is(err, os.ErrPermission) || errors.Is(err, os.ErrNotExist) {
			t.Skipf("this test needs root, network namespaces and /dev/net/tun: %v", err)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	l.carries.Go(func() { l.carry(l.files[0], l.files[1], 0) })
	l.carries.Go(func() { l.carry(l.files[1], l.files[0], 1) })
	return l
}

func (l *Link) close() {
	for _, f := range l.files {
		if f != nil {
			f.Close()
		}
	}
	l.carries.Wait()
	for _, n := range []*Namespace{l.Clients, l.Server} {
		if n != nil {
			n.Close()
		}
	}
}

// carry takes packets from one end to the other, until the ends are closed.
func (l *Link) carry(from, to *os.File, direction uint64) {
	var flying sync.WaitGroup
	defer flying.Wait()
	room := make(chan struct{}, maxInFlight)
	random := rand.New(rand.NewPCG(l.weather.Load().Seed, direction))
	var mu sync.Mutex
	latest := int64(-1)
	buf := make([]byte, maxPacket)
	for number := int64(0); ; number++ {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		w := l.weather.Load()
		if random.Float64() < w.Loss || l.cut.Load() {
			l.lost.Add(1)
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			l.overflown.Add(1)
			continue
		}
		packet := bytes.Clone(buf[:n])
		flying.Add(1)
		time.AfterFunc(w.Delay+time.Duration(random.Int64N(int64(w.Jitter)+1)), func() {
			defer flying.Done()
			_, err := to.Write(packet)
			<-room
			if err != nil {
				return // the link is being closed
			}
			l.passed.Add(1)
			mu.Lock()
			defer mu.Unlock()
			if number < latest {
				l.overtaken.Add(1)
			}
			latest = max(latest, number)
		})
	}
}
