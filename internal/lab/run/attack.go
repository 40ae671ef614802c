package run

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/faults"
	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/scenario"
	"github.com/myriad-go/myriad/internal/lab/stats"
)

// attacks are the attackers, all at the same time. Their connections are made again when the
// server has ended them.
var attacks = []struct {
	name  string
	conns int
	make  func(target netip.AddrPort, conns int) *faults.Swarm
}{
	{"slowloris", 50, func(t netip.AddrPort, n int) *faults.Swarm { return faults.Slowloris(t, n, 500*time.Millisecond) }},
	{"never read", 5, func(t netip.AddrPort, n int) *faults.Swarm {
		// As much as fills the kernel's buffers, some 4 MiB, within seconds.
		return faults.NeverRead(t, n, []byte(strings.Repeat(strings.Repeat("r", 99)+"\n", 640)), 50*time.Millisecond)
	}},
	{"silent", 50, func(t netip.AddrPort, n int) *faults.Swarm { return faults.HalfOpen(t, n, nil) }},
	{"half a line", 50, func(t netip.AddrPort, n int) *faults.Swarm { return faults.HalfOpen(t, n, []byte("half")) }},
	{"idle", 50, func(t netip.AddrPort, n int) *faults.Swarm { return faults.HalfOpen(t, n, []byte("hello\n")) }},
	{"reset at once", 100, func(t netip.AddrPort, n int) *faults.Swarm { return faults.ResetStorm(t, n, 0, nil) }},
	{"reset in a line", 100, func(t netip.AddrPort, n int) *faults.Swarm { return faults.ResetStorm(t, n, 0, []byte("hello\n")) }},
	{"garbage", 20, func(t netip.AddrPort, n int) *faults.Swarm { return faults.Garbage(t, n, 1, 100*time.Millisecond) }},
	{"long lines", 20, func(t netip.AddrPort, n int) *faults.Swarm { return faults.LongLines(t, n, 'x', 200*time.Millisecond) }},
}

const (
	attackSamples  = 100 // of memory and descriptors, in the whole time
	attackPatience = 10 * time.Second
	// What a server may have grown by from the first quarter of its time to the last: a
	// part of what it had, and something beside, for a heap that breathes.
	memoryGrowth, memorySlack         = 0.20, 16 << 20
	descriptorGrowth, descriptorSlack = 0.10, 50
	fewestSamples                     = 3 // in a quarter
	// spareSockets is how many sockets a server may have beside those of honest clients:
	// listeners, eventfds and the connection to its admin address.
	spareSockets = 20
)

// attackRun is the time of one server under attack. It belongs to the run's goroutine; the
// swarms and the honest clients have goroutines of their own, which Stop waits for.
type attackRun struct {
	*measurement
	phase    scenario.Phase
	honest   *faults.Honest
	swarms   []*faults.Swarm
	from     time.Time
	quarters [4]struct{ memory, descriptors []float64 }
	last     faults.Footprint
	reported time.Time
	answers  int64 // that were reported
	causes   map[string]float64
	p99      time.Duration
}

// attack has every attacker at the server at the same time, with honest clients among them,
// and looks for what grows.
func (m *measurement) attack(ctx context.Context, p scenario.Phase) error {
	a := &attackRun{measurement: m, phase: p}
	a.honest = &faults.Honest{Addr: m.server.addr, Conns: p.Honest, Think: 10 * time.Millisecond, Redial: true, Patience: attackPatience}
	if err := a.honest.Start(); err != nil {
		return err
	}
	defer a.honest.Stop()
	target, err := netip.ParseAddrPort(m.server.addr)
	if err != nil {
		return err
	}
	defer a.retreat()
	var words []string
	for _, x := range attacks {
		swarm := x.make(target, x.conns)
		swarm.Redial = true
		if err := swarm.Start(); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		a.swarms = append(a.swarms, swarm)
		words = append(words, fmt.Sprintf("%d × %s", x.conns, x.name))
	}
	a.say("%v, %d honest clients, attackers: %s", p.For, p.Honest, strings.Join(words, ", "))
	if err := a.observe(ctx); err != nil {
		return err
	}
	a.retreat()
	return a.judge(ctx)
}

func (a *attackRun) retreat() {
	for _, s := range a.swarms {
		s.Stop()
	}
}

// say keeps a line, and tells of it.
func (a *attackRun) say(text string, args ...any) {
	a.record.Logf(text, args...)
	a.tell(true, text, args...)
}

