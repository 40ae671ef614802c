package overload

import (
	"container/heap"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// server is a model of a server in virtual time: workers that take requests from a queue in order of arrival.
type server struct {
	gate     *Gate
	now      time.Duration
	random   *rand.Rand
	service  time.Duration
	period   time.Duration // requests arrive at multiples of it, as if an event loop read them; 0 means at any time
	idle     int
	queue    []*request
	events   events
	number   int
	schedule int // number of the latest schedule of a tick

	shed     func(*request) // called for each request that is shed
	finished func(*request)
}

type request struct {
	Ticket
	source  netip.Addr
	arrived time.Duration
	ended   time.Duration
}

type event struct {
	at     time.Duration
	number int // order of events at the same time
	do     func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].number < e[j].number
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	x := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return x
}

func newServer(workers int, service time.Duration, seed uint64) *server {
	s := &server{now: 1, random: rand.New(rand.NewPCG(seed, 1)), service: service, idle: workers}
	m := NewManager(func() time.Duration { return s.now })
	s.gate = &m.Gate
	s.shed, s.finished = func(*request) {}, func(*request) {}
	s.after(0, func() { s.tick(1) })
	return s
}

// tick schedules the next tick. Only the latest schedule counts.
func (s *server) tick(schedule int) {
	if schedule != s.schedule+1 {
		return
	}
	select {
	case <-s.gate.Requested():
	default:
	}
	s.tickAfter(s.gate.Tick(s.now))
}

func (s *server) tickAfter(d time.Duration) {
	s.schedule++
	n := s.schedule + 1
	s.after(d, func() { s.tick(n) })
}

func (s *server) after(d time.Duration, do func()) {
	s.number++
	heap.Push(&s.events, event{s.now + d, s.number, do})
}

func (s *server) runUntil(end time.Duration) {
	for len(s.events) > 0 && s.events[0].at <= end {
		e := heap.Pop(&s.events).(event)
		s.now = e.at
		e.do()
	}
	s.now = end
}

func (s *server) arrive(r *request, p Priority) {
	r.arrived = s.now
	if !s.gate.Admit(&r.Ticket, r.source, p) {
		s.shed(r)
		return
	}
	select {
	case <-s.gate.Requested():
		s.tickAfter(BusyPeriod)
	default:
	}
	s.queue = append(s.queue, r)
	s.startQueued()
}

func (s *server) startQueued() {
	for s.idle > 0 && len(s.queue) > 0 {
		r := s.queue[0]
		s.queue = s.queue[1:]
		if !s.gate.Start(&r.Ticket) {
			s.shed(r)
			continue
		}
		s.idle--
		s.after(s.service*3/4+time.Duration(s.random.Int64N(int64(s.service)/2+1)), func() {
			s.gate.Done(&r.Ticket)
			s.idle++
			r.ended = s.now
			s.finished(r)
			s.startQueued()
		})
	}
}

// offer lets requests arrive at random times until end, whatever becomes of them.
func (s *server) offer(perSecond float64, end time.Duration) {
	var next func()
	next = func() {
		if s.now < end {
			wait := time.Duration(0)
			if s.period > 0 {
				wait = s.period - s.now%s.period
			}
			s.after(wait, func() { s.arrive(new(request), Normal) })
			s.after(time.Duration(s.random.ExpFloat64()*float64(time.Second)/perSecond), next)
		}
	}
	s.after(0, next)
}

type outcome struct {
	finished int
	p99      time.Duration
}

// record returns the requests that finish until end.
func (s *server) record(end time.Duration) outcome {
	var took []time.Duration
	s.finished = func(r *request) { took = append(took, r.ended-r.arrived) }
	s.runUntil(end)
	s.finished = func(*request) {}
	slices.Sort(took)
	return outcome{len(took), took[len(took)*99/100]}
}

var handlers = []struct {
	name    string
	workers int
	service time.Duration
	period  time.Duration
}{
	{"2 workers compute for 1 ms", 2, time.Millisecond, 0},
	{"2 workers compute for 1 ms, and requests arrive every 6 ms", 2, time.Millisecond, 6 * time.Millisecond},
	{"30 workers wait for 20 ms", 30, 20 * time.Millisecond, 0},
	{"8 workers compute for 5 ms", 8, 5 * time.Millisecond, 0},
}

