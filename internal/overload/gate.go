package overload

import (
	"math"
	"net/netip"
	"sync/atomic"
	"time"
)

// Priority is the importance of a request or connection.
type Priority uint8

const (
	Normal   Priority = iota
	Critical          // never shed
)

// Reason tells why a request was shed.
type Reason int

const (
	ByQueueDelay Reason = iota // too many requests wait for a worker
	ByLoopLag                  // the event loops lag
	ByMemory                   // the memory is nearly exhausted
	NumReasons
)

// Gate admits or sheds (rejects) requests, depending on the queue delay. The queue delay is the time from Admit to
// Start. All exported methods except Tick are safe for concurrent use.
//
// As in Breakwater (Cho et al., OSDI 2020), a request needs a credit. The number of credits grows by addition while the
// delay is below a target. Above the target, the number shrinks in proportion to the excess. A request returns its
// credit at Start, so requests that wait for a slow dependency use no credits.
//
// As in CoDel (Nichols and Jacobson, 2012), shedding begins only after the delay has exceeded the target for a whole
// interval. As at Facebook (Maurer, "Fail at Scale", 2015), Start then rejects requests that have waited for more than
// twice the target.
//
// Shedding also requires that the queue grows, or that the delay exceeds maxDelay. A long but constant queue forms when
// a fixed number of clients each wait for an answer before the next request. Shedding would not help these clients.
//
// While the Gate sheds requests, it limits each source of requests to a fair share; see fairShares. The Gate checks the
// fair share of a request's source before the request gets a credit.
//
// Until the delay exceeds the target, the Gate measures only one request per Tick. All other requests cost one atomic
// load in Admit and one in Start.
type Gate struct {
	mode       atomic.Uint32 // bits such as probing; with 0, Admit admits every request unmeasured
	ratio      atomic.Uint32 // probability of shedding because of lag or memory; the constant certain means 1
	ratioCause atomic.Uint32 // Reason for shedding by ratio
	now        func() time.Duration
	requested  chan struct{} // result of Requested
	_          [128]byte     // the fields above are read for each request

	waiting   atomic.Int64 // measured requests between Admit and Start
	credits   atomic.Int64 // limit of the field waiting
	dropAfter atomic.Int64 // delay in ns after which a request is shed instead of started
	shed      [NumReasons]atomic.Int64
	// unmeasured counts the requests without a Ticket that have started since the last Tick while all were to be
	// measured.
	unmeasured atomic.Int64
	lastDelay  atomic.Int64
	emptySince atomic.Int64 // when the last waiting request started; 0 if requests wait now
	// idle is the time in ns, since the last Tick, in which no request waited. The first startInterval of each such
	// period does not count. startInterval is the mean time in ns between two starts.
	idle, startInterval atomic.Int64
	delays              meanTracker // of requests that have started since the last tick
	services            meanTracker // times from Start to Done
	queueController
	shares fairShares

	// MinTarget is the minimum target of the queue delay. Set it before the first Tick.
	MinTarget time.Duration
}

// These are the bits of Gate.mode.
const (
	probing  uint32 = 1 << iota // the next request is measured
	counting                    // every request is measured
	limiting                    // requests beyond the credits are shed
	dicing                      // requests are shed with the probability ratio
)

type meanTracker struct{ count, sum atomic.Int64 }

func (m *meanTracker) add(d time.Duration) {
	m.count.Add(1)
	m.sum.Add(int64(d))
}

func (m *meanTracker) takeAndReset() (count int64, sum time.Duration) {
	return m.count.Swap(0), time.Duration(m.sum.Swap(0))
}

// Ticket holds the times of a request from Admit to Done. A zero Ticket belongs to a request that is not measured. A
// Ticket is not safe for concurrent use.
type Ticket struct {
	admitted, started time.Duration
	priority          Priority
}

// Admit reports whether a request from source with priority p is admitted. For an admitted request, the caller must
// later call Start or Abandon. If Start returns true, the caller must call Done at the end of the request. For a
// request that starts immediately, t must be nil, and the caller must make no further calls.
func (g *Gate) Admit(t *Ticket, source netip.Addr, p Priority) (admitted bool) {
	if g.mode.Load() == 0 {
		return true
	}
	return g.admitBySharesAndCredits(t, source, p)
}

