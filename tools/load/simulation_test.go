package load

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/stall"
)

// simulation is a run without an engine, a network or real time: a server with known latency, which starts with the
// run, and a clock that stands still during computation. It requires a synctest bubble.
type simulation struct {
	*loadRun
	server  stall.StallPlan
	free    time.Duration // when the server's last service ends, since the run's start
	conns   map[engine.Ref]*engine.Conn
	answers []answer        // in order
	sent    []time.Duration // when the server got each message
	mail    time.Duration   // how long a nudge takes
}

// answer is an answer in transit, or without a text a nudge.
type answer struct {
	at   time.Duration
	turn int // of service
	to   *engine.Conn
	text []byte
}

func (s *simulation) addAnswer(a answer) {
	i, _ := slices.BinarySearchFunc(s.answers, a, func(a, b answer) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.turn, b.turn))
	})
	s.answers = slices.Insert(s.answers, i, a)
}

// simulate runs a load on a server, and waits for all answers.
func simulate(cfg Config, server stall.StallPlan, mail time.Duration) (*simulation, *Result) {
	s := &simulation{loadRun: newFakeRun(cfg, &fakeEngine{}), server: server, mail: mail}
	defer s.progressTicker.Stop()
	s.startConns(planLead)
	s.processEvents(func() bool { return s.generator.windowLeft() <= 0 })
	s.window = cfg.Duration
	s.generator.endMeasuringWindowAndPlan()
	s.processEvents(func() bool {
		sum := s.sumTotals()
		return (sum.messagesInFlight() == 0 || s.script().awaitsNoAnswer) && !(s.generator.isOpenLoop() && s.generator.hasUntakenMessagePlannedInWindow())
	})
	s.stopPlanAndSkipUnsent()
	return s, s.buildResult(s.sumTotals())
}

func (s *simulation) startConns(lead time.Duration) {
	s.conns = map[engine.Ref]*engine.Conn{}
	for range s.cfg.Connections {
		c := newOpenConn(s.generator)
		s.conns[c.Ref()] = c
	}
	s.scheduleWarmupWindowAndPlan(lead)
	s.generator.trafficStarted.Store(true)
	for _, c := range s.conns {
		s.nudgeConn(c)
	}
}

// processEvents advances from event to event until done.
func (s *simulation) processEvents(done func() bool) {
	for !done() {
		next := s.generator.nudgeDueConnsOfLoop(0, engine.MonotonicNow(), func(r engine.Ref) bool {
			if s.mail == 0 {
				s.nudgeConn(s.conns[r])
			} else {
				s.addAnswer(answer{at: s.generator.now() + s.mail, to: s.conns[r]})
			}
			return true
		}) - s.generator.epoch
		if len(s.answers) > 0 {
			next = min(next, s.answers[0].at)
		}
		time.Sleep(next - s.generator.now())
		for len(s.answers) > 0 && s.answers[0].at <= s.generator.now() {
			a := s.answers[0]
			s.answers = s.answers[1:]
			if a.text == nil {
				s.nudgeConn(a.to)
				continue
			}
			a.to.OnRead(a.text)
			s.serveOutput(a.to)
		}
	}
}

func (s *simulation) nudgeConn(c *engine.Conn) {
	c.CallNudgedIfOpen()
	s.serveOutput(c)
}

func (s *simulation) serveOutput(c *engine.Conn) {
	now := s.generator.now()
	for c.UnsentAndDroppedBytes() > 0 {
		text := slices.Clone(c.Output()[:s.script().fixedSize])
		c.OnSent(len(text))
		s.free = s.server.EndOfServiceFrom(max(now, s.free))
		s.sent = append(s.sent, now)
		s.addAnswer(answer{s.free, len(s.sent), c, text})
	}
}

