package cluster

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// presence announces this node once a second, tracks other nodes, and answers queries about this hub's topics.
type presence struct {
	node          *Node
	announcements chan *nats.Msg
	queries       chan *nats.Msg
	hasPeers      bool // another node is present
}

const (
	announceSubject = "myriad.n"
	querySubject    = "myriad.q"

	announceInterval       = time.Second
	absenceTimeout         = 3500 * time.Millisecond
	maxQueuedQueries       = 64
	maxQueuedAnnouncements = 2 * maxNodes
	maxNodeNameBytes       = 128
	// A node is removed after forgetNodeAfter without announcements, and its sequence numbers after
	// forgetSequencesAfter.
	forgetNodeAfter      = time.Hour
	forgetSequencesAfter = 5 * time.Minute
)

type announcement struct {
	Origin        string
	Name          string
	Subscriptions int64
	Gone          bool
}

// query asks another node about its topics. The fields determine the kind of answer:
//   - If the list Of is set, the answer contains the number of subscribers of each name in the list.
//   - If Largest is set, the answer lists the topics with the prefix Pattern that have the most subscribers.
//   - Otherwise, the answer lists the names that match Pattern.
type query struct {
	Kind    hub.Kind
	Of      [][]byte
	Pattern []byte
	Most    int // limit of the answer's names, in bytes
	Largest int
}

type queryAnswer struct {
	Counts []int
	Names  [][]byte
	More   int
}

func newPresence(n *Node) *presence {
	return &presence{node: n, announcements: make(chan *nats.Msg, maxQueuedAnnouncements), queries: make(chan *nats.Msg, maxQueuedQueries)}
}

func (p *presence) subscribeOrWarn(subject string, messages chan *nats.Msg) {
	if _, err := p.node.natsConn.ChanSubscribe(subject, messages); err != nil {
		p.node.warnings.warnf("cannot subscribe to %s: %v", subject, err)
	}
}

func (p *presence) answerQueries(done <-chan struct{}) {
	p.subscribeOrWarn(querySubject, p.queries)
	for {
		select {
		case <-done:
			return
		case m := <-p.queries:
			p.answerCountsOrNamesQuery(m)
		}
	}
}

func (p *presence) announceAndTrackNodes(done <-chan struct{}) {
	p.subscribeOrWarn(announceSubject, p.announcements)
	tick := time.NewTicker(announceInterval)
	defer tick.Stop()
	p.announce()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			p.announce()
			p.node.inbox.forgetAbsentNodes(time.Now())
			p.logJoinedOrAloneIfChanged()
			if p.node.stream != nil {
				p.node.hub.Replay.DropExpired(time.Now())
			}
		case m := <-p.announcements:
			p.handleAnnouncementReplyIfNew(m.Data)
		}
	}
}

func (p *presence) logJoinedOrAloneIfChanged() {
	n := p.node.inbox.countPresentNodes()
	if p.node.config.Peers == nil || (n > 0) == p.hasPeers {
		return
	}
	if p.hasPeers = n > 0; p.hasPeers {
		p.node.warnings.logChange("joined the cluster; other hubs: %d", n)
	} else {
		p.node.warnings.logChange("no other hub of the cluster responds")
	}
}

func (p *presence) announce() { p.publishAnnouncement(false) }

func (p *presence) publishAnnouncement(leaving bool) {
	data, err := json.Marshal(announcement{
		Origin: p.node.origin, Name: p.node.config.Name, Gone: leaving, Subscriptions: p.node.hub.Subscriptions(),
	})
	if err == nil {
		_ = p.node.natsConn.Publish(announceSubject, data)
	}
}

func (p *presence) handleAnnouncementReplyIfNew(data []byte) {
	var received announcement
	switch {
	case json.Unmarshal(data, &received) != nil || received.Origin == "" || len(received.Origin) > maxOriginBytes:
	case received.Origin == p.node.origin: // sent by another process of this node
		if received.Gone {
			p.announce()
		}
	case p.node.inbox.recordAnnouncedNode(received):
		p.announce() // let it know this node, too
	}
}

func (in *inbox) recordAnnouncedNode(announced announcement) (isNew bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	node := in.getOrAddNodeLocked(announced.Origin)
	if node == nil {
		return false
	}
	announced.Name = announced.Name[:min(len(announced.Name), maxNodeNameBytes)]
	isNew = node.lastSeen.IsZero() && !announced.Gone
	node.Name, node.Subscriptions, node.lastSeen = announced.Name, announced.Subscriptions, time.Now()
	if announced.Gone {
		node.Subscriptions, node.lastSeen = 0, node.lastSeen.Add(-absenceTimeout)
	}
	return isNew
}

func (in *inbox) forgetAbsentNodes(now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for origin, n := range in.nodes {
		if n.lastSeen.IsZero() {
			n.lastSeen = now.Add(-absenceTimeout) // known by a message, not by an announcement
		}
		if away := now.Sub(n.lastSeen); away > forgetNodeAfter || away > absenceTimeout && len(in.nodes) > maxNodes/2 {
			delete(in.nodes, origin)
		}
	}
}