func (g *Gate) admitBySharesAndCredits(t *Ticket, source netip.Addr, p Priority) (admitted bool) {
	mode, isCounted := g.mode.Load(), false
	if p != Critical && (mode&dicing != 0 || mode&limiting != 0 && t != nil) {
		if admitted, isCounted = g.admitBySharesOrIfNoneWaits(mode, source); !admitted {
			return false
		}
	}
	if t == nil {
		return true
	}
	if mode&(counting|limiting) == 0 && (mode&probing == 0 || g.mode.And(^probing)&probing == 0) {
		return true
	}
	if mode&(counting|limiting) == 0 {
		select {
		case g.requested <- struct{}{}:
		default:
		}
	}
	n := g.waiting.Add(1)
	if mode&limiting != 0 && p != Critical && n > g.credits.Load() {
		g.waiting.Add(-1)
		g.shed[ByQueueDelay].Add(1)
		return false
	}
	if isCounted {
		g.shares.admitted.Add(1)
	}
	*t = Ticket{admitted: g.now(), priority: p}
	if n == 1 {
		if since := g.emptySince.Swap(0); since != 0 {
			g.idle.Add(max(int64(t.admitted)-since-g.startInterval.Load(), 0))
		}
	}
	return true
}

// admitBySharesOrIfNoneWaits reports whether a request passes the check of the fair shares. A request that fails the
// check is counted as shed. If no request waits, every request passes, so that no worker becomes idle. This exception
// does not apply if setShedRatio has set a ratio. isCounted reports whether fairShares has counted the request.
func (g *Gate) admitBySharesOrIfNoneWaits(mode uint32, source netip.Addr) (admitted, isCounted bool) {
	reason := ByQueueDelay
	if mode&dicing != 0 {
		reason = Reason(g.ratioCause.Load())
	}
	admitted, isCounted = g.shares.countAndAdmitByChance(source, g.flatProbability(mode))
	if !admitted && (mode&dicing != 0 || g.waiting.Load() > 0) {
		g.shed[reason].Add(1)
		return false, isCounted
	}
	return true, isCounted
}

// flatProbability returns the probability of admission that results from setShedRatio. The constant certain stands for
// the probability 1.
func (g *Gate) flatProbability(mode uint32) uint32 {
	if mode&dicing != 0 {
		return fullProbability - g.ratio.Load()
	}
	return fullProbability
}

// Start reports whether an admitted request may run. If the request has waited too long, Start counts the request as
// shed, ends its Ticket and returns false.
func (g *Gate) Start(t *Ticket) (run bool) {
	if t.admitted == 0 {
		if g.mode.Load()&(counting|limiting) != 0 {
			g.unmeasured.Add(1)
		}
		return true
	}
	t.started = g.now()
	if g.waiting.Add(-1) == 0 {
		g.emptySince.Store(int64(t.started))
	}
	delay := t.started - t.admitted
	if g.mode.Load()&limiting != 0 && t.priority != Critical && int64(delay) > g.dropAfter.Load() {
		*t = Ticket{}
		g.shed[ByQueueDelay].Add(1)
		return false
	}
	g.delays.add(delay)
	return true
}

// Done records that a started request has finished, and ends its Ticket.
func (g *Gate) Done(t *Ticket) {
	if t.admitted != 0 {
		g.services.add(g.now() - t.started)
		*t = Ticket{}
	}
}

// Abandon ends the Ticket of an admitted request that will not start.
func (g *Gate) Abandon(t *Ticket) {
	if t.admitted != 0 {
		g.waiting.Add(-1)
		*t = Ticket{}
	}
}

// Shed returns the number of requests shed for the given reason.
func (g *Gate) Shed(reason Reason) int64 { return g.shed[reason].Load() }

// QueueDelay returns the queue delay that the last Tick measured.
func (g *Gate) QueueDelay() time.Duration { return time.Duration(g.lastDelay.Load()) }

func (g *Gate) IsShedding() bool { return g.mode.Load()&(limiting|dicing) != 0 }

// IsQueueDelayHigh reports whether the queue delay has recently exceeded its target.
func (g *Gate) IsQueueDelayHigh() bool { return g.mode.Load()&(counting|limiting) != 0 }

func (g *Gate) setMode(bits uint32, on bool) {
	if on {
		g.mode.Or(bits)
	} else {
		g.mode.And(^bits)
	}
}

