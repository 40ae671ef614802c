package hub

import (
	"context"
	"slices"
	"time"
)

// Cluster connects a Hub with others, so that a message published to one reaches the subscribers of all. Package
// hub/cluster implements it. Methods are called from event loops and must not block unless noted. They must be
// safe for concurrent use.
type Cluster interface {
	// Publish forwards a message to the other hubs. It must not retain message. An error means that the message
	// can never be sent; a message lost later is not an error. kind is Topic or Sharded.
	Publish(kind Kind, name string, message []byte) error
	// Keep stores a message of a topic that Hub.Replay keeps. Hub.DeliverKept is called once it is stored. Keep
	// must not retain message. It fails if there is no space.
	Keep(topic string, message []byte) error
	// Newest queries the position of the newest stored message. It may block until ctx ends.
	Newest(ctx context.Context) (Position, error)
	// Changed reports that a name has got its first subscriber on this hub or lost its last. Hub.Subscribers
	// returns the current number.
	Changed(kind Kind, name string)
	// Subscribers returns the number of subscribers of each name on the other hubs, counting the hubs that answer
	// before ctx ends. It may block.
	Subscribers(ctx context.Context, kind Kind, names []string) []int
	// Names returns the names that match a pattern and have subscribers on the other hubs, counting the hubs that
	// answer before ctx ends. It returns at most maxBytes of names and the number of names omitted. Names may
	// repeat. It may block.
	Names(ctx context.Context, kind Kind, pattern string, maxBytes int) (names []string, omitted int)
	// Largest returns, for each other hub, up to limit topics that begin with prefix and have the most
	// subscribers there. Limits and blocking are as for Names.
	Largest(ctx context.Context, prefix string, limit, maxBytes int) (names []string, omitted int)
	// Stats returns the counters.
	Stats() ClusterStats
}

// ClusterMigrator is a Cluster whose node continues in another process with the hub's clients (see
// tcp.Server.Upgrade). The other hubs see both processes as one node. Neither process delivers messages published
// in the other through the cluster.
type ClusterMigrator interface {
	// Pause stops delivery until Resume and returns which messages have been delivered.
	Pause() (state []byte)
	// Restore takes that state in the new process, which delivers nothing from its start to Resume, and then what
	// has arrived since Pause.
	Restore(state []byte) error
	// Resume is called in both processes after the clients have moved, first in the old one. There it returns
	// once its own messages have been sent ahead of the new process's, which sends nothing before its own Resume.
	// It does nothing if nothing is paused.
	Resume()
}

// ClusterStats are the counters of a node since its start, except those described as current.
type ClusterStats struct {
	// Connected is the current state of the connection to NATS; Disconnects counts lost connections.
	Connected   bool
	Disconnects int64
	// Subjects is the current number of subscribed NATS subjects. All is true while every topic is subscribed to.
	Subjects int64
	All      bool
	// Sent counts forwarded messages. Waiting and WaitingBytes are the messages that currently wait to be sent.
	// Unsent counts messages lost because too many waited.
	Sent, Waiting, WaitingBytes, Unsent int64
	// Received counts messages of other nodes. Duplicates counts messages that arrived by several subscriptions
	// and were delivered once.
	Received, Duplicates int64
	// Lost counts messages of other nodes that are missing, judging by the sequence numbers of later ones.
	Lost int64
	// Nodes are the other known nodes, sorted by name. The number of known nodes is limited.
	Nodes []NodeStats
}

// NodeStats describes another node.
type NodeStats struct {
	Name string
	// Here reports whether the node was heard of in the last few seconds.
	Here bool
	// Subscriptions is the number that the node has announced.
	Subscriptions int64
	// Received and Lost are as in ClusterStats, for messages of this node.
	Received, Lost int64
}

// Subscribers returns the number of subscribers of a name on this hub.
func (h *Hub) Subscribers(kind Kind, name string) int {
	return h.tableForKind(kind).subscriberCount(name)
}

// Subscriptions returns the current number of subscriptions of all clients of this hub.
func (h *Hub) Subscriptions() int64 { return h.subscriptions.Load() }

// EachName calls f for every name of a kind that has subscribers on this hub, unordered, until f returns false. f
// must not subscribe.
func (h *Hub) EachName(kind Kind, f func(name string, subscribers int) bool) {
	h.tableForKind(kind).eachName(f)
}

// Matcher compiles a pattern by the rules of PSUBSCRIBE. The returned function reports whether a topic matches,
// in time proportional to the topic's length. It is safe for concurrent use.
func Matcher(pattern string) func(topic string) bool { return compileGlob(pattern).matches }

// clusterQueryTimeout is how long the other hubs may take to answer.
const clusterQueryTimeout = 200 * time.Millisecond

// namesOnOtherHubs returns the matching names on the other hubs without repeats, up to maxBytes, and the number
// omitted.
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

// subscriberCountsOnAllHubs returns the number of subscribers of each name on all hubs.
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

// notifyClusterOfSubscribers reports a name's first or last subscriber to the cluster, if any.
func (h *Hub) notifyClusterOfSubscribers(kind Kind, name string) {
	if h.Cluster != nil {
		h.Cluster.Changed(kind, name)
	}
}
