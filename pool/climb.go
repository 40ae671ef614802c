package pool

import (
	"math"
	"time"
)

// climber decides how many workers there may be. It is a state machine without
// clock, goroutines and locks: the one goroutine that owns it calls step every
// 10 ms or so while the pool is not idle, and the others between steps.
//
// It climbs the hill of throughput over workers as .NET's thread pool does (J.
// Hellerstein, V. Morrison, E. Eilebrecht, "Optimizing Concurrency Levels in the
// .NET ThreadPool", FeBID 2008): it changes the limit, sees whether throughput
// follows, and goes back if it does not. Instead of their wave around the limit,
// which needs many samples, it makes steps and lets each speak: large ones at
// first, 2× or 4×, then smaller ones and ones downward, with rests that become
// longer while nothing is found. Also theirs is that starvation, work that waits
// while no job ends, adds workers slowly without proof. From Uber's Cinnamon
// ("Adaptive Concurrency in the Wild", 2023) comes that the covariance of
// concurrency and throughput decides, not latency alone, and from Netflix's
// Gradient2 that the limit is left alone while the offered work does not use it.
//
// Only time in which work waits counts: throughput that is what was offered says
// nothing about the limit. A step that relieved the queue is neither proven nor
// disproven; it stands, and there is no other until work waits again.
type climber struct {
	least, most int // the bounds, at least 1
	ceiling     int // of the memory budget; 0: none
	start       int // idle time does not take the limit below

	limit int    // how many workers there may be
	base  int    // the level that limit is compared with; limit itself between trials
	known sample // throughput at base
	odd   sample // newer throughput at base, if it is not what is known
	now   sample // throughput at limit, as far as it is measured

	last    reading
	started bool    // there is a last reading
	crowd   float64 // the share of recent readings with a crowd
	mean    float64 // recent mean running time of a job, in seconds; 0: not known

	settled bool          // the jobs of before the limit changed have ended
	changed time.Duration // when the limit changed
	from    uint64        // jobs that had ended when there were as many workers as limit says
	ended   time.Duration // when a job ended last

	waiting time.Duration // since when work waits

	rung   int           // the next trial, of rungs
	bold   bool          // the last trial did all that it could: the next is larger
	rising bool          // no step up has been refused since the last good one
	next   time.Duration // when the next trial may be
	rest   time.Duration // between trials
	blind  time.Duration // how long no job ends until workers are added without proof

	quiet time.Duration // when work waited last, or the limit decayed
	peak  int           // most busy workers since then
}

// reading is what the pool has seen until now. All sums are since the start.
type reading struct {
	at       time.Duration // a monotonic clock
	finished uint64        // jobs that have ended
	service  time.Duration // sum of the running times of timed jobs, weighted
	timed    uint64        // how many, weighted, those are
	refused  uint64        // jobs that found no room: turned away, shed, or blocked until there was some
	workers  int           // workers there are now
	busy     int           // how many of them run a job
	crowd    float64       // how many goroutines are ready to run and don't, for each processor
	waits    time.Duration // how long the oldest job in the queue has waited; 0: nothing waits
}

// rungs are the trials that are made in turn, as factors of the limit.
var rungs = [...]float64{2, 1.5, 1.25, 1 / 2., 1 / 1.5, 1 / 1.25}

const (
	firstUp, firstDown = 0, 3 // of rungs
	boldly             = 2    // a bold trial's factor is its rung's and this
	many               = 128  // workers above which no step up is bold

	// worth is what share of proportional growth a step up must bring, cheap
	// what share of a proportional loss a step down may cost.
	worth = 0.3
	// crowd is how many ready goroutines for each processor are a crowd; crowded is
	// from which share of readings with one on the processors are
	// taken to be full, and proof what share a step up must bring then.
	crowd, crowded, proof = 2, 0.75, 0.7
	cheap                 = 0.1
	// full is what share of proportional growth makes the next step a bold one.
	full = 0.7
	// A step up takes so long at most that it counts as growing.
	minGrowing, maxGrowing = 200 * time.Millisecond, 5 * time.Second
	// another is the change of throughput at the same limit from which on the
	// work is of another kind, when it is sure: so many times the likely error.
	another = 1.3
	sure    = 3

	minRest, maxRest   = 200 * time.Millisecond, 10 * time.Second
	short              = 0.05 // seconds: rests are longer for jobs that take longer
	minBlind, maxBlind = time.Second, time.Minute
	blindly            = 1.5 // the factor of a step without proof
	// evident is how many times the likely error a trial must be off the line to
	// be decided at once. Otherwise it is measured for as long as the base
	// was, within these bounds.
	evident     = 1.5
	quick, slow = 0.1, 2 // seconds
	// longest bounds how long old jobs are waited for, and a measurement.
	longest = 30 * time.Second
	// gap is the time between readings from which on nothing is known of it.
	gap = time.Second
	// decay is how often an unused limit halves.
	decay = 10 * time.Second
)

