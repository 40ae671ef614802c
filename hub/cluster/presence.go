package cluster

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// presence tells the other nodes of this one, once a second, hears of them, and answers what they ask about
// its names. One goroutine tells and hears, another answers, so that what takes long to answer leaves nobody
// taken for gone. A question that comes while too many wait is not answered.
type presence struct {
	node      *Node
	news      chan *nats.Msg
	questions chan *nats.Msg
	joined    bool // another node is there
}

const (
	newsSubject     = "myriad.n"
	questionSubject = "myriad.q"

	newsEvery    = time.Second
	absence      = 3500 * time.Millisecond
	maxQuestions = 64
	maxNews      = 2 * maxNodes
	maxName      = 128 // bytes of a node's
	// forgetAfter is how long a node is kept in mind that is not heard of, and goneAfter how long the numbers
	// of its messages are, where other nodes publish.
	forgetAfter = time.Hour
	goneAfter   = 5 * time.Minute
)

// news is what a node says of itself.
type news struct {
	Origin        string
	Name          string
	Subscriptions int64
	Gone          bool
}

// question is one about the names of a kind: how many subscribers Of has, or, where it is nil,
// which names match Pattern, of so many bytes at the Most; or, where Largest is above 0, which topics that begin
// with Pattern have the most subscribers, so many of them. Names are bytes, not text.
type question struct {
	Kind    hub.Kind
	Of      [][]byte
	Pattern []byte
	Most    int
	Largest int
}

// answer has the Counts of the names, or the Names and how many More there are.
type answer struct {
	Counts []int
	Names  [][]byte
	More   int
}

func newPresence(n *Node) *presence {
	return &presence{node: n, news: make(chan *nats.Msg, maxNews), questions: make(chan *nats.Msg, maxQuestions)}
}

func (p *presence) subscribe(subject string, to chan *nats.Msg) {
	if _, err := p.node.nc.ChanSubscribe(subject, to); err != nil {
		p.node.warned.say("cannot subscribe to %s: %v", subject, err)
	}
}

// answers answers questions until done is closed.
func (p *presence) answers(done <-chan struct{}) {
	p.subscribe(questionSubject, p.questions)
	for {
		select {
		case <-done:
			return
		case m := <-p.questions:
			p.answer(m)
		}
	}
}

// run tells and hears until done is closed.
func (p *presence) run(done <-chan struct{}) {
	p.subscribe(newsSubject, p.news)
	tick := time.NewTicker(newsEvery)
	defer tick.Stop()
	p.tell()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			p.tell()
			p.node.inbox.forget(time.Now())
			p.notice()
			if p.node.stream != nil {
				p.node.hub.Replay.Forget(time.Now())
			}
		case m := <-p.news:
			p.hear(m.Data)
		}
	}
}

// notice says when a node that forms a cluster with Peers has got company, and when it is alone again.
func (p *presence) notice() {
	n := p.node.inbox.present()
	if p.node.config.Peers == nil || (n > 0) == p.joined {
		return
	}
	if p.joined = n > 0; p.joined {
		p.node.warned.state("the cluster is joined, other hubs: %d", n)
	} else {
		p.node.warned.state("alone: no other hub of the cluster is heard of")
	}
}

func (p *presence) tell() { p.say(false) }

// say tells of this node; what can't be told now is told again in a second.
func (p *presence) say(gone bool) {
	data, err := json.Marshal(news{
		Origin: p.node.origin, Name: p.node.config.Name, Gone: gone, Subscriptions: p.node.hub.Subscriptions(),
	})
	if err == nil {
		_ = p.node.nc.Publish(newsSubject, data)
	}
}

func (p *presence) hear(data []byte) {
	var of news
	switch {
	case json.Unmarshal(data, &of) != nil || of.Origin == "" || len(of.Origin) > maxOrigin:
	case of.Origin == p.node.origin: // another process of this node
		if of.Gone {
			p.tell()
		}
	case p.node.inbox.heard(of):
		p.tell() // it is to know this one at once, too
	}
}

// heard notes what a node has said of itself. It reports whether that is new.
func (in *inbox) heard(of news) (isNew bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	from := in.of(of.Origin)
	if from == nil {
		return false
	}
	of.Name = of.Name[:min(len(of.Name), maxName)]
	isNew = from.seen.IsZero() && !of.Gone
	from.Name, from.Subscriptions, from.seen = of.Name, of.Subscriptions, time.Now()
	if of.Gone {
		from.Subscriptions, from.seen = 0, from.seen.Add(-absence)
	}
	return isNew
}

// forget forgets nodes that have not been heard of for long.
func (in *inbox) forget(now time.Time) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for origin, n := range in.nodes {
		if n.seen.IsZero() {
			n.seen = now.Add(-absence) // it has sent a message, and nothing of itself
		}
		if away := now.Sub(n.seen); away > forgetAfter || away > absence && len(in.nodes) > maxNodes/2 {
			delete(in.nodes, origin)
		}
	}
}

