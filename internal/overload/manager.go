// Package overload decides what a server does less of when it is overloaded.
//
// A Manager gets a Sample of signals several times a second and turns actions on and off. Each action begins at one
// level. It ends when the signal has been below a lower level for endTime, so that actions do not oscillate. The levels
// for memory follow Envoy's overload manager: at 92 %, connections are no longer kept alive, and at 95 %, no longer
// accepted. A [Gate] sheds requests that wait for workers. If event loops lag, requests are shed with a probability,
// which a PID controller sets as in Uber's Cinnamon (2023).
//
// The package does no I/O. Time and signals are arguments, and the engine and the handlers read the results.
//
// Latency alone is no signal, because a slow dependency also raises latency. On kernels that report CPU pressure, a lag
// of event loops counts only while tasks wait for a CPU. At other times, a lag means that a handler blocks its loop.
package overload

import (
	"net/netip"
	"sync/atomic"
	"time"
)

// Action is a measure that a Manager takes under overload. The values are in order of increasing severity.
type Action int

const (
	ShortenIdle  Action = iota // idle time limits are divided by IdleDivisor
	PauseLargest               // connections with more than their share of unsent output are not read
	EndKeepAlive               // HTTP connections close after their response
	PauseAccepts               // new connections wait in the kernel's queue
	RefuseConns                // most new connections are accepted and refused before TLS
	ShedRequests               // some requests are answered with an error
	CloseSlowest               // connections with the largest buffers are closed
	NumActions
)

var actionNames = [NumActions]string{"shorten_idle", "pause_largest", "end_keep_alive", "pause_accepts", "refuse_connections", "shed_requests", "close_slowest"}

func (a Action) String() string { return actionNames[a] }

// IdleDivisor is the number by which the action ShortenIdle divides idle timeouts.
const IdleDivisor = 8

// lagConnDivisor sets how many connections RefuseConns admits while event loops lag: one in lagConnDivisor.
const lagConnDivisor = 20

// Sample is one measurement of the load. Fields that are shares have values from 0 to about 1. Except for CPUPressure,
// 0 also means that the share is unknown.
type Sample struct {
	Lag         time.Duration // since the last sample: mean length of the loop iteration in which an event arrives
	CPUPressure float64       // share of time in which a task waited for a CPU; negative if unknown
	Memory      float64       // memory in use, as a share of the limit
	Buffers     float64       // buffers of connections, as a share of Limits.MaxBuffered
	Conns       float64       // open connections, as a share of Limits.MaxConns, which the descriptors limit
	NumConns    int64
	MaxBuffered int64
}

// Thresholds at which actions begin, and minimum times. An action ends when its signal has been below
// threshold*endShare for the duration endTime.
const (
	lagToPause     = 100 * time.Millisecond
	connsToShorten = 0.95
	buffersToPause = 0.6
	endShare       = 0.9
	lagTime        = 300 * time.Millisecond // how long the lag must last
	endTime        = time.Second            // how long an action continues after its signal has ended
	refuseAfter    = 5 * time.Second        // how long PauseAccepts lasts before RefuseConns begins
	minCPUPressure = 0.1
)

// memoryLevels are the shares of memory use at which actions begin. An action with level 0 does not depend on memory.
var memoryLevels = [NumActions]float64{ShortenIdle: 0.85, PauseLargest: 0.85, EndKeepAlive: 0.92, PauseAccepts: 0.95, ShedRequests: 0.97, CloseSlowest: 0.97}

// Parameters of the action CloseSlowest. While the action is active, each sample lowers the limit of the total size of
// all buffers to the current total size, multiplied by closeTo. The limit never falls below MaxBuffered/minBufferShare.
const (
	closeTo        = 0.75
	minBufferShare = 8
)

// minHighWater is the smallest limit of unsent bytes per connection that PauseLargest sets.
const minHighWater = 4 << 10

