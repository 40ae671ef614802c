package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/faults"
)

// SoakOptions say how to soak a server. The zero value of each field but Models is
// a good default.
type SoakOptions struct {
	// Models are the I/O models to serve under, one after the other.
	Models []string
	// Duration is how long each is attacked, from 4 s to 24 h. Default 10
	// min.
	Duration time.Duration
	// Every is the time between two lines of the report. Default 1 min, or a
	// quarter of Duration if that is less.
	Every time.Duration
	// Honest is how many honest clients there are, at most 10,000. Default
	// 100.
	Honest int
	// Out is told what happens, a line each time. Default: nobody.
	Out io.Writer
	// Self is the executable that has the subcommand "serve"; "" is the
	// running one.
	Self string
}

const (
	minSoak      = 4 * time.Second
	maxHonest    = 10_000
	soakSamples  = 100 // of memory and descriptors, in the whole time
	soakPatience = 10 * time.Second
)

// filled is the options with their defaults, or a ScenarioError.
func (o SoakOptions) filled() (SoakOptions, error) {
	if o.Duration == 0 {
		o.Duration = 10 * time.Minute
	}
	if o.Every == 0 {
		o.Every = min(time.Minute, o.Duration/4)
	}
	if o.Honest == 0 {
		o.Honest = 100
	}
	if o.Out == nil {
		o.Out = io.Discard
	}
	switch {
	case len(o.Models) == 0:
		return o, wrong("no I/O model; expected at least one")
	case o.Duration < minSoak || o.Duration > maxDuration:
		return o, wrong("a duration of %v; expected %v to %v", o.Duration, minSoak, maxDuration)
	case o.Every < minSoak/4 || o.Every > o.Duration:
		return o, wrong("a line every %v; expected %v to %v, the duration", o.Every, minSoak/4, o.Duration)
	case o.Honest < 1 || o.Honest > maxHonest:
		return o, wrong("%d honest clients; expected 1 to %d", o.Honest, maxHonest)
	}
	return o, nil
}