// newClimber makes a climber for least to most workers, at first start. What is
// out of bounds is brought into them.
func newClimber(least, most, start int) climber {
	c := climber{rest: minRest, blind: minBlind}
	c.least, c.most = bounds(least, most)
	c.start = start
	c.move(c.clamp(start))
	c.base = c.limit
	return c
}

// bounds brings bounds in order.
func bounds(least, most int) (int, int) {
	least = max(1, min(least, maxWorkers))
	return least, max(least, min(most, maxWorkers))
}

// resize sets other bounds.
func (c *climber) resize(least, most int) {
	top := c.top()
	c.least, c.most = bounds(least, most)
	c.rebound(top)
}

// cap sets a ceiling below the upper bound, 0 for none. The lower bound holds in
// any case.
func (c *climber) cap(most int) {
	top := c.top()
	c.ceiling = max(0, most)
	c.rebound(top)
}

// rebound brings the limit into new bounds. When the old ones held it down, the
// next trial is to use the new room.
func (c *climber) rebound(top int) {
	if c.limit >= top && c.top() > top {
		c.rung, c.rest, c.next = firstUp, minRest, 0
	}
	if limit := c.clamp(c.limit); limit != c.limit || c.clamp(c.base) != c.base {
		c.move(limit)
		c.settle()
	}
}

// top is the upper bound now.
func (c *climber) top() int {
	if c.ceiling > 0 {
		return min(c.most, c.ceiling)
	}
	return c.most
}

// clamp brings a number of workers into the bounds.
func (c *climber) clamp(n int) int {
	return max(c.least, min(n, c.top()))
}

// growing says whether the limit is on its way up, and has not been found to be
// enough: but not for long without an end of jobs.
func (c *climber) growing() bool {
	patience := min(max(minGrowing, time.Duration(8*c.mean*1e9)), maxGrowing)
	return c.rising && c.limit < c.top() && c.last.at-max(c.changed, c.waiting) < patience
}

// step takes a reading and returns how many workers there may be.
func (c *climber) step(r reading) int {
	last := c.last
	if !c.started || r.at < last.at || r.finished < last.finished || r.service < last.service || r.timed < last.timed {
		c.begin(r)
		return c.limit
	}
	if r.at == last.at {
		return c.limit
	}
	c.last = r
	if r.timed > last.timed {
		mean := (r.service - last.service).Seconds() / float64(r.timed-last.timed)
		if c.mean > 0 {
			mean = c.mean + (mean-c.mean)/4
		}
		c.mean = mean
	}
	if r.finished > last.finished {
		c.ended = r.at
	}
	c.peak = max(c.peak, r.busy)
	c.crowd -= c.crowd / 8
	if r.crowd >= crowd {
		c.crowd += 1. / 8
	}

	dt := r.at - last.at
	some, all := c.waited(last, r, dt)
	if some {
		c.quiet, c.peak = r.at, r.busy
	} else {
		c.waiting = r.at
	}
	switch {
	case !some || !all && c.limit < c.base:
		c.unused(r)
	case c.starved(r):
		c.grope()
	case !c.settled:
		c.settled = c.settles(r)
	default:
		c.now.add(float64(r.finished-last.finished), dt.Seconds(), c.limit)
		c.now.partly = c.now.partly || !all
		if c.limit == c.base {
			c.watch(r)
		} else {
			c.judge(r)
		}
	}
	return c.limit
}

// begin starts anew with a first reading, or after one that makes no sense.
func (c *climber) begin(r reading) {
	c.last, c.started = r, true
	c.changed, c.ended, c.quiet = r.at, r.at, r.at
	c.next, c.peak = 0, 0
	c.settle()
	c.move(c.limit)
}

