package lab

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/faults"
)

// The workloads of kind Soaking have every attacker of package faults at a server at the
// same time, for Workload.Duration, from 4 s to 24 h, with honest clients among them, and
// look for what grows. The server echoes lines and has {admin} in its command. The clients
// live in the lab, and are not pinned: the figures tell whether honest clients are served,
// not how fast.

// SoakLoad says more of a workload of kind Soaking.
type SoakLoad struct {
	// Every is the time between two lines of the report, from 1 s to the duration.
	// Default 1 min, or a quarter of the duration if that is less.
	Every time.Duration `json:"every,omitempty" toml:"every"`
	// Honest is how many honest clients there are, at most 10,000. Default 100.
	Honest int `json:"honest,omitempty" toml:"honest"`
}

const (
	minSoak      = 4 * time.Second
	maxHonest    = 10_000
	soakSamples  = 100 // of memory and descriptors, in the whole time
	soakPatience = 10 * time.Second
)

var soakingRules = rules{
	check:    checkSoaking,
	estimate: func(w Workload) time.Duration { return w.Duration + time.Second },
	run: func(ctx context.Context, r *runner, s step, rec *RunRecord) error {
		load := s.workload.soak()
		rec.Soak = &SoakFigures{Lines: []string{}}
		return (&soak{runner: r, step: s, every: load.Every, clients: load.Honest, record: rec}).run(ctx)
	},
	judge: inRun,
	parts: soakingParts,
}

// soak is the part of a workload's settings that only kind Soaking has, with its defaults.
func (w Workload) soak() (load SoakLoad) {
	if w.Soak != nil {
		load = *w.Soak
	}
	if load.Every == 0 {
		load.Every = min(time.Minute, w.Duration/4)
	}
	if load.Honest == 0 {
		load.Honest = 100
	}
	return load
}

// checkSoaking is the check of a workload of kind Soaking.
func checkSoaking(w Workload) error {
	load := w.soak()
	switch {
	case w.Duration < minSoak || w.Duration > maxDuration:
		return wrong("workload %s: a duration of %v; expected %v to %v", w.Name, w.Duration, minSoak, maxDuration)
	case load.Every < minSoak/4 || load.Every > w.Duration:
		return wrong("workload %s: a line every %v; expected %v to %v, the duration", w.Name, load.Every, minSoak/4, w.Duration)
	case load.Honest < 1 || load.Honest > maxHonest:
		return wrong("workload %s: %d honest clients; expected 1 to %d", w.Name, load.Honest, maxHonest)
	}
	return nil
}

// soak is the time of one server. It belongs to the runner's goroutine.
type soak struct {
	*runner
	step
	every   time.Duration
	clients int
	record  *RunRecord

	server *server
	stats  StatsSource
	honest *faults.Honest
	swarms []*faults.Swarm
	watch  soakWatch
}

// say keeps a line, and tells of it.
func (s *soak) say(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	s.record.Soak.Lines = append(s.record.Soak.Lines, line)
	s.progress.tell(true, s.subject.Name+": "+line)
}

// run soaks the server and judges it.
func (s *soak) run(ctx context.Context) error {
	at, err := s.placeOf(s.step)
	if err != nil {
		return err
	}
	s.record.Command = s.subject.fill(at)
	if s.server, err = s.startServer(ctx, s.record.Command, at.addr, nil); err != nil {
		return err
	}
	defer s.server.process.end()
	ctx, stop := s.server.watch(ctx)
	defer stop()
	conn, err := s.server.awaitReady(ctx, Lines, nil)
	if err != nil {
		return err
	}
	conn.Close()
	s.stats = MetricsSource{Addr: at.admin}
	line := s.follow(s.record, s.server.process, at.admin, at.processes)
	defer line.stop()
	s.honest = &faults.Honest{Addr: at.addr, Conns: s.clients, Think: 10 * time.Millisecond, Redial: true, Patience: soakPatience}
	if err := s.honest.Start(); err != nil {
		return err
	}
	defer s.honest.Stop()
	target, err := netip.ParseAddrPort(at.addr)
	if err != nil {
		return err
	}
	defer s.retreat()
	if err := s.attack(target); err != nil {
		return err
	}
	s.say("%v, %d honest clients, %s", s.workload.Duration, s.clients, describeAttacks())
	if err := s.observe(ctx); err != nil {
		return err
	}
	s.retreat()
	return s.judge(ctx)
}

