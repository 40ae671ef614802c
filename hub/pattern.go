package hub

import "sync"

// patternIndex finds the patterns that match a topic.
type patternIndex struct {
	mu  sync.RWMutex
	all map[*topic]struct{}
}

func (x *patternIndex) add(t *topic) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.all == nil {
		x.all = make(map[*topic]struct{})
	}
	x.all[t] = struct{}{}
}

func (x *patternIndex) remove(t *topic) {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.all, t)
}

// match calls f for each pattern that matches the name of a topic.
func (x *patternIndex) match(name string, f func(*topic)) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	for t := range x.all {
		if globMatches(t.name, name) {
			f(t)
		}
	}
}
