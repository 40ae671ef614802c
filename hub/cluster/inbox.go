package cluster

import (
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// inbox takes messages as they come, and delivers them to the hub's subscribers. While some wait,
// it does not read from NATS, which so sees that this node is slow, keeps what it has room for,
// and cuts the connection off when there is more. What is lost by that the numbers tell.
type inbox struct {
	node     *Node
	messages chan *nats.Msg
	room     chan struct{} // there is some again; has room for one
	gaps     gaps

	received, again, lost atomic.Int64
	mu                    sync.Mutex
	nodes                 map[string]*known // by origin

	confirming atomic.Bool // a subscription is to be confirmed, and nothing is delivered yet

	pauses  chan chan struct{} // each is closed when the pause has begun
	resumed chan struct{}      // with mu; ends a pause: nil without
}

// known is what is known of another node.
type known struct {
	hub.NodeStats
	seen time.Time
}

const (
	// maxUnread is the most messages that wait while more are read; one read has readSize bytes
	// at the most, in which there are fewer messages than the rest of the room.
	maxUnread = 16
	readSize  = 32 << 10
	inboxRoom = maxUnread + readSize/8
	// maxUnconfirmed is maxUnread until the subscription of a node that delivers nothing yet is confirmed: the
	// confirmation may come behind messages. The rest of the room is still enough for a read.
	maxUnconfirmed = readSize / 16
	// maxNodes is the most other nodes that are kept in mind.
	maxNodes = 256
)

func newInbox(n *Node) *inbox {
	in := &inbox{node: n, messages: make(chan *nats.Msg, inboxRoom), room: make(chan struct{}, 1), nodes: make(map[string]*known),
		pauses: make(chan chan struct{})}
	in.gaps.gone = in.gone
	return in
}

// wait waits until there are few messages.
func (in *inbox) wait() {
	for n := len(in.messages); n > maxUnconfirmed || n > maxUnread && !in.confirming.Load(); n = len(in.messages) {
		select {
		case <-in.room:
		case <-in.node.stop:
			return
		}
	}
}

// run delivers until done is closed.
func (in *inbox) run(done <-chan struct{}) {
	in.rest(done)
	for {
		select {
		case <-done:
			return
		case paused := <-in.pauses:
			for range len(in.messages) {
				in.next(<-in.messages)
			}
			close(paused)
			in.rest(done)
		case m := <-in.messages:
			in.next(m)
		}
	}
}

// next delivers a message that was taken, and has more read when few are left.
func (in *inbox) next(m *nats.Msg) {
	in.deliver(m)
	if len(in.messages) <= maxUnread {
		select {
		case in.room <- struct{}{}:
		default:
		}
	}
}

func (in *inbox) deliver(m *nats.Msg) {
	k, name, ok := topicOf(m.Subject, m.Header)
	if !ok {
		in.node.warned.say("the subject %.100q is no topic of a hub", m.Subject)
		return
	}
	if in.node.keeps(k, name) { // it comes by the stream
		in.again.Add(1)
		return
	}
	switch source, origin, number, numbered := parseNumber(m.Header.Get(numberHeader)); {
	case numbered && origin == in.node.origin:
		// It comes by a connection that this node has given up, whose end a server has yet to see.
		in.again.Add(1)
		return
	case numbered:
		missing, again := in.gaps.see(m.Subject, source, number)
		if again {
			in.again.Add(1)
			return
		}
		in.lost.Add(int64(missing))
		in.mu.Lock()
		if from := in.of(origin); from != nil {
			from.Received++
			from.Lost += int64(missing)
		}
		in.mu.Unlock()
	case !in.node.interest.widest(m.Sub.Subject, m.Subject): // of a program that is no hub
		in.again.Add(1)
		return
	}
	in.received.Add(1)
	in.node.hub.Deliver(k, name, m.Data)
}

// topicOf is the topic of a message.
func topicOf(subject string, header nats.Header) (k hub.Kind, name string, ok bool) {
	if full := header.Get(nameHeader); full != "" {
		i := strings.Index(subject, ".") + len(".t.")
		subject = subject[:min(i, len(subject))] + full
	}
	return nameOf(subject)
}

// of is what is known of an origin; nil if there is no room. It is for who holds mu.
func (in *inbox) of(origin string) *known {
	n := in.nodes[origin]
	if n == nil {
		if len(in.nodes) >= maxNodes {
			return nil
		}
		n = &known{NodeStats: hub.NodeStats{Name: origin}}
		in.nodes[strings.Clone(origin)] = n
	}
	return n
}

func (in *inbox) stats(s *hub.ClusterStats) {
	s.Received, s.Duplicates, s.Lost = in.received.Load(), in.again.Load(), in.lost.Load()
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	byName := make(map[string]hub.NodeStats) // several, if a node has started anew
	for _, n := range in.nodes {
		of := byName[n.Name]
		of.Name = n.Name
		of.Here = of.Here || now.Sub(n.seen) < absence
		of.Subscriptions += n.Subscriptions
		of.Received += n.Received
		of.Lost += n.Lost
		byName[n.Name] = of
	}
	s.Nodes = slices.SortedFunc(maps.Values(byName), func(a, b hub.NodeStats) int { return strings.Compare(a.Name, b.Name) })
}

// pacedConn is a connection to NATS that is read from while there is room for what comes.
type pacedConn struct {
	net.Conn
	inbox *inbox
}

func (c pacedConn) Read(p []byte) (int, error) {
	c.inbox.wait()
	return c.Conn.Read(p[:min(len(p), readSize)])
}

// Write closes a connection that has not taken something in time: nats.Conn would try again.
func (c pacedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Conn.Close()
	}
	return n, err
}

// pacedDialer connects to servers elsewhere.
type pacedDialer struct {
	net.Dialer
	inbox *inbox
}

func (d *pacedDialer) Dial(network, address string) (net.Conn, error) {
	d.Timeout = connectTime
	c, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return pacedConn{c, d.inbox}, nil
}

// paced connects to a server in this process.
type paced struct {
	server nats.InProcessConnProvider
	inbox  *inbox
}

func (p paced) InProcessConn() (net.Conn, error) {
	c, err := p.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	return pacedConn{c, p.inbox}, nil
}
