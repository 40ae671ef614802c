package pool

import (
	"math"
	"time"
)

// climber decides how many workers there may be. It is a state machine without clock,
// goroutines and locks: the controller calls observe every 10 ms or so while the pool is
// not idle, and the other methods in between.
//
// It climbs the hill of throughput over workers, as .NET's thread pool does (J.
// Hellerstein, V. Morrison, E. Eilebrecht, "Optimizing Concurrency Levels in the .NET
// ThreadPool", FeBID 2008): it changes the limit for a trial, sees whether throughput
// follows, and reverts if it does not. Instead of a wave around the limit, which needs
// many samples, it makes single steps: large ones at first, then smaller ones and ones
// down, with longer and longer rests while none succeeds. Starvation, work that waits
// while no job ends, adds workers slowly without proof. As in Uber's Cinnamon (2023) the
// covariance of concurrency and throughput decides, not latency alone, and as in
// Netflix's Gradient2 the limit stays while the offered work does not use it.
//
// Where jobs block, trials are avoided whose outcome is known. While jobs take the least
// time that was seen, throughput is in proportion to the workers (Little's law), and none
// is tried of fewer. A step up goes little further than fills the processors, and none is
// made when jobs are crowded: when they take longer than the least time because they are
// many, as in TCP Vegas. That a least time is too low for the work at hand shows in a trial
// of fewer workers with which jobs take as long.
//
// Only time in which work waits counts: throughput that is all that was offered says
// nothing about the limit. A trial that emptied the queue is neither proven nor
// disproven: it stands, and the next one comes when work waits again.
type climber struct {
	minWorkers, maxWorkers int // at least 1
	ceiling                int // of the memory budget; 0 is none
	initial                int // an unused limit does not decay below

	limit      int    // how many workers there may be
	baseline   int    // the limit that a trial is compared with; limit between trials
	baseSample sample // throughput at baseline
	deviation  sample // newer throughput at baseline that differs from baseSample
	trial      sample // throughput at limit, measured so far

	last        reading
	started     bool
	blocked     float64 // recent share of the busy workers that neither ran nor was runnable
	backlogged  float64 // share of recent readings with a runnable backlog
	meanService float64 // recent mean service time of jobs in seconds; 0: not known
	least       float64 // the least mean service time of a sample: without crowding; 0: not known

	settled     bool          // jobs from before the limit changed have ended
	changedAt   time.Duration // when the limit changed
	settledFrom uint64        // jobs finished when the number of workers had followed the limit
	lastEnd     time.Duration // when a job ended last

	waitingSince time.Duration // since when work waits
	lastWaited   time.Duration // when work waited last, or the limit decayed
	peakBusy     int           // most busy workers since then

	step      int           // the next trial's, an index of steps
	bold      bool          // the next trial takes its step twice
	rising    bool          // no step up has failed since the last that succeeded
	nextTrial time.Duration // when the next trial may begin
	rest      time.Duration // between trials
	patience  time.Duration // time without the end of a job until workers are added
}

// reading is what the pool has seen so far. Sums are since the start.
type reading struct {
	at       time.Duration // monotonic
	finished uint64        // jobs that have ended
	service  time.Duration // sum of their service times
	timed    uint64        // jobs in that sum
	refused  uint64        // jobs that found no room: refused, shed, or made to wait
	workers  int           // workers there are now
	busy     int           // workers that run a job
	procs    int           // processors
	cpu      time.Duration // processor time of the process; 0 if that is not known
	backlog  float64       // runnable goroutines that do not run, for each processor
	waits    time.Duration // how long the oldest queued job has waited; 0: none waits
}

// steps are the factors of the limit that are tried in turn.
var steps = [...]float64{2, 1.5, 1.25, 1 / 2., 1 / 1.5, 1 / 1.25}

