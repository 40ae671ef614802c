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
	// flushTime bounds how long Pause waits for what is on its way from NATS, and Resume, in the old process, until
	// NATS has what was published there.
	flushTime = 2 * time.Second
	// maxPause is the most time of a pause.
	maxPause = time.Minute
)

func newOrigin() string { return strings.ToLower(crand.Text()[:12]) }

// Origin names the node for a process that takes its hub over: see Config.Origin.
func (n *Node) Origin() string { return n.origin }

// succeed subscribes to everything: what the clients are subscribed to is not known yet.
func (n *Node) succeed() {
	n.interest.wide.Store(true)
	n.inbox.confirming.Store(true)
	defer n.inbox.confirming.Store(false)
	n.interest.everything(true)
}

// Pause implements hub.ClusterMigrator.
func (n *Node) Pause() (state []byte) {
	if n.online.Load() {
		_ = n.nc.FlushTimeout(flushTime) // its answer comes behind what was on its way
	}
	n.inbox.pause()
	return n.inbox.gaps.save()
}

// Restore implements hub.ClusterMigrator.
func (n *Node) Restore(state []byte) error { return n.inbox.gaps.restore(state) }

// Resume implements hub.ClusterMigrator.
func (n *Node) Resume() {
	n.interest.wide.Store(false)
	if paused := n.inbox.resume(); !paused {
		return
	}
	if held := n.outbox.release(); !held { // this is the old process
		n.flush(flushTime)
	}
	if n.keeper != nil {
		n.keeper.release()
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
	case in.pauses <- paused:
		<-paused
	case <-in.node.stop:
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

// rest waits for the end of a pause, if there is one.
func (in *inbox) rest(done <-chan struct{}) {
	in.mu.Lock()
	resumed := in.resumed
	in.mu.Unlock()
	if resumed == nil {
		return
	}
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
	r := saved.NewReader(state)
	for len(r.Remaining()) > 0 {
		t := g.find(r.String())
		t.origins = nil
		for n := r.Uvarint(); n > 0 && r.Complete() && len(t.origins) < maxOrigins; n-- {
			o := originNumber{origin: r.String(), number: r.Uvarint()}
			o.period = g.period - uint32(r.Byte())
			t.origins = append(t.origins, o)
		}
		if !r.Complete() {
			return errState
		}
	}
	return nil
}
