package main

import (
	"errors"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/internal/lab/probe"
	"github.com/myriad-go/myriad/internal/lab/scenario"
)

// newBenchOf is a built-in scenario with flags of its own: made is what these make of it.
func newBenchOf(s scenario.Scenario, f *benchFlags, made func() (scenario.Scenario, error)) *cobra.Command {
	cmd := &cobra.Command{
		Use:   s.Name,
		Short: s.Question,
		Long:  s.Question + "\n" + s.About + "\n\nIt takes about " + minutes(s.Duration()) + ", unless flags say otherwise.",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, more []string) error {
			if f.resume != "" {
				return f.bench(cmd, more)
			}
			s, err := made()
			if wrong, ok := errors.AsType[scenario.Error](err); ok {
				return usageError{wrong}
			} else if err != nil {
				return err
			}
			return f.bench(cmd, more, s)
		},
	}
	f.add(cmd.Flags())
	return cmd
}

// builtIn is a scenario that this program brings along.
func builtIn(name string) scenario.Scenario {
	s, err := probe.Scenarios.BuiltIn(name)
	if err != nil {
		panic("myriad: " + err.Error())
	}
	return s
}

// maxLoops is the most event loops that a server has.
const maxLoops = 1024

// newBenchMillion is the built-in scenario million, with flags that change it.
func newBenchMillion() *cobra.Command {
	var f benchFlags
	s := builtIn("million")
	w := &s.Workloads[0]
	// Its phases: connect, verify, hold alone, broadcast, hold with heartbeats, verify, hold.
	verify, alone, beats, after := &w.Phases[1], &w.Phases[2], &w.Phases[4], &w.Phases[6]
	var names []string
	var loops int
	hold, heartbeat := beats.For.Std(), beats.Heartbeat.Std()
	var cmd *cobra.Command
	cmd = newBenchOf(s, &f, func() (scenario.Scenario, error) {
		if loops > maxLoops {
			return s, usagef("--loops is %d; expected 1 to %d", loops, maxLoops)
		}
		if !cmd.Flags().Changed("heartbeat") {
			heartbeat = min(heartbeat, hold)
		}
		beats.For, beats.Heartbeat = scenario.Duration(hold), scenario.Duration(heartbeat)
		alone.For = scenario.Duration(max(min(alone.For.Std(), hold/8), 100*time.Millisecond))
		after.For = scenario.Duration(max(min(after.For.Std(), hold), 100*time.Millisecond))
		for i := range s.Subjects {
			if x := &s.Subjects[i]; loops > 0 {
				x.Command = append(x.Command, "--loops", strconv.Itoa(loops))
			}
		}
		return s.Keep(names...)
	})
	cmd.Long += `

It exits with 1 when a connection was lost, an answer was wrong, a heartbeat or
the broadcast did not arrive, the machine did not get its memory back, or one of
these was not measured; with --strict also when memory or rates are not what is
claimed.`
	cmd.SetFlagErrorFunc(valueError)
	flags := cmd.Flags()
	flags.StringSliceVar(&names, "subjects", nil, "run these servers: epoll, uring, prefork (default: all)")
	flag(flags, &w.Connections, parseMore, "connections", "n", "hold `N` connections, as 2m (default 1000000)")
	flag(flags, &hold, parsePeriod, "hold", "", "hold them for this `TIME`, with heartbeats (default 2m)")
	flag(flags, &heartbeat, parsePeriod, "heartbeat", "", "have a heartbeat each `TIME` on each (default 1m, or the hold)")
	flag(flags, &loops, parseMore, "loops", "", "give the server, or each of its worker processes, `N` event loops (default: as many as it takes)")
	flag(flags, &w.LoadLoops, parseMore, "load-loops", "", "give the generator `N` event loops (default: as many as it takes)")
	flag(flags, &verify.InFlight, parseMore, "check-inflight", "", "check `N` connections at a time (default 1000)")
	flag(flags, &w.KeepFree, parseLong, "keep-free", "", "open no more connections when less than `BYTES` of memory are free, as 2g (default: the twentieth part of the memory)")
	return cmd
}

// newBenchSoak is the built-in scenario soak, with flags that change it.
func newBenchSoak() *cobra.Command {
	var f benchFlags
	s := builtIn("soak")
	p := &s.Workloads[0].Phases[0]
	var models []string
	cmd := newBenchOf(s, &f, func() (scenario.Scenario, error) { return s.Keep(models...) })
	flags := cmd.Flags()
	flags.DurationVar((*time.Duration)(&p.Every), "every", 0, "report as often (default 1m, or a quarter of the duration)")
	flags.StringArrayVar(&models, "model", nil, "serve under this I/O `MODEL` (repeatable; default: each that can run here)")
	flags.IntVar(&p.Honest, "honest", p.Honest, "have `N` honest clients")
	return cmd
}

// newBenchOverload is the built-in scenario overload, with flags that change it.
func newBenchOverload() *cobra.Command {
	var f benchFlags
	var c scenario.Phase // what is changed
	var warmUp time.Duration
	var peers string
	s := builtIn("overload")
	cmd := newBenchOf(s, &f, func() (scenario.Scenario, error) {
		for i := range s.Workloads {
			p := &s.Workloads[i].Phases[0]
			if c.Memory != 0 {
				p.Memory = c.Memory
			}
			if c.Deadline != 0 {
				p.Deadline = c.Deadline
			}
			if c.Queue != 0 {
				p.Queue = c.Queue
			}
			if warmUp != 0 {
				p.WarmUp = scenario.Duration(max(warmUp, 0))
			}
		}
		for i := range s.Claims {
			if claim := &s.Claims[i]; claim.Figure == "peak-memory" && c.Memory != 0 {
				*claim.AtMost = float64(c.Memory)
			}
		}
		if peers == "" {
			return s, nil
		}
		return s.WithPeers(peers)
	})
	cmd.Long += `

Workloads are SHAPE-LOAD, for --only as SHAPE-LOAD/SIDE: SHAPE is published (20 ms
of waiting, 500 KB), cpu (1 ms of computing) or mixed; LOAD is unloaded, 1x, 2x,
10x or 1M. --with ours compares also with the own pool without single rules. With
--peers or --with it takes longer. A --subject is a side: it gets the flags of
"myriad offer" but for --pool, and prints what that prints.`
	flags := cmd.Flags()
	flags.Int64Var(&c.Memory, "memory", 0, "allow each side as many `BYTES`; a watchdog ends it when it takes more (default 2 GiB)")
	flags.DurationVar((*time.Duration)(&c.Deadline), "deadline", 0, "a job is of use that has ended this long after its submission (default 200ms)")
	flags.DurationVar(&warmUp, "warmup", 0, "have each side under its load this long before anything is counted; less than 0 is not at all (default 2s)")
	flags.IntVar(&c.Queue, "queue", 0, "let `N` jobs wait in a side that has a queue (default 1024)")
	flags.StringVar(&peers, "peers", "", "compare with ants, pond and failsafe, by this `FILE`: go build -C peers -o FILE .")
	return cmd
}
