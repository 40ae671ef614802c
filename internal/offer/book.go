package offer

import "sync/atomic"

// book is what is counted of the jobs of the warm-up, or of those of the window.
type book struct {
	tallies  []tally
	rejected [answers]atomic.Uint64
	late     atomic.Uint64
	lateness histogram // of an open loop
}

func (b *book) init() { b.tallies = make([]tally, shards()) }

// ended is how many jobs have ended and are counted.
func (b *book) ended() (n uint64) {
	for i := range b.tallies {
		t := &b.tallies[i]
		n += t.counted.Load() + t.expired.Load() + t.shed.Load()
	}
	return n
}

// turnedAway is how many jobs were rejected.
func (b *book) turnedAway() (n uint64) {
	for i := range b.rejected {
		n += b.rejected[i].Load()
	}
	return n
}

// lag counts by how much a submission is late, in ns.
func (b *book) lag(by int64) {
	b.lateness.add(by)
	if by > behind {
		b.late.Add(1)
	}
}

// steady is how many jobs were good and have ended within the window.
func (b *book) steady() (n uint64) {
	for i := range b.tallies {
		n += b.tallies[i].steady.Load()
	}
	return n
}

// book is where a job is counted, by its number.
func (r *run) book(number uint64) *book {
	if number < r.first.Load() {
		return &r.warming
	}
	return &r.window
}

// offered is how many jobs of a book were submitted.
func (g *generator) offered(b *book) uint64 {
	next := g.next.Load()
	warming := min(next, g.run.first.Load())
	if b == &g.run.warming {
		return warming
	}
	return next - warming
}

// accepted is how many jobs of a book the pool has, or has had.
func (g *generator) accepted(b *book) uint64 {
	rejected := b.turnedAway()
	return g.offered(b) - rejected
}

// missed is how many jobs of a book were due at a time, in ns after the start, and
// had not been submitted.
func (g *generator) missed(b *book, now int64) uint64 {
	p := &g.run.plan
	if p.Rate == 0 {
		return 0
	}
	due := min(uint64(float64(now)*p.Rate/1e9)+1, p.jobs())
	warming := min(due, g.run.first.Load())
	if b == &g.run.warming {
		due = warming
	} else {
		due -= warming
	}
	return due - min(due, g.offered(b))
}
