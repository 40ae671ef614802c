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

const (
	// flushTime is how long Pause waits until what was published here is with NATS, so that what the clients
	// publish in the new process comes behind it.
	flushTime = 250 * time.Millisecond
	// maxPause is the most time of a pause.
	maxPause = time.Minute
)

func newOrigin() string { return strings.ToLower(crand.Text()[:12]) }

// Origin names the node for a process that takes its hub over: see Config.Origin.
func (n *Node) Origin() string { return n.origin }

// succeed subscribes to everything: what the clients are subscribed to is not known yet.
func (n *Node) succeed() {
	n.interest.wide.Store(true)
	n.interest.everything(true)
	if n.online.Load() {
		_ = n.nc.FlushTimeout(connectTime)
	}
}

// Pause implements hub.ClusterMigrator.
func (n *Node) Pause() (state []byte) {
	n.inbox.pause()
	n.flush(flushTime)
	return n.inbox.gaps.save()
}

// Restore implements hub.ClusterMigrator.
func (n *Node) Restore(state []byte) error { return n.inbox.gaps.restore(state) }

// Resume implements hub.ClusterMigrator.
func (n *Node) Resume() {
	n.interest.wide.Store(false)
	n.inbox.resume()
}

// pause returns when nothing is being delivered any more.
func (in *inbox) pause() {
	in.mu.Lock()
	pauses := in.resumed != nil
	if !pauses {
		in.resumed = make(chan struct{})
	}
	resumed := in.resumed
	in.mu.Unlock()
	if pauses {
		return
	}
	select {
	case in.pauses <- resumed:
	case <-in.node.stop:
	}
}

func (in *inbox) resume() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.resumed != nil {
		close(in.resumed)
		in.resumed = nil
	}
}

// rest waits for the end of a pause.
func (in *inbox) rest(resumed, done <-chan struct{}) {
	late := time.NewTimer(maxPause)
	defer late.Stop()
	select {
	case <-resumed:
	case <-done:
	case <-late.C:
		in.node.warned.say("nobody has ended a pause of %v; messages are delivered again", maxPause)
		in.node.Resume()
	}
}

// save writes what is known: for each topic its subject, how many origins it has, and of each its name, its newest
// number, and whether a loss is concluded from that.
func (g *gaps) save() (state []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, topics := range []map[string]*topicNumbers{g.old, g.young} {
		for subject, t := range topics {
			state = saved.AppendString(state, subject)
			state = binary.AppendUvarint(state, uint64(len(t.origins)))
			for _, o := range t.origins {
				state = binary.AppendUvarint(saved.AppendString(state, o.origin), o.number)
				state = append(state, byte(min(g.period-o.period, 1)))
			}
		}
	}
	return state
}

var errState = errors.New("cluster: the state of a node is cut off or of another version")

// restore takes it, before anything else is known.
func (g *gaps) restore(state []byte) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	r := saved.Read(state)
	for len(r.Rest()) > 0 {
		t := g.find(r.String())
		t.origins = nil
		for n := r.Uvarint(); n > 0 && r.OK() && len(t.origins) < maxOrigins; n-- {
			o := originNumber{origin: r.String(), number: r.Uvarint()}
			o.period = g.period - uint32(r.Byte())
			t.origins = append(t.origins, o)
		}
		if !r.OK() {
			return errState
		}
	}
	return nil
}
