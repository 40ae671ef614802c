package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/doctor"
)

// add gives the flags to the command doctor.
func (f *doctorFlags) add(cmd *cobra.Command) {
	var g flagGroups
	g.add("Plan", "", f.addPlan)
	g.add("Answer", "", f.addAnswer)
	g.giveTo(cmd)
}

func (f *doctorFlags) addPlan(flags *pflag.FlagSet) {
	p := &f.plan
	flag(flags, &p.Connections, parseMore, "connections", "n", "look at `N` connections, such as 100k")
	flag(flags, &f.side, oneOf(string(doctor.Server), string(doctor.Client), string(doctor.Both)), "side", "", "look at this `SIDE` of them: server, client or both (default both)")
	flags.StringVar(&p.Model, "model", "", "serve, or with --side client connect, on this I/O `MODEL`: auto, goroutine, epoll or uring (default auto)")
	flag(flags, &p.Processes, parseMore, "processes", "", "serve with `N` worker processes (default: none)")
	flag(flags, &p.Unread, parseCount, "unread", "", "each connection has `BYTES` in the kernel, unread or unsent (default 0: idle)")
	flag(flags, &p.UserMemory, parseMore, "user-memory", "", "a connection takes `BYTES` of the process's memory (default: what Myriad takes)")
	flag(flags, &p.Backlog, parseMore, "backlog", "", "the listener asks for a backlog of `N` (default: as many as it gets)")
	flag(flags, &p.Burst, parseMore, "burst", "", "`N` connections may arrive before the server accepts one (default 512)")
	flag(flags, &p.Closing, parseMore, "closing", "", "this side closes `N` connections a second, in order (default: none)")
	flags.StringArrayVar(&f.sources, "src", nil, "connect from this local `ADDRESS`, range A-B or network A/BITS (repeatable; default: chosen by itself)")
	flags.StringArrayVar(&f.targets, "target", nil, "connect to this `ADDRESS`, an IP address and a port (repeatable; default: one on 127.0.0.1)")
}

func (f *doctorFlags) addAnswer(flags *pflag.FlagSet) {
	flags.BoolVar(&f.fix, "fix", false, "change what can be changed now, and say how to undo it")
	flags.BoolVar(&f.yes, "yes", false, "don't ask before --fix")
	flag(flags, &f.format, oneOf(doctor.Formats...), "print", "", "print only what makes it last, as `FORMAT`: sysctl, systemd, docker, kubernetes or limits")
	flags.BoolVar(&f.json, "json", false, "print the report as JSON")
}
