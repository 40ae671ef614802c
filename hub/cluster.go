package hub

import (
	"context"
	"slices"
	"time"
)

// Cluster is what joins a Hub with others, so that who publishes to one reaches the subscribers
// of all. Package hub/cluster has one. Its methods are called from event loops: they do not
// block. They are safe for concurrent use.
type Cluster interface {
	// Publish passes a message on to the others. It keeps nothing of message when it has
	// returned. An error says that the message can't be published at all; one that gets lost
	// on the way is none. kind is Topic or Sharded.
	Publish(kind Kind, name string, message []byte) error
	// Keep publishes a message of a topic that Hub.Replay keeps. It comes back by DeliverKept, when
	// and if it is kept. It keeps nothing of message when it has returned. An error says that there is
	// no room.
	Keep(topic string, message []byte) error
	// Newest asks for the position of the newest message that is kept. It may block, until ctx ends.
	Newest(ctx context.Context) (Position, error)
	// Changed says that a name has got its first subscriber on this hub, or lost its last:
	// Hub.Subscribers tells which, by the time that it is asked.
	Changed(kind Kind, name string)
	// Subscribers is how many subscribers names have on the other hubs, in the order of names,
	// as far as these answer until ctx ends. It may block.
	Subscribers(ctx context.Context, kind Kind, names []string) []int
	// Names are those that have subscribers on the other hubs and match a pattern, as far as
	// these answer until ctx ends, and no more than so many bytes of them: more is how many
	// others there are. Some come several times. It may block.
	Names(ctx context.Context, kind Kind, pattern string, maxBytes int) (names []string, omitted int)
	// Largest are, of each other hub, the topics with the most subscribers there, of those that
	// begin with a prefix: at most limit of each, and by the rules of Names.
	Largest(ctx context.Context, prefix string, limit, maxBytes int) (names []string, omitted int)
	// Stats gives the counters.
	Stats() ClusterStats
}

// ClusterMigrator is a Cluster whose node goes on in another process, with the hub's clients: see
// tcp.Server.Upgrade. For the others the two processes are one node, and neither delivers what was
// published to the other one, which they tell each other.
type ClusterMigrator interface {
	// Pause has nothing delivered any more until Resume. state is what has been.
	Pause() (state []byte)
	// Restore takes that in the new process, which delivers nothing from its beginning to Resume,
	// and then what has come since Pause.
	Restore(state []byte) error
	// Resume is called in both when the clients have moved, in the old process first. There it returns when
	// what was published is ahead of what the new process passes on, which passes nothing on before its own
	// Resume. Where nothing pauses it does nothing.
	Resume()
}

// ClusterStats are the counters of what joins a Hub with others, since it was started, but for
// those that say "now".
type ClusterStats struct {
	// Connected says whether there is a connection to NATS now, Disconnects how often one has
	// been lost.
	Connected   bool
	Disconnects int64
	// Subjects is how many NATS subjects are subscribed to now, All whether it is all that
	// there are.
	Subjects int64
	All      bool
	// Sent counts messages that were passed on, Waiting those that wait for that now, and
	// WaitingBytes their bytes. Unsent counts those that are lost because too many waited.
	Sent, Waiting, WaitingBytes, Unsent int64
	// Received counts messages of other nodes, Duplicates those that came by several
	// subscriptions and were passed on to subscribers once.
	Received, Duplicates int64
	// Lost counts messages of other nodes that should have come and did not, as the numbers of
	// those behind them say: the last one before a silence is not missed until the next comes.
	Lost int64
	// Nodes are the other ones that are known, as many as there is room for, by name.
	Nodes []NodeStats
}

// NodeStats is what is known of another node.
type NodeStats struct {
	Name string
	// Here says whether it has been heard of in the last seconds.
	Here bool
	// Subscriptions is how many it has said to have.
	Subscriptions int64
	// Received and Lost count its messages, as those of ClusterStats.
	Received, Lost int64
}

// Subscribers is how many subscribers a name has on this hub.
func (h *Hub) Subscribers(kind Kind, name string) int {
	return h.tableForKind(kind).subscriberCount(name)
}

// Subscriptions is how many all clients of this hub have now.
func (h *Hub) Subscriptions() int64 { return h.subscriptions.Load() }

// EachName calls f for every name of a kind that has subscribers on this hub, in no order,
// until it returns false. f must not subscribe.
func (h *Hub) EachName(kind Kind, f func(name string, subscribers int) bool) {
	h.tableForKind(kind).eachName(f)
}

// Matcher compiles a pattern, by the rules of PSUBSCRIBE. The function that it returns reports whether the
// pattern matches a topic, in time proportional to the topic's length. It is safe for concurrent use.
func Matcher(pattern string) func(topic string) bool { return compileGlob(pattern).matches }

// clusterQueryTimeout is how long the other hubs of a cluster have for an answer.
const clusterQueryTimeout = 200 * time.Millisecond

// namesOnOtherHubs are the names of a kind that match a pattern on the other hubs, where there are
// some, each once; more is how many do not fit into so many bytes.
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

// countWithoutLocalSubscribers is how many of some names have no subscribers on this hub.
func (h *Hub) countWithoutLocalSubscribers(kind Kind, names []string) (n int) {
	for _, name := range names {
		if h.Subscribers(kind, name) == 0 {
			n++
		}
	}
	return n
}

// clusterSubscriberCounts is how many subscribers names have on all hubs.
func (h *Hub) clusterSubscriberCounts(ctx context.Context, kind Kind, names []string) []int {
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

// notifyCluster tells the cluster, if there is one, of a first or last subscriber.
func (h *Hub) notifyCluster(kind Kind, name string) {
	if h.Cluster != nil {
		h.Cluster.Changed(kind, name)
	}
}