func TestGateKeepsGoodputAndDelayUnderOverload(t *testing.T) {
	for _, h := range handlers {
		capacity := float64(h.workers) / h.service.Seconds()
		unloaded := newServer(h.workers, h.service, 1)
		unloaded.offer(capacity/10, 2*time.Second)
		base := unloaded.record(2 * time.Second)
		for _, times := range []float64{1.2, 2, 10} {
			s := newServer(h.workers, h.service, 2)
			s.period = h.period
			s.offer(times*capacity, 4*time.Second)
			s.runUntil(time.Second)
			got, limit := s.record(4*time.Second), 5*base.p99
			if times < 2 || h.period > 0 {
				limit = max(limit, 10*time.Millisecond) // workers would find the queue empty if it was shorter
			}
			if goodput := float64(got.finished) / 3; goodput < 0.95*capacity || got.p99 > limit {
				t.Errorf("%s, %v times the capacity: %.0f/s finish, p99 %v; expected at least %.0f/s, at most %v", h.name, times, goodput, got.p99, 0.95*capacity, limit)
			}
		}
	}
}

func TestGateRecovers(t *testing.T) {
	for _, h := range handlers {
		capacity := float64(h.workers) / h.service.Seconds()
		s := newServer(h.workers, h.service, 3)
		s.offer(10*capacity, 2*time.Second)
		s.runUntil(2*time.Second + 500*time.Millisecond)
		shed := 0
		s.shed = func(*request) { shed++ }
		s.offer(capacity/2, 10*time.Second)
		s.runUntil(10 * time.Second)
		if shed > 0 || s.gate.mode.Load()&^probing != 0 {
			t.Errorf("%s: %d requests were shed at half of the capacity, and the mode is %b; expected none", h.name, shed, s.gate.mode.Load())
		}
	}
}

func TestGateDoesNotOscillate(t *testing.T) {
	for _, h := range handlers {
		capacity := float64(h.workers) / h.service.Seconds()
		s := newServer(h.workers, h.service, 4)
		s.offer(1.4*capacity, 20*time.Second)
		s.runUntil(2 * time.Second)
		for s.now < 20*time.Second {
			got := s.record(s.now + 200*time.Millisecond)
			if share := float64(got.finished) / 0.2 / capacity; share < 0.8 {
				t.Errorf("%s: in 200 ms until %v, %.2f of the capacity finishes; expected 0.8", h.name, s.now, share)
			}
		}
	}
}

// TestGateShedsOnlyLongQueueOfClosedLoop has clients that wait for each answer. Their queue stands, but does not grow.
// Each of 5,000 clients waits for longer than maxDelay.
func TestGateShedsOnlyLongQueueOfClosedLoop(t *testing.T) {
	for clients, sheds := range map[int]bool{10: false, 64: false, 1000: false, 5000: true} {
		s := newServer(2, time.Millisecond, 5)
		s.finished = func(*request) { s.arrive(new(request), Normal) }
		for range clients {
			s.after(time.Duration(s.random.Int64N(int64(50*time.Millisecond))), func() { s.arrive(new(request), Normal) })
		}
		s.runUntil(5 * time.Second)
		if n := s.gate.Shed(ByQueueDelay); (n > 0) != sheds {
			t.Errorf("%d clients in a closed loop: %d requests were shed; expected some: %v", clients, n, sheds)
		}
	}
}

// TestGateIgnoresSlowDependency has enough workers, whose requests become 100 times slower.
func TestGateIgnoresSlowDependency(t *testing.T) {
	s := newServer(100_000, 10*time.Millisecond, 7)
	s.offer(2000, 20*time.Second)
	s.runUntil(5 * time.Second)
	s.service = time.Second
	s.runUntil(20 * time.Second)
	if n := s.gate.Shed(ByQueueDelay); n > 0 {
		t.Errorf("%d requests were shed because their dependency is slow; expected none", n)
	}
}

func TestGateAdmitsCriticalRequests(t *testing.T) {
	s := newServer(2, time.Millisecond, 8)
	s.offer(10_000, 10*time.Second)
	s.runUntil(2 * time.Second)
	var critical []*request
	for range 500 {
		s.runUntil(s.now + 10*time.Millisecond)
		critical = append(critical, new(request))
		s.arrive(critical[len(critical)-1], Critical)
	}
	s.runUntil(10 * time.Second)
	if n := len(slices.DeleteFunc(critical, func(r *request) bool { return r.ended > 0 })); n > 0 {
		t.Errorf("%d of 500 critical requests have not finished; expected 0", n)
	}
}

func TestGateCountsAbandonedRequests(t *testing.T) {
	s := newServer(0, time.Millisecond, 9)
	var r request
	s.runUntil(time.Millisecond) // the first tick
	if !s.gate.Admit(&r.Ticket, netip.Addr{}, Normal) || s.gate.waiting.Load() != 1 {
		t.Fatal("the first request is not measured")
	}
	s.gate.Abandon(&r.Ticket)
	s.gate.Abandon(&r.Ticket)
	if n := s.gate.waiting.Load(); n != 0 {
		t.Errorf("%d requests wait after they were abandoned; expected 0", n)
	}
}