const (
	firstUp, lastUp, firstDown = 0, 2, 3 // indices of steps
	fewWorkers                 = 128     // up to which steps are large

	// minGain is the share of proportional growth that a step up must bring;
	// minGainFull where processors are full, which is when fullShare of the readings
	// have a backlog of fullBacklog. maxLoss is the share of a proportional loss that a
	// step down may cost. After a gain of boldGain the next step is bold.
	minGain, minGainFull   = 0.3, 0.7
	fullBacklog, fullShare = 2, 0.75
	blockedEnough          = 0.25 // from which share of blocked workers on jobs block
	maxLoss                = 0.1
	// Where jobs block they are crowded when they take longer than the least time by these
	// factors: below the first there is no telling, from the second on no step up is tried
	// until rests are long, and from the third on one down, that leaves smallDown at least. A
	// step up is at least smallUp, and none is larger than fills the processors, but for overshoot.
	uncrowded, crowded, tooCrowded = 1.1, 1.2, 1.3
	smallDown, smallUp, overshoot  = 0.75, 1.05, 1.1
	minToldLeast                   = 256 // jobs of a sample that may be the least
	sameService                    = 0.9 // fewer workers that take this much of the time do not help
	boldGain                       = 0.7
	// A limit counts as growing for no longer than this after a step up.
	minGrowing, maxGrowing = 200 * time.Millisecond, 5 * time.Second
	// The work is of another kind when throughput at the same limit has changed by this
	// factor, and by so many times the likely error.
	otherFactor, otherNoise = 1.3, 3
	otherService            = 2   // times the least time
	minDeviation            = 0.3 // seconds

	minRest, maxRest         = 200 * time.Millisecond, 10 * time.Second
	restPerRound             = 0.05 // seconds a job; rests are longer for longer jobs
	minPatience, maxPatience = time.Second, time.Minute
	unprovenFactor           = 1.5
	// A trial is decided at once if it is so many times the likely error off the line (of
	// many workers, which have begun together, after minTrial),
	// otherwise when it was measured for as long as the baseline, within these bounds.
	evidentNoise       = 1.5
	minTrial, maxTrial = 0.1, 2 // seconds
	maxMeasure         = 30 * time.Second
	maxGap             = time.Second      // between readings that belong together
	decayPeriod        = 10 * time.Second // an unused limit halves in
)

// newClimber makes a climber for minWorkers to maxWorkers with an initial limit. What is
// out of bounds is brought into them.
func newClimber(minWorkers, maxWorkers, initial int) climber {
	c := climber{rest: minRest, patience: minPatience, initial: initial}
	c.minWorkers = max(1, min(minWorkers, maxLimit))
	c.maxWorkers = max(c.minWorkers, min(maxWorkers, maxLimit))
	c.setLimit(c.clamp(initial))
	c.baseline = c.limit
	return c
}

// setCeiling sets a ceiling below the upper bound, 0 for none. The lower bound always
// holds. If the old ceiling held the limit down, the next trial is a step up.
func (c *climber) setCeiling(most int) {
	top := c.top()
	c.ceiling = max(0, most)
	if c.limit >= top && c.top() > top {
		c.step, c.rest, c.nextTrial = firstUp, minRest, 0
	}
	if limit := c.clamp(c.limit); limit != c.limit || c.clamp(c.baseline) != c.baseline {
		c.setLimit(limit)
		c.rebase()
	}
}

// top is the upper bound now.
func (c *climber) top() int {
	if c.ceiling > 0 {
		return min(c.maxWorkers, c.ceiling)
	}
	return c.maxWorkers
}

// clamp brings a number of workers into the bounds.
func (c *climber) clamp(n int) int {
	return max(c.minWorkers, min(n, c.top()))
}

// blocking reports whether jobs block.
func (c *climber) blocking() bool { return c.blocked > blockedEnough }

// service is how long jobs take, a moving average; 0 if that is not known.
func (c *climber) service() time.Duration { return time.Duration(c.meanService * 1e9) }

// growing reports whether the limit is still on its way up; not for long if no jobs end.
func (c *climber) growing() bool {
	patience := min(max(minGrowing, time.Duration(8*c.meanService*1e9)), maxGrowing)
	return c.rising && c.limit < c.top() && c.last.at-max(c.changedAt, c.waitingSince) < patience
}

