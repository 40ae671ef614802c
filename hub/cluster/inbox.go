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
	node       *Node
	messages   chan *nats.Msg
	spaceFreed chan struct{} // there is some again; has room for one
	gaps       gapDetector

	received, duplicates, lost atomic.Int64
	mu                         sync.Mutex
	nodes                      map[string]*nodeInfo // by origin

	confirmingSubscription atomic.Bool // a subscription is to be confirmed, and nothing is delivered yet

	pauseRequests chan chan struct{} // each is closed when the pause has begun
	resumed       chan struct{}      // with mu; ends a pause: nil without
}

// nodeInfo is what is known of another node.
type nodeInfo struct {
	hub.NodeStats
	lastSeen time.Time
}

const (
	// maxQueued is the most messages that wait while more are read; one read has readSize bytes
	// at the most, in which there are fewer messages than the rest of the room.
	maxQueued     = 16
	readSize      = 32 << 10
	inboxCapacity = maxQueued + readSize/8
	// maxQueuedUnconfirmed is maxQueued until the subscription of a node that delivers nothing yet is confirmed: the
	// confirmation may come behind messages. The rest of the room is still enough for a read.
	maxQueuedUnconfirmed = readSize / 16
	// maxNodes is the most other nodes that are kept in mind.
	maxNodes = 256
)

func newInbox(n *Node) *inbox {
	in := &inbox{node: n, messages: make(chan *nats.Msg, inboxCapacity), spaceFreed: make(chan struct{}, 1), nodes: make(map[string]*nodeInfo),
		pauseRequests: make(chan chan struct{})}
	in.gaps.isGone = in.isGone
	return in
}

// waitForSpace waits until there are few messages.
func (in *inbox) waitForSpace() {
	for n := len(in.messages); n > maxQueuedUnconfirmed || n > maxQueued && !in.confirmingSubscription.Load(); n = len(in.messages) {
		select {
		case <-in.spaceFreed:
		case <-in.node.stopped:
			return
		}
	}
}

// deliverLoop delivers until done is closed.
func (in *inbox) deliverLoop(done <-chan struct{}) {
	in.waitForResume(done)
	for {
		select {
		case <-done:
			return
		case paused := <-in.pauseRequests:
			for range len(in.messages) {
				in.deliverNext(<-in.messages)
			}
			close(paused)
			in.waitForResume(done)
		case m := <-in.messages:
			in.deliverNext(m)
		}
	}
}

// deliverNext delivers a message that was taken, and has more read when few are left.
func (in *inbox) deliverNext(m *nats.Msg) {
	in.deliver(m)
	if len(in.messages) <= maxQueued {
		select {
		case in.spaceFreed <- struct{}{}:
		default:
		}
	}
}

func (in *inbox) deliver(m *nats.Msg) {
	k, name, ok := messageTopic(m.Subject, m.Header)
	if !ok {
		in.node.warnings.warnf("the subject %.100q is no topic of a hub", m.Subject)
		return
	}
	if in.node.comesByStream(k, name) { // it comes by the stream
		in.duplicates.Add(1)
		return
	}
	switch source, origin, number, numbered := parseSequence(m.Header.Get(sequenceHeader)); {
	case numbered && origin == in.node.origin:
		// It comes by a connection that this node has given up, whose end a server has yet to see.
		in.duplicates.Add(1)
		return
	case numbered:
		missing, duplicate := in.gaps.record(m.Subject, source, number)
		if duplicate {
			in.duplicates.Add(1)
			return
		}
		in.lost.Add(int64(missing))
		in.mu.Lock()
		if node := in.nodeLocked(origin); node != nil {
			node.Received++
			node.Lost += int64(missing)
		}
		in.mu.Unlock()
	case !in.node.subscriptions.isWidestMatch(m.Sub.Subject, m.Subject): // of a program that is no hub
		in.duplicates.Add(1)
		return
	}
	in.received.Add(1)
	in.node.hub.Deliver(k, name, m.Data)
}

// messageTopic is the topic of a message.
func messageTopic(subject string, header nats.Header) (k hub.Kind, name string, ok bool) {
	if full := header.Get(topicHeader); full != "" {
		i := strings.Index(subject, ".") + len(".t.")
		subject = subject[:min(i, len(subject))] + full
	}
	return parseTopicSubject(subject)
}

// nodeLocked is what is known of an origin; nil if there is no room. It is for who holds mu.
func (in *inbox) nodeLocked(origin string) *nodeInfo {
	n := in.nodes[origin]
	if n == nil {
		if len(in.nodes) >= maxNodes {
			return nil
		}
		n = &nodeInfo{NodeStats: hub.NodeStats{Name: origin}}
		in.nodes[strings.Clone(origin)] = n
	}
	return n
}

func (in *inbox) addStats(s *hub.ClusterStats) {
	s.Received, s.Duplicates, s.Lost = in.received.Load(), in.duplicates.Load(), in.lost.Load()
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	byName := make(map[string]hub.NodeStats) // several, if a node has started anew
	for _, n := range in.nodes {
		of := byName[n.Name]
		of.Name = n.Name
		of.Here = of.Here || now.Sub(n.lastSeen) < absenceTimeout
		of.Subscriptions += n.Subscriptions
		of.Received += n.Received
		of.Lost += n.Lost
		byName[n.Name] = of
	}
	s.Nodes = slices.SortedFunc(maps.Values(byName), func(a, b hub.NodeStats) int { return strings.Compare(a.Name, b.Name) })
}

// throttledConn is a connection to NATS that is read from while there is room for what comes.
type throttledConn struct {
	net.Conn
	inbox *inbox
}

func (c throttledConn) Read(p []byte) (int, error) {
	c.inbox.waitForSpace()
	return c.Conn.Read(p[:min(len(p), readSize)])
}

// Write closes a connection that has not taken something in time: nats.Conn would try again.
func (c throttledConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Conn.Close()
	}
	return n, err
}

// throttledDialer connects to servers elsewhere.
type throttledDialer struct {
	net.Dialer
	inbox *inbox
}

func (d *throttledDialer) Dial(network, address string) (net.Conn, error) {
	d.Timeout = connectTimeout
	c, err := d.Dialer.Dial(network, address)
	if err != nil {
		return nil, err
	}
	return throttledConn{c, d.inbox}, nil
}

// throttledInProcess connects to a server in this process.
type throttledInProcess struct {
	server nats.InProcessConnProvider
	inbox  *inbox
}

func (p throttledInProcess) InProcessConn() (net.Conn, error) {
	c, err := p.server.InProcessConn()
	if err != nil {
		return nil, err
	}
	return throttledConn{c, p.inbox}, nil
}
