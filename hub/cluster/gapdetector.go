package cluster

import (
	"slices"
	"strconv"
	"strings"
	"sync"
)

type gapDetector struct {
	mu         sync.Mutex
	young, old map[string]*topicSequences // by subject; young contains recently used topics
	period     uint32                     // a gap counts only if the message before it is from the same period
	isGone     func(origin string) bool   // reports whether a node may be forgotten; nil: never
}

const maxTopicsPerGeneration = 1 << 17

type topicSequences struct{ sources []sourceSequence }

// sourceSequence is the last sequence number that was received from a source. A source is a node in one era. Whenever a
// node restarts its numbers, it begins a new era.
type sourceSequence struct {
	source string
	number uint64
	period uint32
}

const (
	maxSourcesPerTopic = 64
	maxSourceBytes     = maxOriginBytes + 32
)

// parseSequenceHeader parses a header such as "a1b2.3 17", with source "a1b2.3", origin "a1b2" and number 17.
func parseSequenceHeader(text string) (source, origin string, number uint64, ok bool) {
	source, digits, ok := strings.Cut(text, " ")
	if !ok {
		return "", "", 0, false
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	origin, _, ok = strings.Cut(source, ".")
	return source, origin, number, err == nil && ok && number > 0 && len(source) <= maxSourceBytes
}

// recordSequence records the arrival of a message with the given number. missing is the number of messages that were
// lost between this message and the last one from the same source. duplicate is true if number is not greater than the
// last number from the source.
func (g *gapDetector) recordSequence(subject, source string, number uint64) (missing uint64, duplicate bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	t := g.getOrAddTopicLocked(subject)
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
	g.makeRoomForSourceLocked(t, source)
	t.sources = append(t.sources, sourceSequence{strings.Clone(source), number, g.period})
	return 0, false
}

// makeRoomForSourceLocked removes sources from t, because newSource will be added. It removes the sources of nodes
// that are gone. Of the sources of newSource's node, it keeps only the last one. If t is still full, it removes the
// oldest source.
func (g *gapDetector) makeRoomForSourceLocked(t *topicSequences, newSource string) {
	origin, _, _ := strings.Cut(newSource, ".")
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

func (g *gapDetector) getOrAddTopicLocked(subject string) *topicSequences {
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

// ignoreGapsAfterUnsubscribe makes g ignore gaps in a subject from which this node has unsubscribed. Gaps
// in subjects for which isCovered returns true still count, because another subscription covers these subjects.
func (g *gapDetector) ignoreGapsAfterUnsubscribe(subject string, isCovered func(subject string) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.HasSuffix(subject, allSuffix) {
		for _, topics := range []map[string]*topicSequences{g.old, g.young} {
			for subject, t := range topics {
				for i := range t.sources {
					if o := &t.sources[i]; o.period == g.period && isCovered(subject) {
						o.period++
					}
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
