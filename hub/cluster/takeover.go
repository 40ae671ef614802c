package cluster

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/saved"
)

// A node can continue in another process that takes over the hub's clients; see hub.ClusterMigrator. Both processes
// have the node's origin, so neither delivers messages of the other. Each process numbers its messages in its own era.
//
// The new process subscribes to all topics before the old one pauses, and queues the messages that arrive. After the
// clients have moved, it delivers the messages that the old process has not delivered, as the sequence numbers show.
// The old process does the same for clients that stayed. Messages that NATS sent before the new process subscribed
// reach only the old process, so PauseDelivery delivers all of them.
//
// The new process also sends nothing before Resume. Otherwise, a client that publishes before and after its move could
// have its messages overtake each other. Resume runs first in the old process, and returns once NATS has received all
// messages of that process.

const (
	// pauseFlushTimeout limits how long PauseDelivery and Resume wait for messages in transit.
	pauseFlushTimeout = 2 * time.Second
	maxPauseDuration  = time.Minute
)

func newOrigin() string { return strings.ToLower(crand.Text()[:12]) }

// Origin returns the identifier that the node's messages contain. In an upgrade, pass it to the new process as
// Config.Origin.
func (n *Node) Origin() string { return n.origin }

func (n *Node) subscribeToAllForTakeover() {
	n.subscriptions.forceAll.Store(true)
	n.inbox.confirmingSubscription.Store(true)
	defer n.inbox.confirmingSubscription.Store(false)
	n.subscriptions.switchSubscribeAll(true)
}

// PauseDelivery implements hub.ClusterMigrator.
func (n *Node) PauseDelivery() (state []byte) {
	if n.connected.Load() {
		_ = n.natsConn.FlushTimeout(pauseFlushTimeout) // its reply follows messages in flight
	}
	n.inbox.deliverQueuedAndPause()
	return n.inbox.gaps.saveState()
}

// Restore implements hub.ClusterMigrator.
func (n *Node) Restore(state []byte) error { return n.inbox.gaps.restoreState(state) }

// Resume implements hub.ClusterMigrator.
func (n *Node) Resume() {
	n.subscriptions.forceAll.Store(false)
	if paused := n.inbox.resume(); !paused {
		return
	}
	if wasPaused := n.outbox.unpause(); !wasPaused { // this is the old process
		n.waitUntilSentWhileConnected(pauseFlushTimeout)
	}
	if n.publisher != nil {
		n.publisher.unpause()
	}
}

func (in *inbox) deliverQueuedAndPause() {
	in.mu.Lock()
	pauses := in.resumed != nil
	if !pauses {
		in.resumed = make(chan struct{})
	}
	in.mu.Unlock()
	if pauses {
		return
	}
	paused := make(chan struct{})
	select {
	case in.pauseRequests <- paused:
		<-paused
	case <-in.node.stopped:
	}
}

func (in *inbox) resume() (wasPaused bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.resumed == nil {
		return false
	}
	close(in.resumed)
	in.resumed = nil
	return true
}

func (in *inbox) waitIfPausedResumeOnTimeout(done <-chan struct{}) {
	in.mu.Lock()
	resumed := in.resumed
	in.mu.Unlock()
	if resumed == nil {
		return
	}
	timeout := time.NewTimer(maxPauseDuration)
	defer timeout.Stop()
	select {
	case <-resumed:
	case <-done:
	case <-timeout.C:
		in.node.warnings.warnf("the pause did not end within %v; delivering messages again", maxPauseDuration)
		in.node.Resume()
	}
}

// saveState encodes the last sequence numbers of all topics for the new process of an upgrade.
func (g *gapDetector) saveState() (state []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, topics := range []map[string]*topicSequences{g.old, g.young} {
		for subject, t := range topics {
			state = saved.AppendString(state, subject)
			state = binary.AppendUvarint(state, uint64(len(t.sources)))
			for _, o := range t.sources {
				state = binary.AppendUvarint(saved.AppendString(state, o.source), o.number)
				state = append(state, byte(min(g.period-o.period, 1)))
			}
		}
	}
	return state
}

var errBadState = errors.New("cluster: the node state is truncated or has a different version")

func (g *gapDetector) restoreState(state []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := saved.NewReader(state)
	for len(r.Remaining()) > 0 {
		t := g.getOrAddTopicLocked(r.String())
		t.sources = nil
		for n := r.Uvarint(); n > 0 && r.Complete() && len(t.sources) < maxSourcesPerTopic; n-- {
			o := sourceSequence{source: r.String(), number: r.Uvarint()}
			o.period = g.period - uint32(r.Byte())
			t.sources = append(t.sources, o)
		}
		if !r.Complete() {
			return errBadState
		}
	}
	return nil
}
