package pool

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"time"
)

// kind is what jobs are like: the seconds of a core that they need, and after
// that the seconds that they wait.
type kind struct {
	cpu, wait float64
	dist      func(*rand.Rand) float64 // what both are multiplied by; nil: 1
	turns     bool                     // a job keeps its core to its end, and workers without a core have no job
	fluid     bool                     // too many jobs to simulate each
	hogs      float64                  // how many others compute all the time
	thrash    float64                  // what share of the cores each busy worker beyond their number costs
}

func exponential(r *rand.Rand) float64 { return r.ExpFloat64() }

// even is a uniform distribution from 0.5 to 1.5.
func even(r *rand.Rand) float64 { return 0.5 + r.Float64() }

// heavy is a Pareto distribution of mean 1, nearly, whose variance is very large.
func heavy(r *rand.Rand) float64 { return min(500, (0.5/1.5)/math.Pow(1-r.Float64(), 1/1.5)) }

// phase is work that is offered for some time.
type phase struct {
	kind
	until float64 // seconds
	rate  float64 // jobs a second, at random; 0: always more than can be run
	burst int     // how many jobs come at once; 0: one
}

func (p *phase) queues() bool { return p.rate > 0 }

// place is a job in a heap.
type place struct {
	at, began, wait float64
}

// places is a heap, the earliest first.
type places []place

func (p places) Len() int           { return len(p) }
func (p places) Less(i, j int) bool { return p[i].at < p[j].at }
func (p places) Swap(i, j int)      { p[i], p[j] = p[j], p[i] }
func (p *places) Push(x any)        { *p = append(*p, x.(place)) }
func (p *places) Pop() any {
	last := len(*p) - 1
	x := (*p)[last]
	*p = (*p)[:last]
	return x
}

func (p *places) push(x place) { heap.Push(p, x) }
func (p *places) pop() place   { return heap.Pop(p).(place) }

// model is a machine, and a pool on it with as many workers as there may be. It
// is simulated event by event: jobs that compute share the cores evenly.
type model struct {
	*rand.Rand
	cores  float64
	phases []phase
	noise  float64 // of the cores' speed

	now, done, arrival float64 // done is how long a job would have computed that has since the start
	slow, speed        float64
	limit              int
	workers, busy      int
	computing, waiting places
	queue              []float64 // when jobs came
	saw                reading
	most               int // workers there were at once
}

func newModel(seed uint64, cores int, phases ...phase) *model {
	return &model{Rand: rand.New(rand.NewPCG(seed, 5)), cores: float64(cores), noise: 0.2, phases: phases, slow: 1, speed: 1}
}

func (m *model) phase() *phase {
	for i := range m.phases {
		if m.now < m.phases[i].until {
			return &m.phases[i]
		}
	}
	return &m.phases[len(m.phases)-1]
}

// pace is how fast each job computes now.
func (m *model) pace() float64 {
	n := float64(len(m.computing)) + m.phase().hogs
	cores := m.cores * m.speed / (1 + m.phase().thrash*max(0, float64(m.busy)-m.cores))
	return min(m.speed, cores/n)
}

// fill gives jobs to workers.
func (m *model) fill() {
	for {
		p := m.phase()
		if p.fluid || m.busy >= m.limit || p.queues() && len(m.queue) == 0 || p.turns && m.busy >= int(m.cores) {
			break
		}
		if p.queues() {
			m.queue = m.queue[1:]
		}
		f := 1.0
		if p.dist != nil {
			f = p.dist(m.Rand)
		}
		m.busy++
		m.computing.push(place{m.done + p.cpu*f, m.now, p.wait * f})
	}
	m.workers = max(min(m.workers, m.limit), m.busy)
	if len(m.queue) > 0 || !m.phase().queues() {
		m.workers = max(m.workers, m.limit)
	}
	m.most = max(m.most, m.workers)
}

func (m *model) end(began float64) {
	m.busy--
	m.saw.finished++
	m.saw.timed++
	m.saw.service += time.Duration((m.now - began) * 1e9)
}

// run runs until a time, and reads what the pool sees.
func (m *model) run(until float64) reading {
	if m.noise > 0 { // some of it changes at once, some slowly
		m.slow += 0.05 * (1 + m.noise/2*m.NormFloat64()*4 - m.slow)
		m.speed = max(0.2, m.slow+m.noise/2*(2*m.Float64()-1))
	}
	p := m.phase()
	if p.rate > 0 && (m.arrival <= m.now || math.IsInf(m.arrival, 1)) {
		m.arrival = m.now + m.ExpFloat64()/p.rate
	} else if p.rate == 0 {
		m.arrival, m.queue = math.Inf(1), m.queue[:0]
	}
	if p.fluid {
		m.saw.finished += uint64(min(float64(m.limit), m.cores) * m.speed * (until - m.now) / p.cpu)
		m.now = until
	}
	for m.fill(); m.now < until; m.fill() {
		next, pace := until, 0.0
		if len(m.computing) > 0 {
			pace = m.pace()
			next = min(next, m.now+max(0, m.computing[0].at-m.done)/pace)
		}
		if len(m.waiting) > 0 {
			next = min(next, m.waiting[0].at)
		}
		next = min(next, m.arrival)
		m.done += (next - m.now) * pace
		m.saw.cpu += time.Duration((next - m.now) * min(m.cores, float64(len(m.computing))) * 1e9)
		m.now = next
		for len(m.computing) > 0 && m.computing[0].at <= m.done+1e-12 {
			j := m.computing.pop()
			if j.wait == 0 {
				m.end(j.began)
				continue
			}
			j.at = m.now + j.wait
			m.waiting.push(j)
		}
		for len(m.waiting) > 0 && m.waiting[0].at <= m.now {
			m.end(m.waiting.pop().began)
		}
		if m.now >= m.arrival {
			m.arrival = m.now + m.ExpFloat64()/p.rate
			for range max(1, p.burst) {
				m.queue = append(m.queue, m.now)
			}
		}
	}
	m.saw.at = time.Duration(m.now * 1e9)
	m.saw.workers, m.saw.busy, m.saw.waits = m.workers, m.busy, 0
	if !p.queues() {
		m.saw.waits = time.Duration(min(m.now, 0.1) * 1e9)
	} else if len(m.queue) > 0 {
		m.saw.waits = time.Duration((m.now - m.queue[0]) * 1e9)
	}
	ready := float64(len(m.computing)) + p.hogs
	if p.turns || p.fluid {
		ready = float64(m.limit)
	}
	m.saw.procs, m.saw.backlog = int(m.cores), max(0, ready-m.cores)/m.cores
	return m.saw
}
