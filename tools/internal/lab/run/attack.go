package run

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/tools/internal/faults"
	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

type attacker struct {
	name  string
	conns int
	make  func(target netip.AddrPort, conns int) *faults.Swarm
}

// attackers lists the attacks. All of them run at the same time, unless Phase.Storm replaces them.
var attackers = []attacker{
	{"slowloris", 50, func(t netip.AddrPort, n int) *faults.Swarm { return faults.Slowloris(t, n, 500*time.Millisecond) }},
	{"never read", 5, func(t netip.AddrPort, n int) *faults.Swarm {
		// This input fills the kernel's buffers, about 4 MiB, within seconds.
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

// stormAttackers returns the attacker that replaces all others during a storm. This attacker opens and resets
// connections as fast as it can. If storm is StormHello, it also sends a TLS ClientHello on each connection.
func stormAttackers(storm string) []attacker {
	var first []byte
	if storm == scenario.StormHello {
		client, server := net.Pipe()
		go func() {
			_ = tls.Client(client, &tls.Config{InsecureSkipVerify: true}).Handshake() // ends with the pipe
		}()
		first = make([]byte, 4096)
		n, _ := server.Read(first) // the first record
		first = first[:n]
		server.Close()
	}
	return []attacker{{storm + " storm", 200, func(t netip.AddrPort, n int) *faults.Swarm {
		return &faults.Swarm{Target: t, Conns: n, Interval: time.Millisecond, First: first, MaxActs: 2, Redial: true}
	}}}
}

func acceptAndResetUntilError(l net.Listener) {
	for c, err := l.Accept(); err == nil; c, err = l.Accept() {
		_ = c.(*net.TCPConn).SetLinger(0) // fails only on a closed connection
		c.Close()
	}
}

const (
	attackSampleCount = 100 // samples of memory and descriptors in the whole phase
	attackTimeout     = 10 * time.Second
	// The server's memory and descriptors may grow during the attack by memoryGrowth and descriptorGrowth, relative to
	// the initial values, plus memorySlack bytes and descriptorSlack descriptors.
	memoryGrowth, memorySlack         = 0.20, 16 << 20
	descriptorGrowth, descriptorSlack = 0.10, 50
	minQuarterSamples                 = 3 // minimum number of samples per quarter
	// spareSockets is the number of sockets that the server may have open in addition to those of honest clients.
	spareSockets = 20
)

// attackRun is the state of a run's attack phase. Only the run's goroutine may use it.
type attackRun struct {
	*serverMeasurement
	phase           scenario.Phase
	honest          *faults.HonestClients
	start           time.Time
	samples         []faults.Footprint // in equal intervals
	lastReport      time.Time
	reportedAnswers int64              // number of answers at the last report
	endedByReason   map[string]float64 // number of closed connections by reason, at the last report
	p99             time.Duration      // maximum over all reports
}

// runAttackCheckAndStopServer attacks the server and then stops it. It returns an error if an honest client or the
// server failed, or if the server's resources have grown too much.
func (m *serverMeasurement) runAttackCheckAndStopServer(ctx context.Context, p scenario.Phase) error {
	target, err := netip.ParseAddrPort(m.server.addr)
	if err != nil {
		return err
	}
	a := &attackRun{serverMeasurement: m, phase: p}
	a.honest = &faults.HonestClients{Addr: m.server.addr, Conns: p.Honest, ThinkTime: 10 * time.Millisecond, Redial: true, Timeout: attackTimeout}
	var swarms []*faults.Swarm
	stopSwarms := func() {
		for _, s := range swarms {
			s.Stop()
		}
	}
	defer stopSwarms()
	var words []string
	all := attackers
	if p.Storm != "" {
		all = stormAttackers(p.Storm)
		a.honest.ThinkTime = time.Second
	}
	if p.Elsewhere {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		defer l.Close()
		go acceptAndResetUntilError(l)
		target = netip.MustParseAddrPort(l.Addr().String())
	}
	if m.step.Workload.TLS {
		a.honest.Dial = func() (net.Conn, error) { return tls.Dial("tcp", m.server.addr, &tls.Config{InsecureSkipVerify: true}) }
	}
	if err := a.honest.Start(); err != nil {
		return err
	}
	defer a.honest.Stop()
	for _, x := range all {
		swarm := x.make(target, x.conns)
		swarm.Redial = true
		if err := swarm.Start(); err != nil {
			return fmt.Errorf("%s: %w", x.name, err)
		}
		swarms = append(swarms, swarm)
		words = append(words, fmt.Sprintf("%d × %s", x.conns, x.name))
	}
	a.recordAndPrintf("%v, %d honest clients, attackers: %s", p.For, p.Honest, strings.Join(words, ", "))
	if err := a.sampleAndLogUntilAttackEnds(ctx); err != nil {
		return err
	}
	for i, s := range swarms {
		if n := s.Counts(); p.Storm != "" {
			a.recordAndPrintf("%s: %s connections a second", all[i].name, format.Whole(float64(n.Connected)/p.For.Std().Seconds()))
		}
	}
	stopSwarms()
	return a.awaitClosesCheckAndStopServer(ctx)
}

func (a *attackRun) recordAndPrintf(text string, args ...any) {
	a.record.Logf(text, args...)
	a.printSubjectProgress(true, text, args...)
}

func (a *attackRun) sampleAndLogUntilAttackEnds(ctx context.Context) error {
	whole := a.phase.For.Std()
	ctx, cancel := context.WithTimeoutCause(ctx, whole, errAttackOver)
	defer cancel()
	a.start = time.Now()
	a.lastReport = a.start
	for {
		f, err := faults.ReadFootprint(a.server.pid())
		if err != nil {
			return fmt.Errorf("cannot sample the server: %w", err)
		}
		a.samples = append(a.samples, f)
		err = sleepContext(ctx, max(whole/attackSampleCount, 100*time.Millisecond))
		if err != nil || time.Since(a.lastReport) >= a.phase.Every.Std() {
			a.logAttackSinceLastReport(context.WithoutCancel(ctx))
		}
		if errors.Is(err, errAttackOver) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

var errAttackOver = errors.New("the attack is over")

func (a *attackRun) logAttackSinceLastReport(ctx context.Context) {
	at, now, last := time.Now(), a.honest.Report(), a.samples[len(a.samples)-1]
	p99 := time.Duration(a.honest.TakeLatency().ValueAtQuantile(99)) * time.Microsecond
	a.p99 = max(a.p99, p99)
	rate := float64(now.Answers-a.reportedAnswers) / max(at.Sub(a.lastReport), time.Millisecond).Seconds()
	a.reportedAnswers, a.lastReport = now.Answers, at
	a.recordAndPrintf("%6s  honest %s/s, p99 %v, errors %d; %.1f MB, %d descriptors; ended: %s",
		at.Sub(a.start).Round(time.Second), format.Whole(rate), p99,
		now.Wrong+now.Lost+now.FailedRedials, float64(last.RSS)/1e6, last.Descriptors, a.formatCloseReasonsSinceLastReport(ctx))
}

func (a *attackRun) formatCloseReasonsSinceLastReport(ctx context.Context) string {
	if a.admin == nil {
		return "unknown without {admin}"
	}
	now, err := a.admin.readSummedMetrics(ctx)
	if err != nil {
		return "unknown: " + err.Error()
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(now)) {
		metric, reason, _ := strings.Cut(strings.TrimSuffix(name, "}"), "{")
		switch metric {
		case "myriad_connections_closed_total":
		case "myriad_connections_refused_total":
			reason = "refused " + reason
		default:
			continue
		}
		if more := now[name] - a.endedByReason[name]; more > 0 && reason != "" && strings.HasSuffix(name, "}") {
			words = append(words, reason+" "+format.Whole(more))
		}
	}
	a.endedByReason = now
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// awaitClosesCheckAndStopServer waits up to attackTimeout until the attackers' connections are closed. It then checks
// the honest clients and the server, and stops the server. If there are problems, it returns all of them as one error.
func (a *attackRun) awaitClosesCheckAndStopServer(ctx context.Context) error {
	var problems []string
	addProblem := func(text string, args ...any) { problems = append(problems, fmt.Sprintf(text, args...)) }
	for end := time.Now().Add(attackTimeout); ; {
		f, err := faults.ReadFootprint(a.server.pid())
		if err != nil {
			return err
		}
		if f.Sockets <= a.phase.Honest+spareSockets {
			break
		}
		if time.Now().After(end) {
			addProblem("%d sockets were open %v after the attack, with %d honest clients", f.Sockets, attackTimeout, a.phase.Honest)
			break
		}
		if err := sleepContext(ctx, pollInterval); err != nil {
			return err
		}
	}
	seen := a.honest.Stop()
	failed := seen.Wrong + seen.Lost + seen.FailedRedials
	probe.SetAttackFigures(a.record, seen.Answers, failed, a.p99)
	if seen.First != nil || failed > 0 {
		addProblem("honest clients: %d wrong answers, %d lost, %d failed; first: %v", seen.Wrong, seen.Lost, seen.FailedRedials, seen.First)
	}
	if seen.Answers == 0 {
		addProblem("honest clients got no answer")
	}
	a.recordAndPrintf("honest clients got %s answers, %d errors", format.Count(seen.Answers), failed)
	a.checkMemoryAndDescriptorGrowth(addProblem)
	a.timeline.stopAndStoreTimeline()
	a.timeline = nil
	a.server.terminateAndWait()
	if a.server.err != nil {
		addProblem("%v", a.server.newUnexpectedExitError("the server"))
	}
	if len(problems) > 0 {
		return errors.New(strings.Join(problems, "; "))
	}
	a.recordAndPrintf("sound")
	return nil
}

// checkMemoryAndDescriptorGrowth compares the server's memory and descriptors in the first and the last quarter of the
// attack. It calls addProblem if the growth is too high or there are too few samples.
func (a *attackRun) checkMemoryAndDescriptorGrowth(addProblem func(string, ...any)) {
	quarter := len(a.samples) / 4
	if quarter < minQuarterSamples {
		addProblem("only %d samples in a quarter of the time; expected at least %d", quarter, minQuarterSamples)
		return
	}
	median := func(samples []faults.Footprint) (memory, descriptors float64) {
		var m, d []float64
		for _, f := range samples {
			m, d = append(m, float64(f.RSS)), append(d, float64(f.Descriptors))
		}
		memory, _ = stats.Median(m)
		descriptors, _ = stats.Median(d)
		return memory, descriptors
	}
	memory, descriptors := median(a.samples[:quarter])
	memoryNow, descriptorsNow := median(a.samples[len(a.samples)-quarter:])
	a.recordAndPrintf("first to last quarter: %.1f to %.1f MB, %.0f to %.0f descriptors", memory/1e6, memoryNow/1e6, descriptors, descriptorsNow)
	if memoryNow > memory*(1+memoryGrowth)+memorySlack {
		addProblem("memory has grown from %.1f to %.1f MB", memory/1e6, memoryNow/1e6)
	}
	if descriptorsNow > descriptors*(1+descriptorGrowth)+descriptorSlack {
		addProblem("descriptors have grown from %.0f to %.0f", descriptors, descriptorsNow)
	}
}
