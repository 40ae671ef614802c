package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/doctor"
	"github.com/myriad-go/myriad/internal/sock"
)

// prediction is what a command has the doctor predict before it begins.
type prediction struct {
	plan doctor.Plan
	// args are the flags by which `myriad doctor` predicts the same.
	args []string
	// derived says that the number of connections is not given, but follows from the
	// limit of descriptors: no warning of that one then.
	derived bool
}

// warn writes to standard error which wall is near, if one is: two lines at most. It
// never fails a command: where the machine can't be read it writes nothing.
func warn(cmd *cobra.Command, p prediction) {
	report, err := examine(p.plan)
	if err != nil {
		return
	}
	for _, line := range p.warnings(report) {
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %s\n", line)
	}
}

// nearShare is the share of a wall from which on it is called near.
const nearShare = 0.8

// warnings are of the first wall that stops the plan or is near, and of the first that
// hurts it.
func (p *prediction) warnings(report *doctor.Report) (lines []string) {
	n := report.Plan.Connections
	hard, soft := p.nearest(report, false), p.nearest(report, true)
	switch {
	case hard == nil:
	case hard.Near(n):
		lines = append(lines, fmt.Sprintf("this machine stops at %d connections of %d: %s; %s", hard.Holds, n, wallText(hard), p.advice(n)))
	default:
		lines = append(lines, fmt.Sprintf("%d connections are %d%% of what this machine holds, %d: %s; %s",
			n, int64(n)*100/hard.Holds, hard.Holds, wallText(hard), p.advice(n)))
	}
	if soft != nil {
		lines = append(lines, fmt.Sprintf("%s hurts from %d connections of %d on; %s", wallText(soft), soft.Holds, n, p.advice(n)))
	}
	return lines
}

// nearest is the nearest wall that is near, nil for none. Soft ones do not count
// before they hurt.
func (p *prediction) nearest(report *doctor.Report, soft bool) (nearest *doctor.Wall) {
	n := report.Plan.Connections
	for i := range report.Walls {
		w := &report.Walls[i]
		if w.Soft != soft || p.derived && w.Name == "nofile" || w.Name == "io_uring" { // the command says that itself
			continue
		}
		near := w.Near(n) || !soft && w.Holds != doctor.Unlimited && float64(n) > nearShare*float64(w.Holds)
		if near && (nearest == nil || w.Holds < nearest.Holds) {
			nearest = w
		}
	}
	return nearest
}

// wallText names a wall and its present value.
func wallText(w *doctor.Wall) string {
	if w.Present == "" {
		return w.Name
	}
	return fmt.Sprintf("%s (%s)", w.Name, w.Present)
}

func (p *prediction) advice(n int) string {
	return fmt.Sprintf("`%s` says how to move it", strings.Join(append([]string{"myriad doctor -n", fmt.Sprint(n)}, p.args...), " "))
}

// defaultServed is the most connections that a prediction for serve is of where no
// number is given: the limit of descriptors may allow a thousand million.
const defaultServed = 10_000

// prediction is that of serve. Worker processes make none.
func (f *serveFlags) prediction() (p prediction, ok bool) {
	if _, worker := myriad.WorkerProcess(); worker || f.srv.Network == "unix" {
		return p, false
	}
	n := f.srv.Limits.MaxConns
	p.derived = n == 0
	if p.derived {
		n = min(sock.MaxConns()*max(f.srv.Processes, 1), defaultServed)
	}
	p.plan = doctor.Plan{Connections: n, Side: doctor.Server, Model: cmp.Or(f.srv.Model, myriad.Auto), Processes: f.srv.Processes}
	p.args = []string{"--side server"}
	if f.srv.Model != "" && f.srv.Model != myriad.Auto {
		p.args = append(p.args, "--model "+f.srv.Model)
	}
	if f.srv.Processes > 0 {
		p.args = append(p.args, fmt.Sprintf("--processes %d", f.srv.Processes))
	}
	return p, true
}

// warn warns before serve starts.
func (f *serveFlags) warn(cmd *cobra.Command) {
	if p, ok := f.prediction(); ok {
		warn(cmd, p)
	}
}

// lookupTime bounds the wait for the address of a target that is a name.
const lookupTime = 20 * time.Millisecond

// prediction is that of load and hold: none where the number of connections is not
// given, which makes it few, nor of unix sockets, which have no ports, nor of a target
// whose address can't be looked up at once.
func (f *loadFlags) prediction(ctx context.Context) (p prediction, ok bool) {
	if f.cfg.Connections == 0 {
		return p, false
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	p.plan = doctor.Plan{Connections: f.cfg.Connections, Side: doctor.Client, Model: f.cfg.Model, Sources: f.cfg.Sources, Closing: f.closes()}
	p.args = []string{"--side client"}
	for _, target := range append([]string{f.cfg.Target}, f.cfg.Also...) {
		at, err := addressOf(ctx, target)
		if err != nil {
			return p, false
		}
		p.plan.Targets = append(p.plan.Targets, at)
		if !at.Addr().IsLoopback() || len(f.cfg.Also) > 0 {
			p.args = append(p.args, "--target "+at.String())
		}
	}
	for _, text := range f.given["src"] {
		p.args = append(p.args, "--src "+text)
	}
	return p, true
}

// closes is how many connections a second the generator closes in order.
func (f *loadFlags) closes() int {
	if !f.cfg.Graceful || f.cfg.Lifetime <= 0 {
		return 0
	}
	return int(float64(f.cfg.Connections) / f.cfg.Lifetime.Seconds())
}

// addressOf is the address of HOST:PORT.
func addressOf(ctx context.Context, target string) (netip.AddrPort, error) {
	host, service, err := net.SplitHostPort(target)
	if err != nil {
		return netip.AddrPort{}, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", cmp.Or(host, "127.0.0.1"))
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, a := range addrs {
		if a.Unmap().Is4() {
			return netip.AddrPortFrom(a.Unmap(), uint16(port)), nil
		}
	}
	return netip.AddrPortFrom(addrs[0], uint16(port)), nil
}

// warn warns before load and hold start, unless they are to be quiet.
func (f *loadFlags) warn(cmd *cobra.Command) {
	if p, ok := f.prediction(cmd.Context()); ok && !f.results.quiet {
		warn(cmd, p)
	}
}