// waited says whether some work waited at two readings or found no room between
// them, and whether it is certain that work waited all the time: the oldest job
// has waited for as long, or for several jobs' time at both. Only then fewer
// workers may be tried: throughput that is as high with fewer may else be what was
// offered, at the price of a longer wait.
func (c *climber) waited(last, r reading, dt time.Duration) (some, all bool) {
	if dt > gap {
		return false, false
	}
	refused := r.refused > last.refused
	some = r.waits > 0 && last.waits > 0 || refused
	long := dt.Seconds()
	if c.mean > 0 {
		long = min(long, 4*c.mean)
	}
	all = some && (r.waits >= dt || r.waits.Seconds() >= long && last.waits.Seconds() >= long || refused)
	return some, all
}

// unused is for time in which there were workers enough. When it becomes long, a
// trial is given up as not decided: the limit stays, and the next trial is to go
// back. A limit that is more than twice what is used halves now and then, so that
// the next burst, of whatever kind, does not start at the height of an old one.
func (c *climber) unused(r reading) {
	periods := (r.at - c.quiet) / decay
	if periods < 1 {
		return
	}
	if c.limit != c.base {
		c.rung = firstUp
		if c.limit > c.base {
			c.rung = firstDown
		}
		c.settle()
		c.bold = false
	}
	limit := c.limit >> min(periods, 32)
	if limit = c.clamp(max(limit, c.start, 2*min(c.peak, maxWorkers))); limit < c.limit {
		c.move(limit)
		c.settle()
	}
	c.quiet, c.peak = r.at, r.busy
}

// starved says that work waits and no job ends, for longer than jobs take.
func (c *climber) starved(r reading) bool {
	idle := r.at - max(c.ended, c.changed)
	return idle >= c.blind && idle.Seconds() >= 2*c.mean
}

// grope adds workers without proof. The time until the next such step doubles:
// when jobs compute, each worker more delays the proof.
func (c *climber) grope() {
	c.blind = min(2*c.blind, maxBlind)
	if c.crowd >= crowded {
		return
	}
	limit := max(c.limit, c.base)
	if limit = c.clamp(max(limit+1, int(float64(limit)*blindly))); limit != c.limit {
		c.move(limit)
		c.settle()
	}
}

// settles says whether what ends from now on has run with as many workers as
// limit says, more or less: as many jobs have ended since then as there are
// workers. A few jobs that take very long do not hold it up.
func (c *climber) settles(r reading) bool {
	since := r.at - c.changed
	off := r.workers > c.limit+c.limit/8 || r.workers < c.limit-c.limit/8 && c.limit > c.base
	if off && since.Seconds() < max(1, 8*c.mean) {
		c.from = r.finished
	}
	return r.finished-c.from >= uint64(c.limit) || since >= longest
}

// watch measures the base, and starts a trial when it is time.
func (c *climber) watch(r reading) {
	if !c.now.whole() {
		return
	}
	c.blind = minBlind
	all := !c.now.partly
	c.odd.merge(&c.now)
	c.now = sample{}
	gain, noise := c.known.gain(&c.odd)
	differs := math.Abs(math.Log(gain))
	switch {
	case c.known.readings > 0 && differs > max(math.Log(another), sure*noise):
		c.move(c.limit) // what ended until now may be of both kinds
		c.known, c.rung, c.rest, c.next, c.bold = sample{}, firstUp, minRest, r.at, true
		return
	case differs < math.Log(another) || c.odd.readings > c.known.readings:
		c.known.merge(&c.odd)
	default:
		return // it may be chance
	}
	c.odd = sample{}
	if r.at >= c.next {
		c.try(r, all)
	}
}

// try starts the next trial that there is room for. Fewer workers are tried only
// if work has waited all the time.
func (c *climber) try(r reading, all bool) {
	for range rungs {
		f := rungs[c.rung]
		if c.bold && (f < 1 || c.crowd < crowded && c.limit <= many) {
			f = math.Pow(f, boldly)
		}
		n := int(math.Round(float64(c.limit) * f))
		if f > 1 {
			n = max(n, c.limit+1)
		} else {
			n = max(min(n, c.limit-1), 1)
		}
		if n = c.clamp(n); n > c.limit || n < c.limit && all {
			base := c.limit
			c.move(n)
			c.base = base
			return
		}
		c.bold = false
		c.turn()
	}
	c.next = r.at + c.rest
}

// turn goes to the next rung, and to longer rests after the last.
func (c *climber) turn() {
	if c.rung++; c.rung == len(rungs) {
		c.rung, c.rest = 0, min(2*c.rest, maxRest)
	}
}

