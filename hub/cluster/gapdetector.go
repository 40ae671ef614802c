package cluster

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

// gapDetector knows the newest number of each topic by each origin, and so what is missing, and what
// comes twice. What it knows is bounded: of a topic that it has forgotten, the next message is
// the first again.
//
// It keeps two generations: when the younger one is full, it becomes the older one, and what was
// in that and not been used since is forgotten. So a message that comes by two subscriptions, one
// right behind the other, is always known the second time.
type gapDetector struct {
	mu         sync.Mutex
	young, old map[string]*topicSequences // by subject
	period     uint32
	isGone     func(origin string) bool // a node; nil for none
}

// maxTopicsPerGeneration is the most topics of a generation.
const maxTopicsPerGeneration = 1 << 17

// topicSequences are those of a topic.
type topicSequences struct{ sources []sourceSequence }

// sourceSequence is the newest number by an origin. It was seen in a period: in another one, no
// loss is concluded from it.
type sourceSequence struct {
	source string
	number uint64
	period uint32
}

const (
	// maxSourcesPerTopic is the most origins of a topic; then the one that came first is forgotten.
	maxSourcesPerTopic = 64
	// maxSourceBytes is the most bytes of an origin with its era.
	maxSourceBytes = maxOriginBytes + 32
)

// parseSequence takes a number to pieces; origin is as nodes call themselves, source with the era.
func parseSequence(text string) (source, origin string, number uint64, ok bool) {
	source, digits, ok := strings.Cut(text, " ")
	if !ok {
		return "", "", 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	origin, _, ok = strings.Cut(source, ".")
	return source, origin, number, err == nil && ok && number > 0 && len(source) <= maxSourceBytes
}

// record notes that a message has come. It says how many before it are missing, and whether it has
// come before.
func (g *gapDetector) record(subject, source string, number uint64) (missing uint64, duplicate bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.sequencesOf(subject)
	for i := range t.sources {
		o := &t.sources[i]
		if o.source != source {
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
	g.evictSources(t, source)
	t.sources = append(t.sources, sourceSequence{strings.Clone(source), number, g.period})
	return 0, false
}

// evictSources makes room for a source that is new: nodes that are gone are forgotten, and eras of its own but for the
// newest, in which another process may still publish.
func (g *gapDetector) evictSources(t *topicSequences, source string) {
	origin, _, _ := strings.Cut(source, ".")
	eras := 0
	for i := len(t.sources) - 1; i >= 0; i-- {
		other, _, _ := strings.Cut(t.sources[i].source, ".")
		if other == origin {
			eras++
		}
		if other == origin && eras > 1 || other != origin && g.isGone != nil && g.isGone(other) {
			t.sources = slices.Delete(t.sources, i, i+1)
		}
	}
	if len(t.sources) >= maxSourcesPerTopic {
		t.sources = slices.Delete(t.sources, 0, 1)
	}
}

func (g *gapDetector) sequencesOf(subject string) *topicSequences {
	if t := g.young[subject]; t != nil {
		return t
	}
	t := g.old[subject]
	if t == nil {
		t = new(topicSequences)
	}
	if g.young == nil || len(g.young) >= maxTopicsPerGeneration {
		g.young, g.old = make(map[string]*topicSequences), g.young
	}
	g.young[subject] = t
	return t
}

// noteUnsubscribed notes that a subject is not subscribed to any more: what is missing from now on was not
// meant to come, unless another subscription covers it. A wildcard is every subject.
func (g *gapDetector) noteUnsubscribed(subject string, isCovered func(subject string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.HasSuffix(subject, allSuffix) {
		for _, topics := range []map[string]*topicSequences{g.old, g.young} {
			for subject, t := range topics {
				if isCovered(subject) {
					t.movePeriod(g.period, g.period+1)
				}
			}
		}
		g.period++
		return
	}
	if isCovered(subject) {
		return
	}
	t := g.young[subject]
	if t == nil {
		t = g.old[subject]
	}
	if t != nil {
		for i := range t.sources {
			t.sources[i].period = g.period - 1
		}
	}
}

// movePeriod moves the numbers that were seen in a period to another one.
func (t *topicSequences) movePeriod(from, to uint32) {
	for i := range t.sources {
		if t.sources[i].period == from {
			t.sources[i].period = to
		}
	}
}