// computePlannedTimes returns the times of an open loop's plan, computed independently; those of a
// constant rate are computed directly.
func computePlannedTimes(cfg Config, begin time.Duration) (all []time.Duration) {
	rate := cfg.Rate
	plan := func(gap func(k uint64) float64, x float64) {
		for k := uint64(1); x/rate.PerSecond < cfg.Duration.Seconds(); k++ {
			all = append(all, begin+time.Duration(x/rate.PerSecond*float64(time.Second)))
			x += gap(k)
		}
	}
	even := func(uint64) float64 { return 1 }
	random := func(seed uint64) func(uint64) float64 {
		return func(k uint64) float64 { return -math.Log(float64(pacer.RandomAt(seed, k)>>11+1) / (1 << 53)) }
	}
	switch {
	case !rate.Each && !rate.Poisson:
		plan(even, 0)
	case !rate.Each:
		gaps := random(deriveSeed(cfg.Seed, seedPlan))
		plan(gaps, gaps(0))
	default:
		for n := range uint64(cfg.Connections) {
			if gaps := random(deriveSeed(cfg.Seed, n)); rate.Poisson {
				plan(gaps, gaps(0))
			} else {
				turn := 0.6180339887498949 * float64(n)
				plan(even, turn-float64(int(turn)))
			}
		}
	}
	slices.Sort(all)
	return all
}

// summarizeLatencies returns what a correct generator reports.
func summarizeLatencies(took []time.Duration) (*distribution, Latency) {
	d := &distribution{}
	for _, t := range took {
		d.record(t, 1)
	}
	return d, summarizeDistribution(d)
}

// The simulated server: it serves 2,000 messages a second for four fifths of the time.
var (
	halting  = stall.StallPlan{Capacity: 2000, Stall: 200 * time.Millisecond, Every: time.Second}
	capacity = halting.Capacity * 0.8
)

// TestTruth checks that the report on a server with known latency is exact: every percentile of an open loop is that of
// messages that arrive at their planned times, regardless of the number of connections.
func TestTruth(t *testing.T) {
	t.Parallel()
	for _, share := range []float64{0.5, 0.9, 1.1} {
		for name, cfg := range map[string]Config{
			"all, constant":     {Connections: 2000},
			"all, Poisson":      {Connections: 2000, Rate: Rate{Poisson: true}},
			"all, pipeline":     {Connections: 20, Pipeline: 100},
			"all, one, Poisson": {Connections: 1, Rate: Rate{Poisson: true}},
			"each, constant":    {Connections: 40, Pipeline: 1024, Rate: Rate{Each: true}},
			"each, Poisson":     {Connections: 40, Pipeline: 1024, Rate: Rate{Each: true, Poisson: true}},
		} {
			t.Run(fmt.Sprintf("%s, %.0f%%", name, 100*share), func(t *testing.T) {
				t.Parallel()
				cfg := cfg
				cfg.Size, cfg.Seed, cfg.Duration = 2, 7, 5*time.Second
				setIfZero(&cfg.Pipeline, 1)
				cfg.Rate.PerSecond = share * capacity
				if cfg.Rate.Each {
					cfg.Rate.PerSecond /= float64(cfg.Connections)
				}
				synctest.Test(t, func(t *testing.T) { checkLatencyTruth(t, cfg) })
			})
		}
	}
}

func checkLatencyTruth(t *testing.T, cfg Config) {
	s, got := simulate(cfg, halting, 0)
	intended := computePlannedTimes(cfg, time.Duration(s.generator.trafficStart.Load()))
	h, want := summarizeLatencies(halting.PredictLatencies(intended))
	if got.Latency != want {
		t.Errorf("reported %+v\nthe truth is %+v", got.Latency, want)
	}
	if got.Histogram != encodeHistogram(h.histogram) {
		t.Error("the histogram is not that of the truth")
	}
	if n := int64(len(intended)); got.Intended != n || got.Latency.Count != n || got.Unsent != 0 || got.Unanswered != 0 {
		t.Errorf("%d planned, %d measured, %d not sent, %d not answered; want %d, all measured", got.Intended, got.Latency.Count, got.Unsent, got.Unanswered, n)
	}
	if got.Late.Max > time.Nanosecond {
		t.Errorf("sent late by up to %v, and the clock stands still", got.Late.Max)
	}
	if ago := time.Since(s.buildPlanWithFirstUsageSample().Start); ago != s.generator.now() {
		t.Errorf("the plan says that the run began %v ago, want %v", ago, s.generator.now())
	}
	// With capacity for all messages, each is sent at its planned time.
	if room := cfg.Connections * cfg.Pipeline; room >= 2000 && !slices.Equal(s.sent, intended) {
		t.Error("not sent at the intended times")
	}
}

