package main

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/doctor"
	"github.com/myriad-go/myriad/internal/sock"
)

// unasked is for how many connections serve asks at most where nobody has said how
// many there are to be: the limit of descriptors may allow a thousand million.
const unasked = 10_000

// question is what serve asks. Worker processes don't.
func (f *serveFlags) question() (q question, ok bool) {
	if _, worker := myriad.WorkerProcess(); worker || f.srv.Network == "unix" {
		return q, false
	}
	n := f.srv.Limits.MaxConns
	q.free = n == 0
	if q.free {
		n = min(sock.MaxConns()*max(f.srv.Processes, 1), unasked)
	}
	q.plan = doctor.Plan{Connections: n, Side: doctor.Server, Model: cmp.Or(f.srv.Model, myriad.Auto), Processes: f.srv.Processes}
	q.args = []string{"--side server"}
	if f.srv.Model != "" && f.srv.Model != myriad.Auto {
		q.args = append(q.args, "--model "+f.srv.Model)
	}
	if f.srv.Processes > 0 {
		q.args = append(q.args, fmt.Sprintf("--processes %d", f.srv.Processes))
	}
	return q, true
}

// ask asks for serve.
func (f *serveFlags) ask(cmd *cobra.Command) {
	if q, ok := f.question(); ok {
		ask(cmd, q)
	}
}

// lookupTime bounds the wait for the address of a target that is a name.
const lookupTime = 20 * time.Millisecond

// question is what load and hold ask: nothing where the number of connections is not
// given, which makes it few, nor of unix sockets, which have no ports, nor of a target
// whose address can't be had at once.
func (f *loadFlags) question(ctx context.Context) (q question, ok bool) {
	if f.cfg.Connections == 0 {
		return q, false
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	q.plan = doctor.Plan{Connections: f.cfg.Connections, Side: doctor.Client, Model: f.cfg.Model, Sources: f.cfg.Sources, Closing: f.closes()}
	q.args = []string{"--side client"}
	for _, target := range append([]string{f.cfg.Target}, f.cfg.Also...) {
		at, err := addressOf(ctx, target)
		if err != nil {
			return q, false
		}
		q.plan.Targets = append(q.plan.Targets, at)
		if !at.Addr().IsLoopback() || len(f.cfg.Also) > 0 {
			q.args = append(q.args, "--target "+at.String())
		}
	}
	for _, text := range f.given["src"] {
		q.args = append(q.args, "--src "+text)
	}
	return q, true
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

// ask asks for load and hold, unless they are to be quiet.
func (f *loadFlags) ask(cmd *cobra.Command) {
	if q, ok := f.question(cmd.Context()); ok && !f.results.quiet {
		ask(cmd, q)
	}
}