// gone says whether a node has not been heard of for so long that its numbers may be forgotten.
func (in *inbox) gone(origin string) bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	n := in.nodes[origin]
	return n == nil || !n.seen.IsZero() && time.Since(n.seen) > goneAfter
}

// present is how many other nodes are there.
func (in *inbox) present() (n int) {
	now := time.Now()
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, of := range in.nodes {
		if now.Sub(of.seen) < absence {
			n++
		}
	}
	return n
}

// answer answers a question.
func (p *presence) answer(m *nats.Msg) {
	var q question
	if json.Unmarshal(m.Data, &q) != nil || q.Kind > hub.Sharded {
		return
	}
	var a answer
	if q.Of != nil {
		for _, name := range q.Of {
			a.Counts = append(a.Counts, p.node.hub.Subscribers(q.Kind, string(name)))
		}
	} else {
		a.Names, a.More = p.names(q)
	}
	if data, err := json.Marshal(a); err == nil {
		_ = m.Respond(data)
	}
}

// names are those that a question is about.
func (p *presence) names(q question) (names [][]byte, more int) {
	found := someNames{room: min(q.Most, p.node.mostNames())}
	if q.Largest > 0 {
		largest, total := p.node.hub.Largest(string(q.Pattern), q.Largest)
		found.more = total - len(largest)
		for _, name := range largest {
			found.add(name)
		}
	} else {
		matches := hub.Matcher(string(q.Pattern))
		p.node.hub.EachName(q.Kind, func(name string, _ int) bool {
			if matches(name) {
				found.add(name)
			}
			return true
		})
	}
	for _, name := range found.names {
		names = append(names, []byte(name))
	}
	return names, found.more
}

// someNames are names that there is room for, and how many more there were.
type someNames struct {
	room  int
	names []string
	more  int
}

// sizeOf is what a name takes in a message, before it is longer in base64.
func sizeOf(name string) int { return len(name) + 8 }

func (s *someNames) add(name string) {
	if s.room -= sizeOf(name); s.room < 0 {
		s.more++
		return
	}
	s.names = append(s.names, name)
}

// mostNames is the most bytes of names in a question or an answer.
func (n *Node) mostNames() int { return int(n.maxPayload.Load()) / 2 }

// ask asks all other nodes, and calls f with each answer until all have answered or ctx ends.
func (n *Node) ask(ctx context.Context, q question, f func(answer)) {
	here := n.inbox.present()
	data, err := json.Marshal(q)
	if here == 0 || err != nil || !n.online.Load() {
		return
	}
	inbox := nats.NewInbox()
	sub, err := n.nc.SubscribeSync(inbox)
	if err != nil {
		return
	}
	defer func() { _ = sub.Unsubscribe() }()
	if n.nc.PublishRequest(questionSubject, inbox, data) != nil {
		return
	}
	for range here {
		m, err := sub.NextMsgWithContext(ctx)
		if err != nil {
			return
		}
		var a answer
		if json.Unmarshal(m.Data, &a) == nil {
			f(a)
		}
	}
}

// Subscribers implements hub.Cluster. It asks for as many at a time as fit into a message.
func (n *Node) Subscribers(ctx context.Context, k hub.Kind, names []string) []int {
	counts := make([]int, len(names))
	for begin, end := 0, 0; begin < len(names) && ctx.Err() == nil; begin = end {
		q := question{Kind: k}
		for room := n.mostNames(); end < len(names) && (end == begin || room >= sizeOf(names[end])); end++ {
			q.Of = append(q.Of, []byte(names[end]))
			room -= sizeOf(names[end])
		}
		n.ask(ctx, q, func(a answer) {
			for i, count := range a.Counts[:min(len(q.Of), len(a.Counts))] {
				counts[begin+i] += count
			}
		})
	}
	return counts
}

// Names implements hub.Cluster.
func (n *Node) Names(ctx context.Context, k hub.Kind, pattern string, most int) (names []string, more int) {
	return n.askNames(ctx, question{Kind: k, Pattern: []byte(pattern), Most: most})
}

// Largest implements hub.Cluster.
func (n *Node) Largest(ctx context.Context, prefix string, limit, most int) (names []string, more int) {
	return n.askNames(ctx, question{Kind: hub.Topic, Pattern: []byte(prefix), Most: most, Largest: limit})
}

func (n *Node) askNames(ctx context.Context, q question) (names []string, more int) {
	found := someNames{room: q.Most}
	n.ask(ctx, q, func(a answer) {
		for _, name := range a.Names {
			found.add(string(name))
		}
		found.more += a.More
	})
	return found.names, found.more
}
