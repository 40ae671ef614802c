package hub

import (
	"context"
	"slices"
	"time"
)

// Cluster connects a Hub with other hubs. Package hub/cluster contains an implementation. Methods must be safe for
// concurrent use. Event loops call the methods, so a method may block only if its comment says so.
type Cluster interface {
	// PublishOrCountLost queues a message for the other hubs. It must not keep a reference to message. It fails only if
	// the message is too long. If the queue is full, it counts the message in ClusterStats.Unsent. kind is Topic or
	// Sharded.
	PublishOrCountLost(kind Kind, topic string, message []byte) (tooLong error)
	// QueueForReplay queues a message for the stream of Hub.Replay. Every node calls Hub.KeepAndDeliver once the stream
	// has stored it. QueueForReplay must not keep a reference to message. It fails if the message is too long or the
	// queue is full.
	QueueForReplay(topic string, message []byte) error
	// Newest returns the position of the newest message in the stream. It may block until ctx ends.
	Newest(ctx context.Context) (Position, error)
	// Changed tells the cluster that a topic or pattern has gained its first subscriber on this hub, or lost its last.
	Changed(kind Kind, name string)
	// Subscribers returns the number of subscribers on the other hubs for each name. It may block until ctx ends. Hubs
	// that have not answered by then are not counted.
	Subscribers(ctx context.Context, kind Kind, names []string) (onOtherHubs []int)
	// Names returns names that match pattern and have subscribers on other hubs. A name may appear more than once. The
	// names take at most maxBytes; omitted counts the others. Names may block until ctx ends. Hubs that have not
	// answered by then are not included.
	Names(ctx context.Context, kind Kind, pattern string, maxBytes int) (names []string, omitted int)
	// Largest returns the topics of each other hub that begin with prefix and have the most subscribers, at most limit
	// topics per hub. For ctx, maxBytes and omitted, see Names.
	Largest(ctx context.Context, prefix string, limit, maxBytes int) (names []string, omitted int)
	// Stats returns the current state and the counters of this node.
	Stats() ClusterStats
}

// ClusterMigrator is a Cluster that can move to a new process together with the hub's clients (see tcp.Server.Upgrade).
// The old and the new process do not receive each other's messages through the cluster.
type ClusterMigrator interface {
	// PauseDelivery stops delivery until Resume. The returned state identifies the messages delivered so far.
	PauseDelivery() (state []byte)
	// Restore passes the result of PauseDelivery in the old process to the new process. After Resume, the new process
	// delivers the messages that have arrived since PauseDelivery.
	Restore(state []byte) error
	// Resume continues delivery after the clients have moved. It must be called in the old process first, then in the
	// new one. In the old process, Resume returns when all queued messages have been sent. The new process sends
	// nothing before its own Resume. If delivery is not paused, Resume has no effect.
	Resume()
}

// ClusterStats contains a node's current state and its counters since the node started.
type ClusterStats struct {
	// Connected reports whether the node is connected to NATS. Disconnects counts lost connections to NATS.
	Connected   bool
	Disconnects int64
	// Subjects is the number of NATS subjects to which the node is subscribed. SubscribedToAll reports whether these
	// are wildcards that cover all topics, for example because the hub has too many topics for separate subscriptions.
	Subjects        int64
	SubscribedToAll bool
	// Sent counts messages sent to other nodes. Waiting and WaitingBytes are the current size of the queue of messages
	// to send. Unsent counts messages that were lost instead, for example because the queue was full.
	Sent, Waiting, WaitingBytes, Unsent int64
	// Received counts messages from other nodes. Duplicates counts further copies, which are not delivered.
	Received, Duplicates int64
	// Lost counts messages from other nodes that did not arrive.
	Lost int64
	// Nodes lists at most 256 other nodes, ordered by name.
	Nodes []NodeStats
}

// NodeStats describes another node of the cluster.
type NodeStats struct {
	Name string
	// Present reports whether the node has announced itself in the last 3.5 seconds.
	Present bool
	// Subscriptions is the number of client subscriptions that the node last announced.
	Subscriptions int64
	// Received and Lost count messages as in ClusterStats, but only those from this node.
	Received, Lost int64
}

// Subscribers returns the number of this hub's clients that are subscribed to the given topic or pattern.
func (h *Hub) Subscribers(kind Kind, name string) int {
	_, n := h.tableForKind(kind).findTopic(name)
	return n
}

// Subscriptions returns the current number of subscriptions of all clients of this hub.
func (h *Hub) Subscriptions() int64 { return h.subscriptions.Load() }

// EachName calls f for each topic or pattern of the given kind that has subscribers on this hub. EachName stops when f
// returns false. f must not subscribe or unsubscribe clients.
func (h *Hub) EachName(kind Kind, f func(name string, subscribers int) bool) {
	h.tableForKind(kind).eachTopic(func(t *topic) bool { return f(t.name, int(t.subscribers)) })
}

// Matcher compiles a PSUBSCRIBE pattern. The returned function reports whether a topic matches the pattern. The
// function is safe for concurrent use.
func Matcher(pattern string) func(topic string) bool { return compileGlob(pattern).matches }

const clusterQueryTimeout = 200 * time.Millisecond

// namesOnOtherHubs returns the names on other hubs that match pattern. The names take at most maxBytes. omitted is the
// number of matching names that do not fit.
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

func (h *Hub) notifyClusterSubscribersChanged(kind Kind, name string) {
	if h.Cluster != nil {
		h.Cluster.Changed(kind, name)
	}
}