// observe takes a reading and returns how many workers there may be.
func (c *climber) observe(r reading) int {
	last := c.last
	if !c.started || r.at < last.at || r.finished < last.finished || r.service < last.service || r.timed < last.timed {
		c.restart(r)
		return c.limit
	}
	if r.at == last.at {
		return c.limit
	}
	c.last = r
	if r.timed > last.timed {
		mean := (r.service - last.service).Seconds() / float64(r.timed-last.timed)
		if c.meanService > 0 {
			mean = c.meanService + (mean-c.meanService)/4
		}
		c.meanService = mean
	}
	if r.finished > last.finished {
		c.lastEnd = r.at
	}
	c.peakBusy = max(c.peakBusy, r.busy)
	c.backlogged -= c.backlogged / 8
	share := 0.0
	if r.busy > 0 {
		share = max(0, 1-(1+r.backlog)*float64(r.procs)/float64(r.busy))
	}
	blocking := c.blocking()
	if c.blocked += (share - c.blocked) / 8; blocking && !c.blocking() {
		c.step, c.rest = firstDown, minRest // jobs compute now, for which there are too many workers
	}
	if r.backlog >= fullBacklog {
		c.backlogged += 1. / 8
	}

	dt := r.at - last.at
	some, all := c.waitedBetween(last, r, dt)
	if some {
		c.lastWaited, c.peakBusy = r.at, r.busy
	} else {
		c.waitingSince = r.at
	}
	switch {
	case !some || !all && c.limit < c.baseline:
		c.decayUnused(r)
	case c.starved(r):
		c.addUnproven()
	case !c.settled:
		c.settled = c.settles(r)
	default:
		c.trial.add(last, r, c.limit)
		c.trial.partly = c.trial.partly || !all
		if c.limit == c.baseline {
			c.measureBaseline(r)
		} else {
			c.judgeTrial(r)
		}
	}
	return c.limit
}

// restart begins with a first reading, or anew after one that makes no sense.
func (c *climber) restart(r reading) {
	c.last, c.started = r, true
	c.changedAt, c.lastEnd, c.lastWaited = r.at, r.at, r.at
	c.nextTrial, c.peakBusy = 0, 0
	c.rebase()
	c.setLimit(c.limit)
}

// waitedBetween reports whether work waited at two readings or found no room between
// them, and whether it certainly waited all the time: the oldest job has waited for as
// long, or for several service times at both. Only then fewer workers may be tried:
// otherwise a throughput that is as high may be all that was offered.
func (c *climber) waitedBetween(last, r reading, dt time.Duration) (some, all bool) {
	if dt > maxGap {
		return false, false
	}
	refused := r.refused > last.refused
	some = r.waits > 0 && last.waits > 0 || refused
	long := dt.Seconds()
	if c.meanService > 0 {
		long = min(long, 4*c.meanService)
	}
	all = some && (r.waits >= dt || r.waits.Seconds() >= long && last.waits.Seconds() >= long || refused)
	return some, all
}

// decayUnused is for time in which there were workers enough. After a decayPeriod a trial
// ends undecided: the limit stays, and the next trial goes the other way. A limit that is
// more than twice what is used halves, so that the next burst does not begin at the
// height of an old one.
func (c *climber) decayUnused(r reading) {
	periods := (r.at - c.lastWaited) / decayPeriod
	if periods < 1 {
		return
	}
	if c.limit != c.baseline {
		c.step = firstUp
		if c.limit > c.baseline {
			c.step = firstDown
		}
		c.rebase()
		c.bold = false
	}
	limit := c.limit >> min(periods, 32)
	if limit = c.clamp(max(limit, c.initial, 2*min(c.peakBusy, maxLimit))); limit < c.limit {
		c.setLimit(limit)
		c.rebase()
	}
	c.lastWaited, c.peakBusy = r.at, r.busy
}

// starved reports that work waits and no job ends, for longer than jobs take.
func (c *climber) starved(r reading) bool {
	idle := r.at - max(c.lastEnd, c.changedAt)
	return idle >= c.patience && idle.Seconds() >= 2*c.meanService
}

// addUnproven adds workers without proof. The patience doubles: if jobs compute, each
// further worker delays the proof.
func (c *climber) addUnproven() {
	c.patience = min(2*c.patience, maxPatience)
	if c.backlogged >= fullShare {
		return
	}
	limit := max(c.limit, c.baseline)
	if limit = c.clamp(max(limit+1, int(float64(limit)*unprovenFactor))); limit != c.limit {
		c.setLimit(limit)
		c.rebase()
	}
}

// settles reports whether jobs that end from now on have run at about the present limit:
// as many have ended since the workers followed it as there are workers. A few very long
// jobs do not hold it up.
func (c *climber) settles(r reading) bool {
	since := r.at - c.changedAt
	off := r.workers > c.limit+c.limit/8 || r.workers < c.limit-c.limit/8 && c.limit > c.baseline
	if off && since.Seconds() < max(1, 8*c.meanService) {
		c.settledFrom = r.finished
	}
	return r.finished-c.settledFrom >= uint64(c.limit) || since >= maxMeasure
}