// setShedRatio makes the Gate shed requests with the probability ratio, and count them under the given reason. A ratio
// of 0 ends the shedding by probability.
func (g *Gate) setShedRatio(ratio float64, reason Reason) {
	g.ratioCause.Store(uint32(reason))
	g.ratio.Store(uint32(ratio * (1 << 16)))
	g.setMode(dicing, ratio > 0)
}

// Parameters of the Gate.
const (
	restPeriod = 100 * time.Millisecond // time between ticks without requests
	BusyPeriod = 10 * time.Millisecond
	// The target of the queue delay is the mean time for which requests run, but at least MinTarget (default:
	// minTarget) and at most maxTarget. If requests arrive in bursts, workers may find the queue empty in between. The
	// minimum therefore grows with the share of time in which this happens, by idleTarget if the share is maxIdle or
	// more. While the Gate does not limit requests, the minimum is MinTarget + idleTarget.
	minTarget, maxTarget = 2 * time.Millisecond, 100 * time.Millisecond
	idleTarget           = 3 * time.Millisecond
	maxIdle              = 0.05
	idleSmoothing        = 8 // number of ticks over which idleShare is averaged
	growthInterval       = 100 * time.Millisecond
	// A queue counts as growing if its length reaches growth times the length after its first interval. It also counts
	// as growing if arrivals exceed starts by the share fastGrowth in two consecutive intervals.
	growth, fastGrowth = 1.5, 0.2
	maxDelay           = time.Second // delay above which requests are shed even if the queue does not grow
	quietTime          = time.Second // ends limiting after so long without shedding, and counting without high delays
	decrease           = 0.4         // decrease of the credits if the delay is twice the target
	maxCredits         = 1 << 20
)

// queueController is the state from which Tick computes the mode and the credits of a Gate. Only Tick uses it.
type queueController struct {
	state     uint32 // 0, counting or limiting
	lastAt    time.Duration
	delay     time.Duration // of the last tick
	service   time.Duration // smoothed time for which requests run
	idleShare float64       // smoothed share of time in which workers find no request

	intervalAt  time.Duration // start of the current growthInterval
	minDelay    time.Duration // in the interval
	started     int64         // requests in the interval
	measured    bool          // a measured request has started in the interval
	grown       int64         // growth of the queue in the interval
	growing     int           // consecutive intervals in which the queue has grown fast
	lastWaiting int64         // at the last tick
	baseWaiting int64         // waiting after the first interval whose delays all exceeded the target; 0 if none

	quietSince  time.Duration
	adjustAt    time.Duration
	exactCredit float64
	lastShed    int64
}

// Requested returns a channel that receives a value when the Gate begins to measure a request. The caller should then
// call Tick after BusyPeriod.
func (g *Gate) Requested() <-chan struct{} { return g.requested }

// Tick updates the mode and the credits of the Gate. now is the current time of the Gate's clock. The caller must call
// Tick again after the duration untilNext.
func (g *Gate) Tick(now time.Duration) (untilNext time.Duration) {
	elapsed := now - g.lastAt
	g.lastAt = now
	waiting := g.waiting.Load()
	started, sum := g.delays.takeAndReset()
	switch {
	case started > 0:
		g.delay = sum / time.Duration(started)
	case waiting > 0:
		g.delay += elapsed
	default:
		g.delay = 0
	}
	if n, sum := g.services.takeAndReset(); n > 0 {
		if g.service == 0 {
			g.service = sum / time.Duration(n)
		}
		g.service += (sum/time.Duration(n) - g.service) / 4
	}
	unmeasured := g.unmeasured.Swap(0)
	g.started += started + unmeasured
	g.measured = g.measured || started > 0
	g.grown += waiting - g.lastWaiting - unmeasured
	g.lastWaiting = waiting
	g.minDelay = min(g.minDelay, g.delay)
	g.lastDelay.Store(int64(g.delay))
	g.updateIdleShare(elapsed, started)
	target := min(max(g.service, g.MinTarget+time.Duration(min(g.idleShare/maxIdle, 1)*float64(idleTarget))), maxTarget)
	switch g.state {
	case 0:
		if g.delay > target {
			g.enterState(counting, now)
		}
	case counting:
		if now-g.intervalAt >= growthInterval {
			g.endIntervalAndUpdateState(now, target, waiting)
		}
	case limiting:
		g.adjustCreditsOrStopLimiting(now, target, waiting)
	}
	g.updateOrEndShares(now)
	if g.state == 0 && g.mode.Or(probing)&probing != 0 {
		return restPeriod // there was no request
	}
	return BusyPeriod
}

