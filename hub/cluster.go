package hub

import (
	"context"
	"slices"
	"time"
)

// Cluster connects a Hub with other hubs, so that a published message reaches the subscribers of all hubs. Package
// hub/cluster implements it. Methods must be safe for concurrent use. Event loops call the methods, so a method must
// not block unless its comment permits blocking.
type Cluster interface {
	// Publish forwards a message to the other hubs. It must not keep a reference to message. An error means that the
	// message can never be sent. Later losses are not reported. The argument kind is Topic or Sharded.
	Publish(kind Kind, name string, message []byte) error
	// Keep stores a message in the stream for Hub.Replay, and later calls Hub.DeliverKept with it. It must not keep a
	// reference to message. It fails if the queue is full.
	Keep(topic string, message []byte) error
	// Newest returns the position of the newest message in the stream. It may block until ctx ends.
	Newest(ctx context.Context) (Position, error)
	// Changed reports that a name has gained its first subscriber on this hub or lost its last. Hub.Subscribers returns
	// the current number.
	Changed(kind Kind, name string)
	// Subscribers returns the number of subscribers on the other hubs for each name. It may block until ctx ends, and
	// omits hubs that have not answered by then.
	Subscribers(ctx context.Context, kind Kind, names []string) []int
	// Names returns names that match pattern and have subscribers on other hubs. A name may appear more than once. The
	// names take at most maxBytes; omitted counts the others. Names may block until ctx ends, and omits hubs that have
	// not answered by then.
	Names(ctx context.Context, kind Kind, pattern string, maxBytes int) (names []string, omitted int)
	// Largest returns the topics with the given prefix that have the most subscribers: up to limit topics of each other
	// hub. Apart from the choice of names, it is like Names.
	Largest(ctx context.Context, prefix string, limit, maxBytes int) (names []string, omitted int)
	// Stats returns the counters.
	Stats() ClusterStats
}

// ClusterMigrator is a Cluster whose node can move to a new process together with the hub's clients (see
// tcp.Server.Upgrade). Other hubs see the old and the new process as one node. The cluster delivers no messages between
// these two processes.
type ClusterMigrator interface {
	// Pause stops delivery until Resume. The returned state identifies the messages delivered so far.
	Pause() (state []byte)
	// Restore loads the state into the new process. After Resume, the new process delivers the messages that have
	// arrived since Pause.
	Restore(state []byte) error
	// Resume continues delivery after the clients have moved. It must be called in the old process first, then in the
	// new one. In the old process, Resume returns when all queued messages have been sent. The new process sends
	// nothing before its own Resume. If nothing is paused, Resume has no effect.
	Resume()
}

// ClusterStats contains a node's current state and its counters since the node started.
type ClusterStats struct {
	// Connected reports whether the node is connected to NATS. Disconnects counts lost connections.
	Connected   bool
	Disconnects int64
	// Subjects is the current number of subscribed NATS subjects. All reports whether the node currently subscribes to
	// every topic.
	Subjects int64
	All      bool
	// Sent counts forwarded messages. Waiting and WaitingBytes are the current size of the send queue. Unsent counts
	// messages lost because the queue was full.
	Sent, Waiting, WaitingBytes, Unsent int64
	// Received counts messages from other nodes. Duplicates counts further copies of a message, which arrive through
	// other subscriptions and are dropped.
	Received, Duplicates int64
	// Lost counts messages from other nodes that did not arrive. Gaps in the sequence numbers reveal them.
	Lost int64
	// Nodes lists other known nodes, sorted by name. The list is limited in length.
	Nodes []NodeStats
}

// NodeStats describes another node.
type NodeStats struct {
	Name string
	// Here reports whether the node has been heard from in the last few seconds.
	Here bool
	// Subscriptions is the number of subscriptions that the node has announced.
	Subscriptions int64
	// Received and Lost are like those of ClusterStats, for messages of this node only.
	Received, Lost int64
}

// Subscribers returns the number of subscribers of a name on this hub.
func (h *Hub) Subscribers(kind Kind, name string) int {
	return h.tableForKind(kind).subscriberCount(name)
}

// Subscriptions returns the current number of subscriptions of all clients of this hub.
func (h *Hub) Subscriptions() int64 { return h.subscriptions.Load() }

// EachName calls f for each name of the given kind that has subscribers on this hub, in no particular order. It stops
// when f returns false. f must not subscribe.
func (h *Hub) EachName(kind Kind, f func(name string, subscribers int) bool) {
	h.tableForKind(kind).eachName(f)
}

// Matcher compiles a pattern by the rules of PSUBSCRIBE. The returned function reports whether a topic matches. The
// function takes time proportional to the topic's length and is safe for concurrent use.
func Matcher(pattern string) func(topic string) bool { return compileGlob(pattern).matches }

const clusterQueryTimeout = 200 * time.Millisecond

// namesOnOtherHubs returns the names on other hubs that match pattern, without duplicates. The result is limited to
// maxBytes. omitted is the number of names left out.
func (h *Hub) namesOnOtherHubs(ctx context.Context, kind Kind, pattern string, maxBytes int) (names []string, omitted int) {
	if h.Cluster == nil {
		return nil, 0
	}
	ctx, cancel := context.WithTimeout(ctx, clusterQueryTimeout)
	defer cancel()
	names, omitted = h.Cluster.Names(ctx, kind, pattern, maxBytes)
	slices.Sort(names)
	return slices.Compact(names), omitted
}

func (h *Hub) countWithoutLocalSubscribers(kind Kind, names []string) (n int) {
	for _, name := range names {
		if h.Subscribers(kind, name) == 0 {
			n++
		}
	}
	return n
}

func (h *Hub) subscriberCountsOnAllHubs(ctx context.Context, kind Kind, names []string) []int {
	counts := make([]int, len(names))
	if h.Cluster != nil {
		ctx, cancel := context.WithTimeout(ctx, clusterQueryTimeout)
		defer cancel()
		counts = h.Cluster.Subscribers(ctx, kind, names)
	}
	for i, name := range names {
		counts[i] += h.Subscribers(kind, name)
	}
	return counts
}

func (h *Hub) notifyClusterOfSubscribers(kind Kind, name string) {
	if h.Cluster != nil {
		h.Cluster.Changed(kind, name)
	}
}
