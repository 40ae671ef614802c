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

// The kernel counts the bytes of each connection, so finding those with the most traffic does not involve the server.

const (
	maxTalkerConns    = 50_000  // maximum number of connections whose traffic is read
	maxScannedSockets = 1 << 18 // maximum number of TCP sockets in the network namespace, because all are scanned
	talkerInterval    = 2 * time.Second
	maxShownTalkers   = 15
)

type topTalkers struct {
	at        time.Time
	counts    map[uint64]byteCounts // counters at the last reading, by socket cookie
	elapsed   time.Duration         // time between the last two readings
	top       []talker              // highest traffic first
	connCount int                   // number of all connections
	err       error                 // reason for an empty list
}

type byteCounts struct{ in, out int64 }

type talker struct {
	sock.ConnInfo
	inRate, outRate float64
}

func (t *topTalkers) readTrafficIfDue(now time.Time, s tcp.Stats, addr net.Addr) {
	if !t.at.IsZero() && now.Sub(t.at) < talkerInterval {
		return
	}
	talks, err := listConnTraffic(s, addr)
	if t.err = err; err != nil {
		*t = topTalkers{at: now, err: err}
		return
	}
	t.computeRatesAndTop(now, talks)
}

// listConnTraffic reads the traffic of each connection. It fails if there are too many connections.
func listConnTraffic(s tcp.Stats, listenAddr net.Addr) ([]sock.ConnInfo, error) {
	if listenAddr == nil {
		return nil, errors.New("the server does not listen yet, so its address is unknown")
	}
	tcp, ok := listenAddr.(*net.TCPAddr)
	if !ok {
		return nil, errors.New("the kernel counts bytes only for TCP connections; the network of the server is " + listenAddr.Network())
	}
	if s.Open > maxTalkerConns {
		return nil, fmt.Errorf("%d connections are open; their traffic is shown only for up to %d, because reading it is expensive", s.Open, maxTalkerConns)
	}
	n, _ := procfs.ReadNetworkOfCurrentNamespace() // without a number there is no limit
	if n.Open+n.TimeWait > maxScannedSockets {
		return nil, fmt.Errorf("this machine has %d TCP sockets; traffic is shown only for up to %d, because reading it is expensive", n.Open+n.TimeWait, maxScannedSockets)
	}
	at := tcp.AddrPort()
	talks, err := sock.ListAcceptedConns(at.Port(), maxTalkerConns)
	if errors.Is(err, errors.ErrUnsupported) {
		return nil, errors.New("the traffic of connections is available only on Linux")
	}
	if host := at.Addr().Unmap(); err == nil && !host.IsUnspecified() {
		talks = slices.DeleteFunc(talks, func(t sock.ConnInfo) bool { return t.Local.Addr() != host.WithZone("") })
	}
	return talks, err
}

func (t *topTalkers) computeRatesAndTop(now time.Time, conns []sock.ConnInfo) {
	before, first := t.counts, t.counts == nil
	t.elapsed, t.at, t.connCount = now.Sub(t.at), now, len(conns)
	t.counts = make(map[uint64]byteCounts, len(conns))
	t.top = t.top[:0]
	for _, talk := range conns {
		t.counts[talk.Cookie] = byteCounts{talk.BytesIn, talk.BytesOut}
		one := talker{ConnInfo: talk}
		if !first {
			was := before[talk.Cookie] // zero for a new connection
			one.inRate, one.outRate = growthPerSecondOrNaN(was.in, talk.BytesIn, t.elapsed), growthPerSecondOrNaN(was.out, talk.BytesOut, t.elapsed)
		}
		t.insertIfAmongTop(one)
	}
	if first {
		t.elapsed = 0
	}
}

func (t *topTalkers) insertIfAmongTop(one talker) {
	at, _ := slices.BinarySearchFunc(t.top, one, compareByRateDescending)
	if at == maxShownTalkers {
		return
	}
	if len(t.top) == maxShownTalkers {
		t.top = t.top[:maxShownTalkers-1]
	}
	t.top = slices.Insert(t.top, at, one)
}

// compareByRateDescending orders connections by current traffic, then by unsent bytes, then by total traffic.
func compareByRateDescending(a, b talker) int {
	return cmp.Or(
		cmp.Compare(b.inRate+b.outRate, a.inRate+a.outRate),
		cmp.Compare(b.Unsent, a.Unsent),
		cmp.Compare(b.BytesIn+b.BytesOut, a.BytesIn+a.BytesOut),
		cmp.Compare(a.Cookie, b.Cookie),
	)
}