// measureBaseline measures throughput between trials and starts the next one in time.
func (c *climber) measureBaseline(r reading) {
	if !c.trial.usable() {
		return
	}
	c.patience = minPatience
	all := !c.trial.partly
	c.noteLeast(&c.trial)
	c.deviation.merge(&c.trial)
	c.trial = sample{}
	gain, noise := c.baseSample.gain(&c.deviation)
	differs := math.Abs(math.Log(gain))
	switch {
	case c.baseSample.readings > 0 && c.deviation.seconds >= minDeviation && differs > max(math.Log(otherFactor), otherNoise*noise):
		if c.deviation.meanService() > otherService*c.least {
			c.least = 0
		}
		c.setLimit(c.limit) // jobs that ended until now may be of both kinds
		c.baseSample, c.step, c.rest, c.nextTrial, c.bold = sample{}, firstUp, minRest, r.at, true
		return
	case differs < math.Log(otherFactor) || c.deviation.readings > c.baseSample.readings:
		c.baseSample.merge(&c.deviation)
	default:
		return // it may be chance
	}
	c.deviation = sample{}
	if r.at >= c.nextTrial {
		c.startTrial(r, all)
	}
}

// startTrial starts the next trial that the bounds allow. Fewer workers are tried only if
// work has waited all the time. Where jobs block, steps are small once the limit has
// been found: if all workers are needed, one down costs its share of throughput, and one
// up the memory of so many more jobs.
func (c *climber) startTrial(r reading, all bool) {
	for range steps {
		if n := c.clamp(c.target(steps[c.step])); n > c.limit || n < c.limit && all {
			base := c.limit
			c.setLimit(n)
			c.baseline = base
			return
		}
		c.bold = false
		c.nextStep()
	}
	c.nextTrial = r.at + c.rest
}

// target is the limit that a step leads to: the present one if the step is not to be tried.
func (c *climber) target(f float64) int {
	if c.blocking() && f < smallDown {
		return c.limit
	}
	if c.bold && (f < 1 || c.backlogged < fullShare && c.limit <= fewWorkers) {
		f *= f
	}
	if f < 1 && c.blocking() && c.baseSample.meanService() < tooCrowded*c.least {
		return c.limit
	}
	if most := c.mostFactor(); f > max(1, most) && (most >= smallUp || c.rest < maxRest) {
		if c.step != lastUp || most < smallUp {
			return c.limit
		}
		f = most
	}
	n := int(math.Round(float64(c.limit) * f))
	if f > 1 {
		return max(n, c.limit+1)
	}
	return max(min(n, c.limit-1), 1)
}

// mostFactor is by which factor the limit may grow in one step where jobs block: until
// all processors are busy, and no further than until jobs are crowded. By Little's law so
// many workers are busy as jobs end in the least time.
func (c *climber) mostFactor() float64 {
	if !c.blocking() || c.least == 0 || c.limit <= fewWorkers {
		return math.Inf(1)
	}
	s := &c.baseSample
	f := overshoot * float64(c.last.procs) * s.seconds / s.cpu // infinite where that is not known
	if s.meanService() >= uncrowded*c.least {
		f = min(f, crowded*c.least*s.rate()/float64(c.limit))
	}
	return f
}

// noteLeast notes the least mean service time.
func (c *climber) noteLeast(s *sample) {
	if s.timed >= minToldLeast && (c.least == 0 || s.meanService() < c.least) {
		c.least = s.meanService()
	}
}

// nextStep goes to the next step, and to longer rests after the last.
func (c *climber) nextStep() {
	if c.step++; c.step == len(steps) {
		c.step, c.rest = 0, min(2*c.rest, maxRest)
	}
}