func (in *inbox) mayForgetSequencesOf(origin string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := in.nodes[origin]
	return n == nil || !n.lastSeen.IsZero() && time.Since(n.lastSeen) > forgetSequencesAfter
}

func (in *inbox) countPresentNodes() (n int) {
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, node := range in.nodes {
		if now.Sub(node.lastSeen) < absenceTimeout {
			n++
		}
	}
	return n
}

func (p *presence) answerCountsOrNamesQuery(m *nats.Msg) {
	var q query
	if json.Unmarshal(m.Data, &q) != nil || q.Kind > hub.Sharded {
		return
	}
	var a queryAnswer
	if q.Of != nil {
		for _, name := range q.Of {
			a.Counts = append(a.Counts, p.node.hub.Subscribers(q.Kind, string(name)))
		}
	} else {
		a.Names, a.More = p.localNamesForQuery(q)
	}
	if data, err := json.Marshal(a); err == nil {
		_ = m.Respond(data)
	}
}

func (p *presence) localNamesForQuery(q query) (names [][]byte, omitted int) {
	found := boundedNames{bytesLeft: min(q.Most, p.node.maxNameBytes())}
	if q.Largest > 0 {
		largest, total := p.node.hub.Largest(string(q.Pattern), q.Largest)
		found.omitted = total - len(largest)
		for _, name := range largest {
			found.addOrCountOmitted(name)
		}
	} else {
		matches := hub.Matcher(string(q.Pattern))
		p.node.hub.EachName(q.Kind, func(name string, _ int) bool {
			if matches(name) {
				found.addOrCountOmitted(name)
			}
			return true
		})
	}
	for _, name := range found.names {
		names = append(names, []byte(name))
	}
	return names, found.omitted
}

// boundedNames collects names up to a limit in bytes. It counts the names that do not fit.
type boundedNames struct {
	bytesLeft int
	names     []string
	omitted   int
}

func encodedNameSize(name string) int { return len(name) + 8 }

func (s *boundedNames) addOrCountOmitted(name string) {
	if s.bytesLeft -= encodedNameSize(name); s.bytesLeft < 0 {
		s.omitted++
		return
	}
	s.names = append(s.names, name)
}

func (n *Node) maxNameBytes() int { return int(n.maxPayload.Load()) / 2 }

// queryOtherNodes calls the function handle for each answer to the query, until all nodes have answered or ctx ends.
func (n *Node) queryOtherNodes(ctx context.Context, q query, handle func(queryAnswer)) {
	here := n.inbox.countPresentNodes()
	data, err := json.Marshal(q)
	if here == 0 || err != nil || !n.connected.Load() {
		return
	}
	inbox := nats.NewInbox()
	sub, err := n.natsConn.SubscribeSync(inbox)
	if err != nil {
		return
	}
	defer func() { _ = sub.Unsubscribe() }()
	if n.natsConn.PublishRequest(querySubject, inbox, data) != nil {
		return
	}
	for range here {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return
		}
		var a queryAnswer
		if json.Unmarshal(m.Data, &a) == nil {
			handle(a)
		}
	}
}

// Subscribers implements hub.Cluster.
func (n *Node) Subscribers(ctx context.Context, kind hub.Kind, names []string) (onOtherHubs []int) {
	counts := make([]int, len(names))
	for begin, end := 0, 0; begin < len(names) && ctx.Err() == nil; begin = end {
		q := query{Kind: kind}
		for bytesLeft := n.maxNameBytes(); end < len(names) && (end == begin || bytesLeft >= encodedNameSize(names[end])); end++ {
			q.Of = append(q.Of, []byte(names[end]))
			bytesLeft -= encodedNameSize(names[end])
		}
		n.queryOtherNodes(ctx, q, func(a queryAnswer) {
			for i, count := range a.Counts[:min(len(q.Of), len(a.Counts))] {
				counts[begin+i] += count
			}
		})
	}
	return counts
}

// Names implements hub.Cluster.
func (n *Node) Names(ctx context.Context, kind hub.Kind, pattern string, maxBytes int) (names []string, omitted int) {
	return n.queryNamesOnOtherNodes(ctx, query{Kind: kind, Pattern: []byte(pattern), Most: maxBytes})
}

// Largest implements hub.Cluster.
func (n *Node) Largest(ctx context.Context, prefix string, limit, maxBytes int) (names []string, omitted int) {
	return n.queryNamesOnOtherNodes(ctx, query{Kind: hub.Topic, Pattern: []byte(prefix), Most: maxBytes, Largest: limit})
}

func (n *Node) queryNamesOnOtherNodes(ctx context.Context, q query) (names []string, omitted int) {
	found := boundedNames{bytesLeft: q.Most}
	n.queryOtherNodes(ctx, q, func(a queryAnswer) {
		for _, name := range a.Names {
			found.addOrCountOmitted(string(name))
		}
		found.omitted += a.More
	})
	return found.names, found.omitted
}
