package main

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/doctor"
)

// limitCheck contains the plan of a command. Before the command starts, the plan is compared with the limits of the
// machine.
type limitCheck struct {
	plan doctor.Plan
	// doctorArgs contains the flags with which "myriad doctor" makes the same prediction.
	doctorArgs []string
	// connsDerived suppresses warnings about the descriptor limit, from which the number of connections is derived.
	connsDerived bool
}

func checkAndPrintLimitWarnings(cmd *cobra.Command, p limitCheck) {
	report, err := examineMachine(p.plan)
	if err != nil {
		return
	}
	for _, line := range p.formatLimitWarnings(report) {
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %s\n", line)
	}
}

// nearWallShare determines when a plan is near a limit of the machine: if it has more connections than this share of
// Wall.Holds, the number of connections that the limit permits.
const nearWallShare = 0.8

// formatLimitWarnings returns at most two warnings: one about a hard limit of the machine, and one about a soft limit.
func (p *limitCheck) formatLimitWarnings(report *doctor.Report) (lines []string) {
	n := report.Plan.Connections
	hard, soft := p.lowestExceededOrNearWall(report, false), p.lowestExceededOrNearWall(report, true)
	switch {
	case hard == nil:
	case hard.Exceeded(n):
		lines = append(lines, fmt.Sprintf("this machine can hold only %d of %d connections: %s; %s", hard.Holds, n, formatWallNameAndValue(hard), p.doctorHint(n)))
	default:
		lines = append(lines, fmt.Sprintf("%d connections are %d%% of what this machine can hold, %d: %s; %s",
			n, int64(n)*100/hard.Holds, hard.Holds, formatWallNameAndValue(hard), p.doctorHint(n)))
	}
	if soft != nil {
		lines = append(lines, fmt.Sprintf("%s degrades performance from %d of %d connections; %s", formatWallNameAndValue(soft), soft.Holds, n, p.doctorHint(n)))
	}
	return lines
}

// lowestExceededOrNearWall returns the lowest hard limit that the plan exceeds or nears. If wantPerformanceWalls is
// true, it instead returns the lowest soft limit that the plan exceeds. If there is no such limit, it returns nil.
func (p *limitCheck) lowestExceededOrNearWall(report *doctor.Report, wantPerformanceWalls bool) (nearest *doctor.Wall) {
	n := report.Plan.Connections
	for i := range report.Walls {
		w := &report.Walls[i]
		if w.Soft != wantPerformanceWalls || p.connsDerived && w.Name == "nofile" || w.Name == "io_uring" { // the command reports that itself
			continue
		}
		near := w.Exceeded(n) || !wantPerformanceWalls && w.Holds != doctor.Unlimited && float64(n) > nearWallShare*float64(w.Holds)
		if near && (nearest == nil || w.Holds < nearest.Holds) {
			nearest = w
		}
	}
	return nearest
}

func formatWallNameAndValue(w *doctor.Wall) string {
	if w.Present == "" {
		return w.Name
	}
	return fmt.Sprintf("%s (%s)", w.Name, w.Present)
}

func (p *limitCheck) doctorHint(n int) string {
	return fmt.Sprintf("`%s` shows how to raise it", strings.Join(append([]string{"myriad doctor -n", fmt.Sprint(n)}, p.doctorArgs...), " "))
}

// maxDerivedConns is the maximum number of connections derived from the limit of open descriptors.
const maxDerivedConns = 10_000

func (f *serverFlags) warnAboutServerLimits(cmd *cobra.Command) {
	if _, worker := tcp.WorkerProcess(); worker || f.srv.Network == "unix" {
		return
	}
	var p limitCheck
	n := f.srv.Limits.MaxConns
	p.connsDerived = n == 0
	if p.connsDerived {
		n = min(sock.DefaultMaxConnsForDescriptorLimit()*max(f.srv.Processes, 1), maxDerivedConns)
	}
	p.plan = doctor.Plan{Connections: n, Side: doctor.Server, Model: cmp.Or(f.srv.Model, tcp.Auto), Processes: f.srv.Processes}
	p.doctorArgs = []string{"--side server"}
	if f.srv.Model != "" && f.srv.Model != tcp.Auto {
		p.doctorArgs = append(p.doctorArgs, "--model "+f.srv.Model)
	}
	if f.srv.Processes > 0 {
		p.doctorArgs = append(p.doctorArgs, fmt.Sprintf("--processes %d", f.srv.Processes))
	}
	checkAndPrintLimitWarnings(cmd, p)
}

func (f *loadFlags) warnAboutClientLimits(cmd *cobra.Command) {
	if f.results.quiet || f.cfg.Connections == 0 || f.agents.agents.n > 0 { // agents ask their own doctors
		return
	}
	p := limitCheck{doctorArgs: []string{"--side client"}}
	p.plan = doctor.Plan{Connections: f.cfg.Connections, Side: doctor.Client, Model: f.cfg.Model, Sources: f.cfg.Sources}
	if f.cfg.Graceful && f.cfg.Lifetime > 0 {
		p.plan.Closing = int(float64(f.cfg.Connections) / f.cfg.Lifetime.Seconds())
	}
	for _, target := range append([]string{f.cfg.Target}, f.cfg.Also...) {
		addr, err := net.ResolveTCPAddr("tcp", target)
		if err != nil {
			return
		}
		at := netip.AddrPortFrom(addr.AddrPort().Addr().Unmap(), addr.AddrPort().Port())
		if !at.Addr().IsValid() { // no host
			at = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
		}
		p.plan.Targets = append(p.plan.Targets, at)
		if !at.Addr().IsLoopback() || len(f.cfg.Also) > 0 {
			p.doctorArgs = append(p.doctorArgs, "--target "+at.String())
		}
	}
	for _, text := range f.settingTexts["src"] {
		p.doctorArgs = append(p.doctorArgs, "--src "+text)
	}
	checkAndPrintLimitWarnings(cmd, p)
}