// Soak serves lines under each model, has every attacker of package faults at it
// at the same time, with honest clients among them, and looks for what grows. It
// returns nil when nothing was wrong under any model, a ScenarioError for options
// that make no sense, and otherwise an error that names each verdict.
//
// The server is a process of its own. The clients live in this one, and are not
// pinned: the figures tell whether honest clients are served, not how fast.
func Soak(ctx context.Context, o SoakOptions) error {
	o, err := o.filled()
	if err != nil {
		return err
	}
	self, err := (&Options{Self: o.Self}).self()
	if err != nil {
		return err
	}
	if err := raiseFileLimit(); err != nil {
		fmt.Fprintf(o.Out, "The limit of open descriptors could not be raised: %v.\n", err)
	}
	r := &runner{self: self, launcher: newLauncher()}
	defer r.launcher.close()
	var verdicts []error
	for _, model := range o.Models {
		s := &soak{SoakOptions: o, runner: r, model: model}
		if err := s.run(ctx); err != nil {
			verdicts = append(verdicts, fmt.Errorf("%s: %w", model, err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(verdicts...)
}

// soak is the time of one model. It belongs to Soak's goroutine.
type soak struct {
	SoakOptions
	runner *runner
	model  string

	server *server
	stats  StatsSource
	honest *faults.Honest
	swarms []*faults.Swarm
	watch  soakWatch
}

// run soaks the server and judges it.
func (s *soak) run(ctx context.Context) error {
	addr, err := freeAddr()
	if err != nil {
		return err
	}
	admin, err := freeAddr()
	if err != nil {
		return err
	}
	command := append([]string{s.runner.self}, soakCommand(s.model, addr, admin)...)
	if s.server, err = s.runner.startServer(ctx, command, addr, nil); err != nil {
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
	s.stats = MetricsSource{Addr: admin}
	s.honest = &faults.Honest{Addr: addr, Conns: s.Honest, Think: 10 * time.Millisecond, Redial: true, Patience: soakPatience}
	if err := s.honest.Start(); err != nil {
		return err
	}
	defer s.honest.Stop()
	target, err := netip.ParseAddrPort(addr)
	if err != nil {
		return err
	}
	defer s.retreat()
	if err := s.attack(target); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "%s: %v, %d honest clients, %s\n", s.model, s.Duration, s.Honest, describeAttacks())
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
	sample := time.NewTicker(max(s.Duration/soakSamples, 100*time.Millisecond))
	defer sample.Stop()
	report := time.NewTicker(s.Every)
	defer report.Stop()
	over := time.NewTimer(s.Duration)
	defer over.Stop()
	s.watch.begin(begin, s.Duration)
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
			if at.Sub(begin) < s.Duration-s.Every/2 { // the last one comes with the end
				s.report(ctx, at)
			}
		}
	}
}

// report writes a line.
func (s *soak) report(ctx context.Context, at time.Time) {
	latency := s.honest.Latency()
	now := s.honest.Report()
	rate := s.watch.rate(now.Answers, at)
	causes, err := s.stats.Causes(ctx)
	text := "unknown: " + fmt.Sprint(err)
	if err == nil {
		text = s.watch.grown(causes)
	}
	f := s.watch.last
	fmt.Fprintf(s.Out, "  %6s  honest %s/s, p99 %v, errors %d; %.1f MB, %d descriptors; ended: %s\n",
		at.Sub(s.watch.from).Round(time.Second), thousands(rate), time.Duration(latency.ValueAtQuantile(99))*time.Microsecond,
		now.Wrong+now.Lost+now.Failed, float64(f.RSS)/1e6, f.Descriptors, text)
}

// judge waits until the attackers' connections are gone, and says what was wrong.
func (s *soak) judge(ctx context.Context) error {
	left, err := s.settle(ctx)
	if err != nil {
		return err
	}
	seen := s.honest.Stop()
	v := s.watch.verdict()
	if left > s.watch.spare(s.Honest) {
		v = append(v, fmt.Sprintf("%d sockets were open %v after the attack, with %d honest clients", left, soakPatience, s.Honest))
	}
	if seen.First != nil || seen.Wrong+seen.Lost+seen.Failed > 0 {
		v = append(v, fmt.Sprintf("honest clients: %d wrong answers, %d lost, %d failed; first: %v", seen.Wrong, seen.Lost, seen.Failed, seen.First))
	}
	if seen.Answers == 0 {
		v = append(v, "honest clients got no answer")
	}
	fmt.Fprintf(s.Out, "  %s; honest clients got %s answers, %d errors\n", &s.watch, thousands(float64(seen.Answers)), seen.Wrong+seen.Lost+seen.Failed)
	s.server.process.end()
	if err := s.server.process.err; err != nil {
		v = append(v, s.server.process.failure("the server").Error())
	}
	if len(v) == 0 {
		fmt.Fprintf(s.Out, "  %s: sound\n", s.model)
		return nil
	}
	return verdictOf(v)
}

// settle waits until the attackers' sockets are gone, for a while, and says how
// many sockets there are.
func (s *soak) settle(ctx context.Context) (sockets int, err error) {
	for end := time.Now().Add(soakPatience); ; {
		f, err := faults.ReadFootprint(s.server.process.pid())
		if err != nil {
			return 0, err
		}
		if f.Sockets <= s.watch.spare(s.Honest) || time.Now().After(end) {
			return f.Sockets, nil
		}
		if err := pause(ctx, poll); err != nil {
			return 0, err
		}
	}
}

// soakCommand serves lines with short time limits and small bounds, so that all of
// them are reached.
func soakCommand(model, addr, admin string) []string {
	return []string{
		"serve", "--addr", addr, "--app", Lines, "--model", model, "--admin", admin,
		"--first-byte-timeout", "2s", "--message-timeout", "3s", "--idle-timeout", "4s", "--write-timeout", "3s",
		"--max-message", "32768", "--max-unsent", "65536", "--drain", "3s",
	}
}
