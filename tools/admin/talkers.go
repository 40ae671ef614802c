package admin

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// This file finds who talks most, without a word to the server: the kernel counts the
// bytes of each connection, and what differs between two looks at its counters is what
// was said between them.

// The bounds of it.
const (
	maxTalkerConns    = 50_000  // connections
	maxScannedSockets = 1 << 18 // TCP sockets of the network namespace, all of which are gone through
	talkerInterval    = 2 * time.Second
	maxShownTalkers   = 15 // that are shown
)

// topTalkers are the connections of a server that talk most.
type topTalkers struct {
	at        time.Time
	counts    map[uint64]byteCounts // at the last look, by cookie
	elapsed   time.Duration         // between the last two looks
	top       []talker              // the loudest first
	connCount int                   // of so many
	err       error                 // why there are none
}

// byteCounts is what a connection had said at a look.
type byteCounts struct{ in, out int64 }

// talker is a connection, and what it has said a second.
type talker struct {
	sock.ConnInfo
	inRate, outRate float64
}

// updateIfDue looks at the sockets, if it is time.
func (t *topTalkers) updateIfDue(now time.Time, s tcp.Stats, addr net.Addr) {
	if !t.at.IsZero() && now.Sub(t.at) < talkerInterval {
		return
	}
	talks, err := readConnTraffic(s, addr)
	if t.err = err; err != nil {
		*t = topTalkers{at: now, err: err}
		return
	}
	t.updateRates(now, talks)
}

// readConnTraffic reads the sockets, unless that would cost too much.
func readConnTraffic(s tcp.Stats, addr net.Addr) ([]sock.ConnInfo, error) {
	if addr == nil {
		return nil, errors.New("the address of the server is not known before it listens")
	}
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return nil, errors.New("the kernel counts bytes of TCP connections only, and the server listens on " + addr.Network())
	}
	if s.Open > maxTalkerConns {
		return nil, fmt.Errorf("to look at the counters of more than %d connections would cost too much, and %d are open", maxTalkerConns, s.Open)
	}
	n, _ := procfs.ReadNetwork() // where it can't be read there is no bound
	if n.Open+n.TimeWait > maxScannedSockets {
		return nil, fmt.Errorf("to look through more than %d TCP sockets of this machine would cost too much, and there are %d", maxScannedSockets, n.Open+n.TimeWait)
	}
	at := tcp.AddrPort()
	talks, err := sock.ListConns(at.Port(), maxTalkerConns)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, errors.New("only Linux tells what its connections have said")
	}
	if host := at.Addr().Unmap(); err == nil && !host.IsUnspecified() {
		talks = slices.DeleteFunc(talks, func(t sock.ConnInfo) bool { return t.Local.Addr() != host.WithZone("") })
	}
	return talks, err
}

// updateRates takes what was read, and finds the loudest.
func (t *topTalkers) updateRates(now time.Time, talks []sock.ConnInfo) {
	before, first := t.counts, t.counts == nil
	t.elapsed, t.at, t.connCount = now.Sub(t.at), now, len(talks)
	t.counts = make(map[uint64]byteCounts, len(talks))
	t.top = t.top[:0]
	for _, talk := range talks {
		t.counts[talk.Cookie] = byteCounts{talk.BytesIn, talk.BytesOut}
		one := talker{ConnInfo: talk}
		if !first {
			was := before[talk.Cookie] // nothing, of one that is new
			one.inRate, one.outRate = ratePerSecond(was.in, talk.BytesIn, t.elapsed), ratePerSecond(was.out, talk.BytesOut, t.elapsed)
		}
		t.insertIfTop(one)
	}
	if first {
		t.elapsed = 0
	}
}

// insertIfTop takes a connection among the loudest, if it is one of them.
func (t *topTalkers) insertIfTop(one talker) {
	at, _ := slices.BinarySearchFunc(t.top, one, compareTraffic)
	if at == maxShownTalkers {
		return
	}
	if len(t.top) == maxShownTalkers {
		t.top = t.top[:maxShownTalkers-1]
	}
	t.top = slices.Insert(t.top, at, one)
}

// compareTraffic sorts by what is said now, then by what waits, then by what was said before.
func compareTraffic(a, b talker) int {
	return cmp.Or(
		cmp.Compare(b.inRate+b.outRate, a.inRate+a.outRate),
		cmp.Compare(b.Unsent, a.Unsent),
		cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut),
		cmp.Compare(a.Cookie, b.Cookie),
	)
}
