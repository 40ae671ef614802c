package cluster

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// gaps knows the newest number of each topic by each origin, and so what is missing, and what
// comes twice. What it knows is bounded: of a topic that it has forgotten, the next message is
// the first again.
//
// It keeps two generations: when the younger one is full, it becomes the older one, and what was
// in that and not been used since is forgotten. So a message that comes by two subscriptions, one
// right behind the other, is always known the second time.
type gaps struct {
	mu         sync.Mutex
	young, old map[string]*topicNumbers // by subject
	period     uint32
	gone       func(origin string) bool // a node; nil for none
}

// maxTopics is the most topics of a generation.
const maxTopics = 1 << 17

// topicNumbers are those of a topic.
type topicNumbers struct{ origins []originNumber }

// originNumber is the newest number by an origin. It was seen in a period: in another one, no
// loss is concluded from it.
type originNumber struct {
	origin string
	number uint64
	period uint32
}

const (
	// maxOrigins is the most origins of a topic; then the one that came first is forgotten.
	maxOrigins = 64
	// maxSource is the most bytes of an origin with its era.
	maxSource = maxOrigin + 32
)

// parseNumber takes a number to pieces; origin is as nodes call themselves, source with the era.
func parseNumber(text string) (source, origin string, number uint64, ok bool) {
	source, digits, ok := strings.Cut(text, " ")
	if !ok {
		return "", "", 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	origin, _, ok = strings.Cut(source, ".")
	return source, origin, number, err == nil && ok && number > 0 && len(source) <= maxSource
}

// see notes that a message has come. It says how many before it are missing, and whether it has
// come before.
func (g *gaps) see(subject, source string, number uint64) (missing uint64, again bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.find(subject)
	for i := range t.origins {
		o := &t.origins[i]
		if o.origin != source {
			continue
		}
		if number <= o.number {
			return 0, true
		}
		if o.period == g.period {
			missing = number - o.number - 1
		}
		o.number, o.period = number, g.period
		return missing, false
	}
	g.forget(t, source)
	t.origins = append(t.origins, originNumber{strings.Clone(source), number, g.period})
	return 0, false
}

// forget makes room for a source that is new: nodes that are gone are forgotten, and eras of its own but for the
// newest, in which another process may still publish.
func (g *gaps) forget(t *topicNumbers, source string) {
	origin, _, _ := strings.Cut(source, ".")
	eras := 0
	for i := len(t.origins) - 1; i >= 0; i-- {
		of, _, _ := strings.Cut(t.origins[i].origin, ".")
		if of == origin {
			eras++
		}
		if of == origin && eras > 1 || of != origin && g.gone != nil && g.gone(of) {
			t.origins = slices.Delete(t.origins, i, i+1)
		}
	}
	if len(t.origins) >= maxOrigins {
		t.origins = slices.Delete(t.origins, 0, 1)
	}
}

func (g *gaps) find(subject string) *topicNumbers {
	if t := g.young[subject]; t != nil {
		return t
	}
	t := g.old[subject]
	if t == nil {
		t = new(topicNumbers)
	}
	if g.young == nil || len(g.young) >= maxTopics {
		g.young, g.old = make(map[string]*topicNumbers), g.young
	}
	g.young[subject] = t
	return t
}

// left notes that a subject is not subscribed to any more: what is missing from now on was not
// meant to come, unless another subscription covers it. A wildcard is every subject.
func (g *gaps) left(subject string, covered func(subject string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.HasSuffix(subject, everything) {
		for _, topics := range []map[string]*topicNumbers{g.old, g.young} {
			for subject, t := range topics {
				if covered(subject) {
					t.renew(g.period, g.period+1)
				}
			}
		}
		g.period++
		return
	}
	if covered(subject) {
		return
	}
	t := g.young[subject]
	if t == nil {
		t = g.old[subject]
	}
	if t != nil {
		for i := range t.origins {
			t.origins[i].period = g.period - 1
		}
	}
}

// renew moves the numbers that were seen in a period to another one.
func (t *topicNumbers) renew(from, to uint32) {
	for i := range t.origins {
		if t.origins[i].period == from {
			t.origins[i].period = to
		}
	}
}
