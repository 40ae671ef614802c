package cluster

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/saved"
)

// This file is how a node goes on in another process, which takes the hub's clients over: see
// hub.ClusterMigrator. Both have the node's origin, so that neither delivers the other's messages, and number their
// own apart. The new one is subscribed to everything before the old one pauses, and delivers nothing: what
// comes waits in it, and with NATS when there is much. When the clients have moved it delivers what the old one
// has not, by the numbers that this one has seen. The old one does so to the clients that have stayed.
//
// What NATS had sent to the old process before the new one was subscribed comes to the old one alone, which may be behind.
// So Pause delivers everything that is on its way by then.
//
// The new process sends nothing before that either. A client may publish in the old process, move, and publish
// in the new one while its first message still waits in the old outbox. So Resume in the old process, which comes
// first, returns when NATS has all that was published there, and Resume in the new one releases its outbox.

const (
	// pauseFlushTimeout bounds how long Pause waits for what is on its way from NATS, and Resume, in the old process, until
	// NATS has what was published there.
	pauseFlushTimeout = 2 * time.Second
	// maxPauseDuration is the most time of a pause.
	maxPauseDuration = time.Minute
)

func newOrigin() string { return strings.ToLower(crand.Text()[:12]) }

// Origin names the node for a process that takes its hub over: see Config.Origin.
func (n *Node) Origin() string { return n.origin }

// subscribeForTakeover subscribes to everything: what the clients are subscribed to is not known yet.
func (n *Node) subscribeForTakeover() {
	n.subscriptions.forceAll.Store(true)
	n.inbox.confirmingSubscription.Store(true)
	defer n.inbox.confirmingSubscription.Store(false)
	n.subscriptions.setSubscribeAll(true)
}

// Pause implements hub.ClusterMigrator.
func (n *Node) Pause() (state []byte) {
	if n.connected.Load() {
		_ = n.natsConn.FlushTimeout(pauseFlushTimeout) // its answer comes behind what was on its way
	}
	n.inbox.pause()
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
		n.waitUntilSent(pauseFlushTimeout)
	}
	if n.publisher != nil {
		n.publisher.unpause()
	}
}

// pause returns when what waits has been delivered, and nothing is being delivered any more.
func (in *inbox) pause() {
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

// resume ends a pause. It reports whether there was one.
func (in *inbox) resume() (paused bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.resumed == nil {
		return false
	}
	close(in.resumed)
	in.resumed = nil
	return true
}

// waitForResume waits for the end of a pause, if there is one.
func (in *inbox) waitForResume(done <-chan struct{}) {
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
		in.node.warnings.warnf("nobody has ended a pause of %v; messages are delivered again", maxPauseDuration)
		in.node.Resume()
	}
}

// saveState writes what is known: for each topic its subject, how many origins it has, and of each its name, its newest
// number, and whether a loss is concluded from that.
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

var errBadState = errors.New("cluster: the state of a node is cut off or of another version")

// restoreState takes it, before anything else is known.
func (g *gapDetector) restoreState(state []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := saved.Read(state)
	for len(r.Rest()) > 0 {
		t := g.sequencesOf(r.String())
		t.sources = nil
		for n := r.Uvarint(); n > 0 && r.OK() && len(t.sources) < maxSourcesPerTopic; n-- {
			o := sourceSequence{source: r.String(), number: r.Uvarint()}
			o.period = g.period - uint32(r.Byte())
			t.sources = append(t.sources, o)
		}
		if !r.OK() {
			return errBadState
		}
	}
	return nil
}