// judge decides a trial as soon as that is clear, or when it has been measured for
// as long as the base was.
func (c *climber) judge(r reading) {
	if !c.now.whole() {
		return
	}
	f := float64(c.limit) / float64(c.base)
	gain, noise := c.known.gain(&c.now)
	line := 1 + cheap*(f-1)
	if f > 1 {
		line = min(max(1+worth*(f-1), 1+noise), (1+f)/2)
		if c.crowd >= crowded {
			line = 1 + proof*(f-1)
		}
	}
	plain := math.Abs(math.Log(gain/line)) >= evident*noise
	if !plain && c.now.seconds < max(quick, min(c.known.seconds, slow)) {
		return
	}
	c.blind = minBlind
	if gain < line {
		c.refuse(r)
		return
	}
	all := !c.now.partly
	c.rising = c.rising || f > 1
	c.base, c.known, c.now = c.limit, c.now, sample{}
	if gain-1 > full*(f-1) {
		first := firstUp
		if f < 1 {
			first = firstDown
		}
		if c.bold = c.rung == first && (plain || f < 1); c.bold {
			c.rest = minRest
		}
		c.rung = first
	}
	c.try(r, all)
}

// refuse ends a trial that was not worth it.
func (c *climber) refuse(r reading) {
	base, known := c.base, c.known
	c.rising = c.rising && c.limit < base
	c.next = r.at + c.pause()
	c.move(c.clamp(base))
	c.base, c.known = c.limit, known
	if c.bold {
		c.bold, c.next = false, r.at
	} else {
		c.turn()
	}
}

// pause is how long to rest after a trial that was refused: the longer, the more
// the trials of such jobs cost.
func (c *climber) pause() time.Duration {
	round := c.now.seconds / max(1, c.now.rounds)
	long := c.rest.Seconds() * max(1, round/short)
	return time.Duration(min(long, max(maxRest.Seconds(), 20*round)) * 1e9)
}

// move changes the limit. What was being measured is void.
func (c *climber) move(limit int) {
	c.limit, c.now, c.odd, c.settled = limit, sample{}, sample{}, false
	c.changed, c.from = c.last.at, c.last.finished
}

// settle makes the limit the base, of which nothing is known yet.
func (c *climber) settle() {
	c.base, c.known, c.now, c.bold, c.rising = c.limit, sample{}, sample{}, true, true
}

// sample is what was measured at one number of workers while work waited: sums
// over readings.
type sample struct {
	readings, seconds float64
	finished          float64 // jobs that have ended
	rounds            float64 // as many for each worker
	partly            bool    // work may not have waited all the time
}

const (
	// jitter is the noise that one reading is taken to have from the machine.
	jitter = 0.2
	// A sample forgets when it is of so many readings and jobs, or of very many
	// readings.
	fewReadings, fewFinished, manyReadings = 128, 512, 1024
	few                                    = 8
	// tiny stands for no throughput at all, per second.
	tiny = 1e-9
)

// add adds a reading: the jobs that have ended since the one before.
func (s *sample) add(finished, seconds float64, workers int) {
	s.readings++
	s.seconds += seconds
	s.finished += finished
	s.rounds += finished / float64(workers)
}

// merge adds another sample, the newer. The old counts half when it is long.
func (s *sample) merge(o *sample) {
	f := 1.0
	if s.readings > fewReadings && s.finished > fewFinished || s.readings > manyReadings {
		f = 0.5
	}
	s.readings = f*s.readings + o.readings
	s.seconds = f*s.seconds + o.seconds
	s.finished = f*s.finished + o.finished
	s.rounds = f*s.rounds + o.rounds
}

// whole says whether the sample is to be looked at: each worker has ended a job,
// and together they have ended a few.
func (s *sample) whole() bool {
	return s.readings >= 2 && s.rounds >= 1 && s.finished >= few || s.seconds >= longest.Seconds()
}

// rate is the throughput in jobs a second.
func (s *sample) rate() float64 {
	return max(tiny, s.finished/max(tiny, s.seconds))
}

// variance is the square of the likely relative error of rate: from chance, as if
// running times were exponential; from the machine; and because the jobs of all
// workers may end at the same moments, one of which more or less was seen.
func (s *sample) variance() float64 {
	readings := max(1, s.readings)
	burst := min(1/readings, 1/max(1, s.rounds))
	return 1/max(1, s.finished) + jitter*jitter/readings + burst*burst
}

// gain is by what factor throughput is higher in o than in s, and the relative
// error that this is likely to have.
func (s *sample) gain(o *sample) (gain, noise float64) {
	return o.rate() / s.rate(), math.Sqrt(s.variance() + o.variance())
}
