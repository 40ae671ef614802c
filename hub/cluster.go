package hub

import (
	"context"
	"slices"
	"time"
)

// Cluster connects a Hub with other hubs, so that a published message reaches the subscribers of all hubs. Package
// hub/cluster implements it. Methods must be safe for concurrent use. They are called from event loops and must not
// block unless documented.
type Cluster interface {
	// Publish forwards a message to the other hubs. It must not retain message. An error means that the message can
	// never be sent; a later loss is not reported. The argument kind is Topic or Sharded.
	Publish(kind Kind, name string, message []byte) error
	// Keep stores a message of a topic that Hub.Replay keeps, and later calls Hub.DeliverKept. It must not retain
	// message. It fails if there is no space.
	Keep(topic string, message []byte) error
	// Newest returns the position of the newest stored message. It may block until ctx ends.
	Newest(ctx context.Context) (Position, error)
	// Changed reports that a name has gained its first subscriber on this hub or lost its last. Hub.Subscribers
	// returns the current number.
	Changed(kind Kind, name string)
	// Subscribers returns the number of subscribers of each name on the other hubs. Hubs that do not answer before ctx
	// ends are not counted. It may block.
	Subscribers(ctx context.Context, kind Kind, names []string) []int
	// Names returns the names with subscribers on other hubs that match a pattern. Names may repeat. It returns at
	// most maxBytes of names, and the number of omitted names. Hubs that do not answer before ctx ends are ignored. It
	// may block.
	Names(ctx context.Context, kind Kind, pattern string, maxBytes int) (names []string, omitted int)
	// Largest returns up to limit topics of each other hub: the topics with the given prefix and the most subscribers
	// there. Otherwise it is like Names.
	Largest(ctx context.Context, prefix string, limit, maxBytes int) (names []string, omitted int)
	// Stats returns the counters.
	Stats() ClusterStats
}

// ClusterMigrator is a Cluster whose node can continue in a new process, together with the hub's clients (see
// tcp.Server.Upgrade). Other hubs see both processes as one node. The cluster does not deliver messages between the
// two processes.
type ClusterMigrator interface {
	// Pause stops delivery until Resume. The result state identifies the messages delivered so far.
	Pause() (state []byte)
	// Restore loads the state into the new process. The new process delivers nothing before Resume; then it delivers
	// messages that have arrived since Pause.
	Restore(state []byte) error
	// Resume continues delivery after the clients have moved. It must be called in the old process first, then in the
	// new one. In the old process, it returns when that process's messages have been sent. The new process sends
	// nothing before its own Resume. If nothing is paused, Resume has no effect.
	Resume()
}

// ClusterStats contains a node's counters since its start, and some current values.
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
	// Received counts messages from other nodes. Duplicates counts messages that arrived through several
	// subscriptions; each is delivered once.
	Received, Duplicates int64
	// Lost counts missing messages of other nodes. Gaps in the sequence numbers reveal them.
	Lost int64
	// Nodes lists other known nodes, sorted by name. The list is limited in length.
	Nodes []NodeStats
}

// NodeStats describes another node.
type NodeStats struct {
	Name string
	// Here reports whether the node has sent anything in the last few seconds.
	Here bool
	// Subscriptions is the number of subscriptions that the node has announced.
	Subscriptions int64
	// Received and Lost count messages of this node, as in ClusterStats.
	Received, Lost int64
}

// Subscribers returns the number of subscribers of a name on this hub.
func (h *Hub) Subscribers(kind Kind, name string) int {
	return h.tableForKind(kind).subscriberCount(name)
}

// Subscriptions returns the current number of subscriptions of all clients of this hub.
func (h *Hub) Subscriptions() int64 { return h.subscriptions.Load() }

// EachName calls f for every name of a kind with subscribers on this hub, in no order, until f returns false. f must
// not subscribe.
func (h *Hub) EachName(kind Kind, f func(name string, subscribers int) bool) {
	h.tableForKind(kind).eachName(f)
}

// Matcher compiles a pattern by the rules of PSUBSCRIBE. The returned function reports whether a topic matches. It
// takes time proportional to the topic's length and is safe for concurrent use.
func Matcher(pattern string) func(topic string) bool { return compileGlob(pattern).matches }

// clusterQueryTimeout limits the wait for answers of the other hubs.
const clusterQueryTimeout = 200 * time.Millisecond

// namesOnOtherHubs returns the matching names on other hubs, without duplicates and up to maxBytes, and the number of
// omitted names.
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

// notifyClusterOfSubscribers reports a name's first or last subscriber to the cluster, if a cluster is configured.
func (h *Hub) notifyClusterOfSubscribers(kind Kind, name string) {
	if h.Cluster != nil {
		h.Cluster.Changed(kind, name)
	}
}