// attack starts all attackers.
func (s *soak) attack(target netip.AddrPort) error {
	for _, a := range soakAttacks {
		w := a.make(target)
		w.Redial = true
		if err := w.Start(); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		s.swarms = append(s.swarms, w)
	}
	return nil
}

// retreat ends all attackers.
func (s *soak) retreat() {
	for _, w := range s.swarms {
		w.Stop()
	}
}

// observe samples until the time is over, and reports now and then.
func (s *soak) observe(ctx context.Context) error {
	begin := time.Now()
	sample := time.NewTicker(max(s.workload.Duration/soakSamples, 100*time.Millisecond))
	defer sample.Stop()
	report := time.NewTicker(s.every)
	defer report.Stop()
	over := time.NewTimer(s.workload.Duration)
	defer over.Stop()
	s.watch.begin(begin, s.workload.Duration)
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case at := <-over.C:
			s.report(ctx, at)
			return nil
		case at := <-sample.C:
			f, err := faults.ReadFootprint(s.server.process.pid())
			if err != nil {
				return fmt.Errorf("sample the server: %w", err)
			}
			s.watch.sample(at, f)
		case at := <-report.C:
			if at.Sub(begin) < s.workload.Duration-s.every/2 { // the last one comes with the end
				s.report(ctx, at)
			}
		}
	}
}

// report writes a line.
func (s *soak) report(ctx context.Context, at time.Time) {
	latency := s.honest.Latency()
	p99 := time.Duration(latency.ValueAtQuantile(99)) * time.Microsecond
	s.record.Soak.P99 = max(s.record.Soak.P99, p99.Seconds())
	now := s.honest.Report()
	rate := s.watch.rate(now.Answers, at)
	causes, err := s.stats.Causes(ctx)
	text := "unknown: " + fmt.Sprint(err)
	if err == nil {
		text = s.watch.grown(causes)
	}
	f := s.watch.last
	s.say("%6s  honest %s/s, p99 %v, errors %d; %.1f MB, %d descriptors; ended: %s",
		at.Sub(s.watch.from).Round(time.Second), thousands(rate), p99,
		now.Wrong+now.Lost+now.Failed, float64(f.RSS)/1e6, f.Descriptors, text)
}

// judge waits until the attackers' connections are gone, and says what was wrong. That is an
// error, too.
func (s *soak) judge(ctx context.Context) error {
	left, err := s.settle(ctx)
	if err != nil {
		return err
	}
	f, seen := s.record.Soak, s.honest.Stop()
	f.Answers, f.Errors = seen.Answers, seen.Wrong+seen.Lost+seen.Failed
	v := s.watch.verdict()
	if left > s.watch.spare(s.clients) {
		v = append(v, fmt.Sprintf("%d sockets were open %v after the attack, with %d honest clients", left, soakPatience, s.clients))
	}
	if seen.First != nil || f.Errors > 0 {
		v = append(v, fmt.Sprintf("honest clients: %d wrong answers, %d lost, %d failed; first: %v", seen.Wrong, seen.Lost, seen.Failed, seen.First))
	}
	if seen.Answers == 0 {
		v = append(v, "honest clients got no answer")
	}
	s.say("%s; honest clients got %s answers, %d errors", &s.watch, thousands(float64(seen.Answers)), f.Errors)
	s.server.process.end()
	if err := s.server.process.err; err != nil {
		v = append(v, s.server.process.failure("the server").Error())
	}
	if f.Verdicts = v; len(v) > 0 {
		return verdictOf(v)
	}
	return nil
}

// settle waits until the attackers' sockets are gone, for a while, and says how
// many sockets there are.
func (s *soak) settle(ctx context.Context) (sockets int, err error) {
	for end := time.Now().Add(soakPatience); ; {
		f, err := faults.ReadFootprint(s.server.process.pid())
		if err != nil {
			return 0, err
		}
		if f.Sockets <= s.watch.spare(s.clients) || time.Now().After(end) {
			return f.Sockets, nil
		}
		if err := pause(ctx, poll); err != nil {
			return 0, err
		}
	}
}