// Manager turns actions on and off. In a zero Manager, all actions are off. All methods except SetSourceWeights, Update
// and Tick are safe for concurrent use.
type Manager struct {
	active atomic.Uint32 // bits of actions
	// highWater limits a connection's unsent bytes, and bufferLimit the bytes of all buffers; 0 means no limit.
	highWater, bufferLimit atomic.Int64
	Gate
	connShares      fairShares
	connProbability atomic.Uint32 // of admitting a connection while RefuseConns is active, regardless of its source

	since     [NumActions]time.Duration // when an active action began; for an inactive one, when its signal began
	quietAt   [NumActions]time.Duration // when an active action's signal was last present
	signalled [NumActions]bool
	lag       lagController
	lowMemory bool // requests are shed because of memory
}

// NewManager returns a Manager whose clock is the function now. The clock must never return 0.
func NewManager(now func() time.Duration) *Manager {
	m := new(Manager)
	m.Gate.now, m.Gate.requested, m.Gate.MinTarget = now, make(chan struct{}, 1), minTarget
	m.Gate.mode.Store(probing)
	return m
}

func (m *Manager) IsActive(a Action) bool { return m.active.Load()&(1<<a) != 0 }

// AdmitConn reports whether a new connection from source may be accepted under the current load. While the action
// RefuseConns is active because event loops lag, AdmitConn admits one in lagConnDivisor connections. These are shared
// fairly among sources. While RefuseConns is active because memory is short, AdmitConn admits no connection.
func (m *Manager) AdmitConn(source netip.Addr) bool {
	if !m.IsActive(RefuseConns) {
		return true
	}
	admitted, _ := m.connShares.countAndAdmitByChance(source, m.connProbability.Load())
	return admitted
}

// AdmitProxy reports whether to accept a connection from a proxy, before the client's address is known. When the
// address is known, call AdmitConn, too.
func (m *Manager) AdmitProxy() bool { return !m.IsActive(RefuseConns) || m.connProbability.Load() > 0 }

// SetSourceWeights sets the weights of addresses by prefix. An address with weight n counts as n sources. The longest
// matching prefix applies. An address with weight 0 is not limited to a fair share. Call SetSourceWeights before all
// other methods.
func (m *Manager) SetSourceWeights(validWeights map[netip.Prefix]int) {
	m.shares.weights = newSourceWeights(validWeights)
	m.connShares.weights = m.shares.weights
}

// UnsentHighWater returns the number of unsent bytes above which the engine stops reading from a connection. Normally
// this number is max, which the caller has configured. Under overload, it may be lower.
func (m *Manager) UnsentHighWater(max int) int {
	if n := m.highWater.Load(); n != 0 && n < int64(max) {
		return int(n)
	}
	return max
}

// TotalBufferLimit returns the limit of the memory of all buffers, in bytes. Normally this limit is max, which the
// caller has configured. Under overload, it may be lower.
func (m *Manager) TotalBufferLimit(max int64) int64 {
	if n := m.bufferLimit.Load(); n != 0 {
		return min(n, max)
	}
	return max
}

// AcceptCheckInterval is the time between calls of PausesAccepts while accepting is paused.
const AcceptCheckInterval = 10 * time.Millisecond

// PausesAccepts reports whether new connections must wait in the kernel's queue.
func (m *Manager) PausesAccepts() bool {
	return m.active.Load()&(1<<PauseAccepts|1<<RefuseConns) == 1<<PauseAccepts
}

// Update turns actions on or off according to the sample s. It reports whether an action has begun or ended.
func (m *Manager) Update(now time.Duration, s *Sample) (changed bool) {
	before := m.active.Load()
	lag := s.Lag
	if s.CPUPressure >= 0 && s.CPUPressure < minCPUPressure {
		lag = 0
	}
	m.updateShedRatio(now, lag, s.Memory)
	for a := range NumActions {
		level, delay := m.signalLevel(a, now, lag, s)
		m.beginOrEndAction(a, now, level, delay)
	}
	m.updateOrEndConnShares(now, s.Memory)
	high, limit := int64(0), int64(0)
	if m.IsActive(PauseLargest) {
		high = max(s.MaxBuffered/2/max(s.NumConns, 1), minHighWater)
	}
	if m.IsActive(CloseSlowest) {
		limit = max(int64(s.Buffers*float64(s.MaxBuffered)*closeTo), s.MaxBuffered/minBufferShare)
		if before := m.bufferLimit.Load(); before != 0 {
			limit = min(limit, before)
		}
	}
	m.highWater.Store(high)
	m.bufferLimit.Store(limit)
	return m.active.Load() != before
}

