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
	maxTalks  = 50_000  // connections
	maxLooked = 1 << 18 // TCP sockets of the network namespace, all of which are gone through
	talkEvery = 2 * time.Second
	topTalks  = 15 // that are shown
)

// talkers are the connections of a server that talk most.
type talkers struct {
	at     time.Time
	counts map[uint64]counted // at the last look, by cookie
	over   time.Duration      // between the last two looks
	top    []talker           // the loudest first
	all    int                // of so many
	err    error              // why there are none
}

// counted is what a connection had said at a look.
type counted struct{ in, out int64 }

// talker is a connection, and what it has said a second.
type talker struct {
	sock.ConnInfo
	inRate, outRate float64
}

// look looks at the sockets, if it is time.
func (t *talkers) look(now time.Time, s tcp.Stats, addr net.Addr) {
	if !t.at.IsZero() && now.Sub(t.at) < talkEvery {
		return
	}
	talks, err := readTalks(s, addr)
	if t.err = err; err != nil {
		*t = talkers{at: now, err: err}
		return
	}
	t.take(now, talks)
}

// readTalks reads the sockets, unless that would cost too much.
func readTalks(s tcp.Stats, addr net.Addr) ([]sock.ConnInfo, error) {
	if addr == nil {
		return nil, errors.New("the address of the server is not known before it listens")
	}
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return nil, errors.New("the kernel counts bytes of TCP connections only, and the server listens on " + addr.Network())
	}
	if s.Open > maxTalks {
		return nil, fmt.Errorf("to look at the counters of more than %d connections would cost too much, and %d are open", maxTalks, s.Open)
	}
	n, _ := procfs.ReadNetwork() // where it can't be read there is no bound
	if n.Open+n.TimeWait > maxLooked {
		return nil, fmt.Errorf("to look through more than %d TCP sockets of this machine would cost too much, and there are %d", maxLooked, n.Open+n.TimeWait)
	}
	at := tcp.AddrPort()
	talks, err := sock.ListConns(at.Port(), maxTalks)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, errors.New("only Linux tells what its connections have said")
	}
	if host := at.Addr().Unmap(); err == nil && !host.IsUnspecified() {
		talks = slices.DeleteFunc(talks, func(t sock.ConnInfo) bool { return t.Local.Addr() != host.WithZone("") })
	}
	return talks, err
}

// take takes what was read, and finds the loudest.
func (t *talkers) take(now time.Time, talks []sock.ConnInfo) {
	before, first := t.counts, t.counts == nil
	t.over, t.at, t.all = now.Sub(t.at), now, len(talks)
	t.counts = make(map[uint64]counted, len(talks))
	t.top = t.top[:0]
	for _, talk := range talks {
		t.counts[talk.Cookie] = counted{talk.BytesIn, talk.BytesOut}
		one := talker{ConnInfo: talk}
		if !first {
			was := before[talk.Cookie] // nothing, of one that is new
			one.inRate, one.outRate = perSecond(was.in, talk.BytesIn, t.over), perSecond(was.out, talk.BytesOut, t.over)
		}
		t.offer(one)
	}
	if first {
		t.over = 0
	}
}

// offer takes a connection among the loudest, if it is one of them.
func (t *talkers) offer(one talker) {
	at, _ := slices.BinarySearchFunc(t.top, one, louder)
	if at == topTalks {
		return
	}
	if len(t.top) == topTalks {
		t.top = t.top[:topTalks-1]
	}
	t.top = slices.Insert(t.top, at, one)
}

// louder sorts by what is said now, then by what waits, then by what was said before.
func louder(a, b talker) int {
	return cmp.Or(
		cmp.Compare(b.inRate+b.outRate, a.inRate+a.outRate),
		cmp.Compare(b.Unsent, a.Unsent),
		cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut),
		cmp.Compare(a.Cookie, b.Cookie),
	)
}
