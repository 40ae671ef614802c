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

// inbox queues messages from other nodes and delivers them to the hub's subscribers.
type inbox struct {
	node       *Node
	messages   chan *nats.Msg
	spaceFreed chan struct{} // capacity 1
	gaps       gapDetector

	received, duplicates, lost atomic.Int64
	mu                         sync.Mutex
	nodes                      map[string]*nodeInfo // by origin; guarded by mu

	confirmingSubscription atomic.Bool // nothing is delivered until the server confirms a subscription

	pauseRequests chan chan struct{} // a channel sent here is closed when the pause has begun
	resumed       chan struct{}      // guarded by mu; closed at the end of a pause, nil without one
}

type nodeInfo struct {
	hub.NodeStats
	lastSeen time.Time
}

const (
	// maxQueued is the queue length above which the node stops reading from NATS.
	maxQueued     = 16
	readSize      = 32 << 10
	inboxCapacity = maxQueued + readSize/8
	// maxQueuedUnconfirmed replaces maxQueued while a new subscription is unconfirmed.
	maxQueuedUnconfirmed = readSize / 16
	maxNodes             = 256
)

func newInbox(n *Node) *inbox {
	in := &inbox{node: n, messages: make(chan *nats.Msg, inboxCapacity), spaceFreed: make(chan struct{}, 1), nodes: make(map[string]*nodeInfo),
		pauseRequests: make(chan chan struct{})}
	in.gaps.isGone = in.mayForgetSequencesOf
	return in
}

func (in *inbox) waitForSpace() {
	for n := len(in.messages); n > maxQueuedUnconfirmed || n > maxQueued && !in.confirmingSubscription.Load(); n = len(in.messages) {
		select {
		case <-in.spaceFreed:
		case <-in.node.stopped:
			return
		}
	}
}

func (in *inbox) deliverOrPauseUntilStopped(stopped <-chan struct{}) {
	in.waitIfPausedResumeOnTimeout(stopped)
	for {
		select {
		case <-stopped:
			return
		case paused := <-in.pauseRequests:
			for range len(in.messages) {
				in.deliverAndSignalSpace(<-in.messages)
			}
			close(paused)
			in.waitIfPausedResumeOnTimeout(stopped)
		case m := <-in.messages:
			in.deliverAndSignalSpace(m)
		}
	}
}

func (in *inbox) deliverAndSignalSpace(m *nats.Msg) {
	in.deliverUnlessDuplicate(m)
	if len(in.messages) <= maxQueued {
		select {
		case in.spaceFreed <- struct{}{}:
		default:
		}
	}
}

func (in *inbox) deliverUnlessDuplicate(m *nats.Msg) {
	kind, name, ok := topicOfMessage(m.Subject, m.Header)
	if !ok {
		in.node.warnings.warnf("subject %.100q is not a topic of a hub", m.Subject)
		return
	}
	if in.node.comesByStream(kind, name) { // delivered from the stream
		in.duplicates.Add(1)
		return
	}
	switch source, origin, number, numbered := parseSequenceHeader(m.Header.Get(sequenceHeader)); {
	case numbered && origin == in.node.origin:
		// The message was sent on an old connection of this node. The server has not yet noticed that it is closed.
		in.duplicates.Add(1)
		return
	case numbered:
		missing, duplicate := in.gaps.recordSequence(m.Subject, source, number)
		if duplicate {
			in.duplicates.Add(1)
			return
		}
		in.lost.Add(int64(missing))
		in.mu.Lock()
		if node := in.getOrAddNodeLocked(origin); node != nil {
			node.Received++
			node.Lost += int64(missing)
		}
		in.mu.Unlock()
	case !in.node.subscriptions.isWidestSubscriptionFor(m.Sub.Subject, m.Subject): // from a program that is not a hub
		in.duplicates.Add(1)
		return
	}
	in.received.Add(1)
	in.node.hub.Deliver(kind, name, m.Data)
}

func topicOfMessage(subject string, header nats.Header) (kind hub.Kind, name string, ok bool) {
	if full := header.Get(topicHeader); full != "" {
		i := strings.Index(subject, ".") + len(".t.")
		subject = subject[:min(i, len(subject))] + full
	}
	return parseTopicSubject(subject)
}

// getOrAddNodeLocked returns the node with the given origin, or nil if there are too many nodes. The caller holds mu.
func (in *inbox) getOrAddNodeLocked(origin string) (nodeOrNil *nodeInfo) {
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

func (in *inbox) fillReceiveAndNodeStats(s *hub.ClusterStats) {
	s.Received, s.Duplicates, s.Lost = in.received.Load(), in.duplicates.Load(), in.lost.Load()
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	byName := make(map[string]hub.NodeStats) // a restarted node has several origins
	for _, n := range in.nodes {
		stats := byName[n.Name]
		stats.Name = n.Name
		stats.Present = stats.Present || now.Sub(n.lastSeen) < absenceTimeout
		stats.Subscriptions += n.Subscriptions
		stats.Received += n.Received
		stats.Lost += n.Lost
		byName[n.Name] = stats
	}
	s.Nodes = slices.SortedFunc(maps.Values(byName), func(a, b hub.NodeStats) int { return strings.Compare(a.Name, b.Name) })
}

// readThrottledConnClosingOnWriteErr is a connection to NATS. Each read waits until the inbox has space. After a write
// error, the connection closes.
type readThrottledConnClosingOnWriteErr struct {
	net.Conn
	inbox *inbox
}

func (c readThrottledConnClosingOnWriteErr) Read(p []byte) (int, error) {
	c.inbox.waitForSpace()
	return c.Conn.Read(p[:min(len(p), readSize)])
}

// Write writes p to the connection, and closes the connection after an error.
func (c readThrottledConnClosingOnWriteErr) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if err != nil {
		_ = c.Conn.Close()
	}
	return n, err
}

// readThrottledDialer opens connections to NATS. The connections read only while the inbox has space.
type readThrottledDialer struct {
	server nats.InProcessConnProvider
	inbox  *inbox
}

func (d readThrottledDialer) Dial(network, address string) (net.Conn, error) {
	return d.throttle(net.DialTimeout(network, address, connectTimeout))
}

func (d readThrottledDialer) InProcessConn() (net.Conn, error) {
	return d.throttle(d.server.InProcessConn())
}

func (d readThrottledDialer) throttle(c net.Conn, dialErr error) (net.Conn, error) {
	if dialErr != nil {
		return nil, dialErr
	}
	return readThrottledConnClosingOnWriteErr{c, d.inbox}, nil
}