func (m *Manager) updateOrEndConnShares(now time.Duration, memory float64) {
	if !m.IsActive(RefuseConns) {
		m.connShares.discardSketches()
		return
	}
	probability := uint32(0)
	if memory < memoryLevels[PauseAccepts]*endShare {
		probability = uint32(fullProbability / lagConnDivisor)
	}
	m.connProbability.Store(probability)
	m.connShares.updateIfDue(now, probability, false)
}

// signalLevel returns the level of the signal for action a. The action begins when the level has been at least 1 for
// the duration holdFor.
func (m *Manager) signalLevel(a Action, now, lag time.Duration, s *Sample) (level float64, holdFor time.Duration) {
	if l := memoryLevels[a]; l > 0 {
		level = s.Memory / l
	}
	switch a {
	case ShortenIdle:
		level = max(level, s.Conns/connsToShorten)
	case PauseLargest:
		level = max(level, s.Buffers/buffersToPause)
	case PauseAccepts:
		if byLag := float64(lag) / float64(lagToPause); byLag > level {
			level, holdFor = byLag, lagTime
		}
	case RefuseConns:
		if m.IsActive(PauseAccepts) && now-m.since[PauseAccepts] >= refuseAfter {
			level = 1
		}
	case ShedRequests:
		if m.IsShedding() {
			level = 1
		}
	}
	return level, holdFor
}

func (m *Manager) beginOrEndAction(a Action, now time.Duration, level float64, holdFor time.Duration) {
	bit := uint32(1) << a
	switch active := m.active.Load()&bit != 0; {
	case !active && level < 1:
		m.signalled[a] = false
	case !active:
		if !m.signalled[a] {
			m.signalled[a], m.since[a] = true, now
		}
		if now-m.since[a] >= holdFor {
			m.since[a], m.quietAt[a] = now, now
			m.active.Or(bit)
		}
	case level >= endShare:
		m.quietAt[a] = now
	case now-m.quietAt[a] >= endTime:
		m.signalled[a] = false
		m.active.And(^bit)
	}
}

// lagController computes the probability with which requests that run on event loops are shed. Its aim is to keep the
// lag near lagTarget. It starts to shed when the lag has exceeded lagToShed for the duration lagShedTime, because
// shorter lags are normal.
type lagController struct {
	ratio, lastError float64
	highSince        time.Duration // since when the lag has been high; 0 if it is not
	lastAt           time.Duration
}

const (
	lagTarget   = 100 * time.Millisecond
	lagToShed   = 250 * time.Millisecond
	lagShedTime = time.Second // how long lagToShed must be exceeded
	maxRatio    = 0.95
	// gainP and gainI are the proportional and the integral gain of the PID controller; its derivative gain is 0. The
	// error is the relative excess of the lag over lagTarget, from -1 to maxError.
	gainP, gainI = 0.1, 0.2
	maxError     = 2
)

func (c *lagController) nextShedRatio(now, lag time.Duration) (ratio float64) {
	elapsed := now - c.lastAt
	c.lastAt = now
	if lag < lagToShed {
		c.highSince = 0
	} else if c.highSince == 0 {
		c.highSince = now
	}
	if c.ratio == 0 && (c.highSince == 0 || now-c.highSince < lagShedTime) {
		c.lastError = 0
		return 0
	}
	e := min(float64(lag-lagTarget)/float64(lagTarget), maxError)
	c.ratio += gainP*(e-c.lastError) + gainI*e*min(elapsed.Seconds(), 1)
	c.ratio, c.lastError = min(max(c.ratio, 0), maxRatio), e
	return c.ratio
}

// updateShedRatio sets the probability with which requests that are not critical are shed. If memory is short, the
// probability is 1. Otherwise, it depends on the lag of event loops.
func (m *Manager) updateShedRatio(now, lag time.Duration, memory float64) {
	ratio, level := m.lag.nextShedRatio(now, lag), memoryLevels[ShedRequests]
	if m.lowMemory = memory >= level || m.lowMemory && memory >= endShare*level; m.lowMemory {
		m.setShedRatio(1, ByMemory)
	} else {
		m.setShedRatio(ratio, ByLoopLag)
	}
}