// updateIdleShare estimates the share of time in which workers are idle because the Gate sheds too many requests.
// Workers may be idle while no request waits. A period without waiting requests normally lasts as long as the mean time
// between the starts of two requests. Only the part that exceeds this time counts as idle.
func (g *Gate) updateIdleShare(elapsed time.Duration, started int64) {
	idle := g.idle.Swap(0)
	if g.state != limiting {
		g.idleShare = maxIdle
	} else if started > 0 {
		g.startInterval.Store(int64(elapsed) / started)
		g.idleShare += (min(float64(idle)/float64(max(elapsed, 1)), 1) - g.idleShare) / idleSmoothing
	}
}

func (g *Gate) updateOrEndShares(now time.Duration) {
	if mode := g.mode.Load(); mode&(limiting|dicing) != 0 {
		g.shares.updateIfDue(now, g.flatProbability(mode), mode&limiting != 0)
	} else if g.shares.updateAt != 0 {
		g.shares.discardSketches()
	}
}

func (g *Gate) enterState(state uint32, now time.Duration) {
	g.state, g.quietSince, g.baseWaiting, g.growing = state, now, 0, 0
	g.startGrowthInterval(now)
	g.setMode(counting, state == counting)
	g.setMode(limiting, state == limiting)
}

func (g *Gate) startGrowthInterval(now time.Duration) {
	g.intervalAt, g.minDelay, g.started, g.grown, g.measured = now, math.MaxInt64, 0, 0, false
}

// endIntervalAndUpdateState evaluates the interval that ends now. If the queue grows or the delay exceeds maxDelay,
// the Gate begins to limit requests. If the delay was within the target for quietTime, the Gate stops measuring every
// request.
func (g *Gate) endIntervalAndUpdateState(now, target time.Duration, waiting int64) {
	if g.growing++; g.minDelay <= target || float64(g.grown) < fastGrowth*float64(g.started)+3 {
		g.growing = 0
	}
	switch {
	case g.minDelay <= target:
		if g.baseWaiting = 0; now-g.quietSince >= quietTime {
			g.enterState(0, now)
			return
		}
	case g.growing >= 2 || g.minDelay > maxDelay || g.baseWaiting > 0 && float64(waiting) >= growth*float64(g.baseWaiting)+1:
		// By Little's law, this is the number of requests that start within the target.
		g.exactCredit = float64(g.started) * float64(target) / float64(now-g.intervalAt)
		g.adjustAt = now
		g.storeCreditsAndMaxWait(target)
		g.enterState(limiting, now)
		return
	case g.baseWaiting == 0 && g.measured: // without a measured request, waiting omits requests admitted before counting began
		g.baseWaiting = max(waiting, 1)
		fallthrough
	default:
		g.quietSince = now
	}
	g.startGrowthInterval(now)
}

// adjustCreditsOrStopLimiting adjusts the number of credits, at most once in a period of length target. If no request
// was shed for quietTime, the Gate stops limiting requests.
func (g *Gate) adjustCreditsOrStopLimiting(now, target time.Duration, waiting int64) {
	shed := g.Shed(ByQueueDelay)
	if shed != g.lastShed {
		g.quietSince = now
	} else if now-g.quietSince >= quietTime {
		g.enterState(counting, now)
		return
	}
	if now < g.adjustAt {
		return
	}
	g.adjustAt = now + target
	switch excess := float64(g.delay-target) / float64(target); {
	case excess <= 0 && shed != g.lastShed:
		g.exactCredit += max(1, g.exactCredit/16)
	case excess > 0 && waiting <= g.credits.Load(): // a longer queue is from before the limit
		g.exactCredit *= max(1-decrease*excess, 0.5)
	}
	g.lastShed = shed
	g.storeCreditsAndMaxWait(target)
}

func (g *Gate) storeCreditsAndMaxWait(target time.Duration) {
	g.exactCredit = min(max(g.exactCredit, 1), maxCredits)
	g.credits.Store(int64(g.exactCredit))
	g.dropAfter.Store(int64(2 * target))
}