// judgeTrial decides a trial as soon as that is evident, or when it was measured for as
// long as the baseline.
func (c *climber) judgeTrial(r reading) {
	if !c.trial.usable() {
		return
	}
	f := float64(c.limit) / float64(c.baseline)
	gain, noise := c.baseSample.gain(&c.trial)
	line := 1 + maxLoss*(f-1)
	if f > 1 {
		line = min(max(1+minGain*(f-1), 1+noise), (1+f)/2)
		if c.backlogged >= fullShare && !c.blocking() {
			line = 1 + minGainFull*(f-1)
		}
	}
	evident := math.Abs(math.Log(gain/line)) >= evidentNoise*noise && (c.trial.seconds >= minTrial || c.limit <= fewWorkers)
	if !evident && c.trial.seconds < max(minTrial, min(c.baseSample.seconds, maxTrial)) {
		return
	}
	c.patience = minPatience
	c.noteLeast(&c.trial)
	if gain < line {
		c.revert(r)
		return
	}
	all := !c.trial.partly
	c.rising = c.rising || f > 1
	c.baseline, c.baseSample, c.trial = c.limit, c.trial, sample{}
	if gain-1 > boldGain*(f-1) {
		first := firstUp
		if f < 1 {
			first = firstDown
		}
		if c.bold = c.step == first && (evident || f < 1); c.bold {
			c.rest = minRest
		}
		c.step = first
	}
	c.startTrial(r, all)
}

// revert ends a trial that failed.
func (c *climber) revert(r reading) {
	base, known := c.baseline, c.baseSample
	if took := c.trial.meanService(); c.limit < base && took > sameService*known.meanService() {
		c.least = took // it is not for the number of workers that jobs take longer
	}
	c.rising = c.rising && c.limit < base
	c.nextTrial = r.at + c.restAfter()
	c.setLimit(c.clamp(base))
	c.baseline, c.baseSample = c.limit, known
	if c.bold {
		c.bold, c.nextTrial = false, r.at
	} else {
		c.nextStep()
	}
}

// restAfter is how long to rest after a failed trial: longer, if jobs take longer.
func (c *climber) restAfter() time.Duration {
	round := c.trial.seconds / max(1, c.trial.rounds)
	long := c.rest.Seconds() * max(1, round/restPerRound)
	return time.Duration(min(long, max(maxRest.Seconds(), 20*round)) * 1e9)
}

// setLimit changes the limit. What was being measured is void.
func (c *climber) setLimit(limit int) {
	c.limit, c.trial, c.deviation, c.settled = limit, sample{}, sample{}, false
	c.changedAt, c.settledFrom = c.last.at, c.last.finished
}

// rebase makes the limit the baseline, of which nothing is known yet.
func (c *climber) rebase() {
	c.baseline, c.baseSample, c.trial, c.bold, c.rising = c.limit, sample{}, sample{}, true, true
}

// sample is what was measured at one limit while work waited: sums over readings.
type sample struct {
	readings, seconds float64
	finished          float64 // jobs that have ended
	rounds            float64 // jobs for each worker
	service, timed    float64 // seconds that jobs have taken, and how many those were
	cpu               float64 // seconds of processor time
	partly            bool    // work may not have waited all the time
}

const (
	// jitter is the assumed relative noise of a reading.
	jitter = 0.2
	// A sample is halved when it has so many readings and jobs, or very many readings.
	fewReadings, fewFinished, manyReadings = 128, 512, 1024
	minFinished                            = 8    // of a sample that is looked at
	noRate                                 = 1e-9 // stands for no throughput
)

// add adds a reading: the jobs that have ended since the one before.
func (s *sample) add(last, r reading, workers int) {
	finished := float64(r.finished - last.finished)
	s.readings++
	s.seconds += (r.at - last.at).Seconds()
	s.finished += finished
	s.rounds += finished / float64(workers)
	s.service += (r.service - last.service).Seconds()
	s.timed += float64(r.timed - last.timed)
	s.cpu += (r.cpu - last.cpu).Seconds()
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
	s.service = f*s.service + o.service
	s.timed = f*s.timed + o.timed
	s.cpu = f*s.cpu + o.cpu
}

// meanService is the mean service time in seconds, 0 if that is not known.
func (s *sample) meanService() float64 { return s.service / max(1, s.timed) }

// usable reports whether each worker has finished a job, and together a few.
func (s *sample) usable() bool {
	return s.readings >= 2 && s.rounds >= 1 && s.finished >= minFinished || s.seconds >= maxMeasure.Seconds()
}

// rate is the throughput in jobs a second.
func (s *sample) rate() float64 {
	return max(noRate, s.finished/max(noRate, s.seconds))
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