// TestTruthClosed checks that a closed loop reports service times, of which one is in flight all the time.
func TestTruthClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, closed := simulate(Config{Connections: 1, Pipeline: 1, Size: 2, Duration: 5 * time.Second}, halting, 0)
		_, one := summarizeLatencies([]time.Duration{halting.TimePerLine()})
		if closed.Corrected || closed.Service != nil || closed.Latency.P99 != one.P50 || !isNear(closed.InFlight(), 1, 0.01) {
			t.Errorf("99%% are up to %v, %v in flight on average; want %v and 1", closed.Latency.P99, closed.InFlight(), one.P50)
		}
	})
}

// TestLate delays nudges: the report attributes the delay to the generator. Without answers,
// messages are still sent at their planned times.
func TestLate(t *testing.T) {
	const mail = 3 * time.Millisecond
	for _, each := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			rate := Rate{PerSecond: 100, Each: each}
			cfg := Config{Connections: 1, Pipeline: 1024, Size: 2, Duration: time.Second, Rate: rate}
			_, r := simulate(cfg, stall.StallPlan{}, mail)
			if _, want := summarizeLatencies([]time.Duration{mail}); r.Late.Count != 100 || r.Late.P50 != want.P50 || r.Latency.P50 != want.P50 || r.Service.Max != 0 {
				t.Errorf("each %v: sent %v late it says %+v, latency %+v, service %+v", each, mail, *r.Late, r.Latency, *r.Service)
			}
			cfg = Config{Connections: 3, Pipeline: 1, Size: 2, Match: matchNone, Duration: time.Second, Rate: rate}
			s, r := simulate(cfg, stall.StallPlan{}, 0)
			intended := computePlannedTimes(cfg, time.Duration(s.generator.trafficStart.Load()))
			if !slices.Equal(s.sent, intended) || r.Sent != int64(len(intended)) || r.Unsent != 0 || r.Intended != r.Sent {
				t.Errorf("each %v: %d messages sent of %d, want %d, as planned", each, r.Sent, r.Intended, len(intended))
			}
		})
	}
}

// answerThenReset answers some lines on a connection, half of the next one, and resets it.
func answerThenReset(c net.Conn, n int) {
	serveLines(func(c net.Conn, line string, _, k int) error {
		if k < n%40 {
			return writeText(c, line)
		}
		return errors.Join(writeText(c, line[:len(line)/2]), c.(*net.TCPConn).SetLinger(0), io.EOF)
	})(c, n)
}

func answerThenLie(c net.Conn, n int) {
	serveLines(func(c net.Conn, line string, _, k int) error { return writeText(c, line[min(k/4, 1):]) })(c, n)
}

// TestAccounts ends connections in every way during every kind of traffic: runUntil accounts for
// every byte, and in open loops for every planned message.
func TestAccounts(t *testing.T) {
	t.Parallel()
	testEachModel(t, func(t *testing.T, model string) {
		for i, server := range []handler{echo, discardInput, answerThenReset, answerThenLie} {
			for k, cfg := range []Config{
				{}, {Think: 3 * time.Millisecond}, {Rate: Rate{PerSecond: 8000}},
				{Rate: Rate{PerSecond: 500, Each: true}}, {Rate: Rate{PerSecond: 500, Each: true, Poisson: true}},
			} {
				cfg.Target, cfg.Model, cfg.Loops, cfg.Connections, cfg.Pipeline = startTestServer(t, server).addr(), model, 2, 16, 4
				cfg.Duration, cfg.Drain, cfg.ProgressEvery = 40*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
				if (i+k)%2 == 0 {
					cfg.Lifetime, cfg.Graceful = 20*time.Millisecond, (i+k)%4 == 0
				}
				if k%2 == 1 {
					cfg.Message = "\\{number 0-9223372036854775807}\n"
				}
				runToEnd(t, cfg)
			}
		}
	})
}
