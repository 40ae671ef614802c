package cluster

import (
	"context"
	"encoding/json"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
)

// presence tells the other nodes of this one, once a second, and answers what they ask about its
// names. One goroutine does both. A question that comes while too many wait is not answered.
type presence struct {
	node     *Node
	messages chan *nats.Msg
}

const (
	newsSubject     = "myriad.n"
	questionSubject = "myriad.q"

	newsEvery    = time.Second
	absence      = 3500 * time.Millisecond
	maxQuestions = 64
	maxName      = 128 // bytes of a node's
	// forgetAfter is how long a node is kept in mind that is not heard of.
	forgetAfter = time.Hour
)

// news is what a node says of itself.
type news struct {
	Origin        string
	Name          string
	Subscriptions int64
	Gone          bool
}

// question is one about the names of a kind: how many subscribers Of has, or, where it is nil,
// which names match Pattern, of so many bytes at the Most. Names are bytes, not text.
type question struct {
	Kind    hub.Kind
	Of      [][]byte
	Pattern []byte
	Most    int
}

// answer has the Counts of the names, or the Names.
type answer struct {
	Counts []int
	Names  [][]byte
}

func newPresence(n *Node) *presence {
	return &presence{node: n, messages: make(chan *nats.Msg, maxQuestions)}
}

// run does so until done is closed.
func (p *presence) run(done <-chan struct{}) {
	n := p.node
	for _, subject := range []string{newsSubject, questionSubject} {
		if _, err := n.nc.ChanSubscribe(subject, p.messages); err != nil {
			n.warned.say("cannot subscribe to %s: %v", subject, err)
		}
	}
	tick := time.NewTicker(newsEvery)
	defer tick.Stop()
	p.tell()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			p.tell()
			n.inbox.forget(time.Now())
			if n.stream != nil {
				n.hub.Replay.Forget(time.Now())
			}
		case m := <-p.messages:
			if m.Subject == newsSubject {
				p.hear(m.Data)
			} else {
				p.answer(m)
			}
		}
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
	if json.Unmarshal(data, &of) == nil && of.Origin != "" && p.node.inbox.heard(of) {
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
		most := min(q.Most, int(p.node.maxPayload.Load())/2) // in base64 they are longer
		p.node.hub.EachName(q.Kind, func(name string, _ int) bool {
			if hub.Matches(string(q.Pattern), name) {
				if most -= len(name) + 8; most < 0 {
					return false
				}
				a.Names = append(a.Names, []byte(name))
			}
			return true
		})
	}
	if data, err := json.Marshal(a); err == nil {
		_ = m.Respond(data)
	}
}

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

// Subscribers implements hub.Cluster.
func (n *Node) Subscribers(ctx context.Context, k hub.Kind, names []string) []int {
	counts := make([]int, len(names))
	q := question{Kind: k, Of: make([][]byte, len(names))}
	for i, name := range names {
		q.Of[i] = []byte(name)
	}
	n.ask(ctx, q, func(a answer) {
		for i, count := range a.Counts[:min(len(counts), len(a.Counts))] {
			counts[i] += count
		}
	})
	return counts
}

// Names implements hub.Cluster.
func (n *Node) Names(ctx context.Context, k hub.Kind, pattern string, most int) (names []string) {
	n.ask(ctx, question{Kind: k, Pattern: []byte(pattern), Most: most}, func(a answer) {
		for _, name := range a.Names {
			if most -= len(name) + 8; most >= 0 {
				names = append(names, string(name))
			}
		}
	})
	return names
}