// observe samples until the time is over, and reports now and then.
func (a *attackRun) observe(ctx context.Context) error {
	whole := a.phase.For.Std()
	a.from = time.Now()
	a.reported = a.from
	sample := time.NewTicker(max(whole/attackSamples, 100*time.Millisecond))
	defer sample.Stop()
	report := time.NewTicker(a.phase.Every.Std())
	defer report.Stop()
	over := time.NewTimer(whole)
	defer over.Stop()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-over.C:
			a.report(ctx)
			return nil
		case at := <-sample.C:
			f, err := faults.ReadFootprint(a.server.pid())
			if err != nil {
				return fmt.Errorf("sample the server: %w", err)
			}
			a.last = f
			q := &a.quarters[min(max(int(4*at.Sub(a.from)/whole), 0), 3)]
			q.memory = append(q.memory, float64(f.RSS))
			q.descriptors = append(q.descriptors, float64(f.Descriptors))
		case at := <-report.C:
			if at.Sub(a.from) < whole-a.phase.Every.Std()/2 { // the last one comes with the end
				a.report(ctx)
			}
		}
	}
}

// report writes a line.
func (a *attackRun) report(ctx context.Context) {
	at := time.Now()
	p99 := time.Duration(a.honest.Latency().ValueAtQuantile(99)) * time.Microsecond
	a.p99 = max(a.p99, p99)
	now := a.honest.Report()
	rate := float64(now.Answers-a.answers) / max(at.Sub(a.reported), time.Millisecond).Seconds()
	a.answers, a.reported = now.Answers, at
	a.say("%6s  honest %s/s, p99 %v, errors %d; %.1f MB, %d descriptors; ended: %s",
		at.Sub(a.from).Round(time.Second), format.Whole(rate), p99,
		now.Wrong+now.Lost+now.Failed, float64(a.last.RSS)/1e6, a.last.Descriptors, a.ended(ctx))
}

// ended says why the server has turned connections away and closed them since the last line.
func (a *attackRun) ended(ctx context.Context) string {
	if a.admin == nil {
		return "not known, for want of {admin}"
	}
	now, err := a.admin.metrics(ctx)
	if err != nil {
		return "not known: " + err.Error()
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		cause, ok := strings.CutPrefix(name, "myriad_connections_closed_total{")
		if !ok {
			if cause, ok = strings.CutPrefix(name, "myriad_connections_refused_total{"); !ok {
				continue
			}
			cause = "refused " + cause
		}
		if more := now[name] - a.causes[name]; more > 0 {
			words = append(words, strings.TrimSuffix(cause, "}")+" "+format.Whole(more))
		}
	}
	a.causes = now
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// judge waits until the attackers' connections are gone, and says what was wrong.
func (a *attackRun) judge(ctx context.Context) error {
	var wrong []string
	most := a.phase.Honest + spareSockets
	for end := time.Now().Add(attackPatience); ; {
		f, err := faults.ReadFootprint(a.server.pid())
		if err != nil {
			return err
		}
		if f.Sockets <= most {
			break
		}
		if time.Now().After(end) {
			wrong = append(wrong, fmt.Sprintf("%d sockets were open %v after the attack, with %d honest clients", f.Sockets, attackPatience, a.phase.Honest))
			break
		}
		if err := pause(ctx, poll); err != nil {
			return err
		}
	}
	seen := a.honest.Stop()
	failed := seen.Wrong + seen.Lost + seen.Failed
	probe.SetAttack(a.record, seen.Answers, failed, a.p99)
	if seen.First != nil || failed > 0 {
		wrong = append(wrong, fmt.Sprintf("honest clients: %d wrong answers, %d lost, %d failed; first: %v", seen.Wrong, seen.Lost, seen.Failed, seen.First))
	}
	if seen.Answers == 0 {
		wrong = append(wrong, "honest clients got no answer")
	}
	wrong = append(wrong, a.grown()...)
	a.say("honest clients got %s answers, %d errors", format.Count(seen.Answers), failed)
	a.timeline.stop()
	a.timeline = nil
	a.server.end()
	if a.server.err != nil {
		wrong = append(wrong, a.server.failure("the server").Error())
	}
	if len(wrong) > 0 {
		return errors.New(strings.Join(wrong, "; "))
	}
	a.say("sound")
	return nil
}

// grown compares the first quarter with the last.
func (a *attackRun) grown() (wrong []string) {
	first, last := &a.quarters[0], &a.quarters[3]
	if n := min(len(first.memory), len(last.memory)); n < fewestSamples {
		return []string{fmt.Sprintf("only %d samples in the first or last quarter; expected at least %d", n, fewestSamples)}
	}
	was, _ := stats.Median(first.memory)
	is, _ := stats.Median(last.memory)
	fds, _ := stats.Median(first.descriptors)
	fdsNow, _ := stats.Median(last.descriptors)
	a.say("first to last quarter: %.1f to %.1f MB, %.0f to %.0f descriptors", was/1e6, is/1e6, fds, fdsNow)
	if is > was*(1+memoryGrowth)+memorySlack {
		wrong = append(wrong, fmt.Sprintf("memory has grown from %.1f to %.1f MB", was/1e6, is/1e6))
	}
	if fdsNow > fds*(1+descriptorGrowth)+descriptorSlack {
		wrong = append(wrong, fmt.Sprintf("descriptors have grown from %.0f to %.0f", fds, fdsNow))
	}
	return wrong
}
