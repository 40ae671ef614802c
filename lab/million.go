package lab

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// MillionOptions say how to run Million. The zero value of each field is a good
// default. Of Options, Rounds is 1 by default; Duration and Subjects are not used.
type MillionOptions struct {
	Options
	// Connections is how many connections to hold, 1 to 67,108,864. Default
	// 1,000,000.
	Connections int
	// Names are the servers to run, in this order: "epoll" and "uring", one process
	// whose loops have a descriptor table each where that is needed, and "prefork",
	// worker processes on epoll. Default: all.
	Names []string
	// Hold is for how long connections are to be held with heartbeats, from 100 ms
	// to 24 h, and Heartbeat the time between two of a connection, from 100 ms to
	// Hold. It takes longer than Hold by what heartbeats come late. Defaults 2 min
	// and 1 min.
	Hold, Heartbeat time.Duration
	// Loops and LoadLoops are how many event loops the server, or each of its
	// worker processes, and the generator have, up to 1,024. Default 0: as many as
	// the connections take.
	Loops, LoadLoops int
	// InFlight is how many connections at most wait for the answer to their check
	// at a time, 1 to 1,048,576. Default 1,000.
	InFlight int
	// KeepFree is how many bytes of memory are to stay free, 1 or more: with less no
	// more connections are opened, and with half of it the run ends. Free is what
	// nothing uses of the machine's, and half of the pages of files that can be
	// dropped, or what a cgroup has left if that is less. Default: the twentieth part
	// of the memory, but 1 GiB at least.
	KeepFree int64
	// Strict has a run fail, too, that misses the sizes and rates of its findings.
	Strict bool
}

const (
	maxHeldConns = 64 << 20
	maxHeldLoops = 1024
	maxInFlight  = 1 << 20
	minKeepFree  = 1 << 30
)

// filled is the options with their defaults, or a ScenarioError.
func (o MillionOptions) filled() (MillionOptions, error) {
	if o.Rounds == 0 {
		o.Rounds = 1
	}
	if o.Connections == 0 {
		o.Connections = 1_000_000
	}
	if o.Hold == 0 {
		o.Hold = 2 * time.Minute
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = min(time.Minute, o.Hold)
	}
	if o.InFlight == 0 {
		o.InFlight = 1000
	}
	if o.KeepFree == 0 {
		o.KeepFree = memoryRoom{total: thisMachine().Memory}.kept(minKeepFree)
	}
	switch {
	case o.Rounds < 1 || o.Rounds > maxRounds:
		return o, wrong("%d rounds; expected 1 to %d", o.Rounds, maxRounds)
	case o.Connections < 1 || o.Connections > maxHeldConns:
		return o, wrong("%d connections; expected 1 to %d", o.Connections, maxHeldConns)
	case o.Hold < minHeartbeat || o.Hold > maxDuration:
		return o, wrong("a hold of %v; expected %v to %v", o.Hold, minHeartbeat, maxDuration)
	case o.Heartbeat < minHeartbeat || o.Heartbeat > o.Hold:
		return o, wrong("a heartbeat each %v; expected %v to %v, the hold", o.Heartbeat, minHeartbeat, o.Hold)
	case o.Loops < 0 || o.Loops > maxHeldLoops:
		return o, wrong("%d loops; expected 0 (as many as it takes) to %d", o.Loops, maxHeldLoops)
	case o.LoadLoops < 0 || o.LoadLoops > maxHeldLoops:
		return o, wrong("%d loops of the generator; expected 0 (as many as it takes) to %d", o.LoadLoops, maxHeldLoops)
	case o.InFlight < 1 || o.InFlight > maxInFlight:
		return o, wrong("%d checks in flight; expected 1 to %d", o.InFlight, maxInFlight)
	case o.KeepFree < 0:
		return o, wrong("%d bytes to stay free; expected 1 or more", o.KeepFree)
	}
	return o, nil
}

// beats is how many heartbeats each connection gets at least, and held how long that
// takes: a server looks at each connection in an eighth of the time, or in 400 ms.
func (o *MillionOptions) beats() int { return int(o.Hold / o.Heartbeat) }

func (o *MillionOptions) held() time.Duration {
	late := max(o.Heartbeat/8, 400*time.Millisecond)
	return time.Duration(o.beats())*(o.Heartbeat+late) + late // and as much for the answers
}

// MillionTakes is about how long Million takes with these options: at 20,000
// connections a second, each way.
func MillionTakes(o MillionOptions) (time.Duration, error) {
	o, err := o.filled()
	if err != nil {
		return 0, err
	}
	steps, err := o.steps()
	return time.Duration(len(steps)) * o.takes(), err
}

// takes is the time of one run.
func (o *MillionOptions) takes() time.Duration {
	const each = 4 * 50 * time.Microsecond // connect, two checks, a broadcast
	return o.held() + time.Duration(o.Connections)*each + time.Second
}

// bound is how long one run may take before it is ended as failed.
func (o *MillionOptions) bound() time.Duration { return 5*o.takes() + time.Minute }

// Million opens so many connections to a server of this machine, for each of the
// named servers in turn, and holds them: every connection is checked, gets heartbeats
// and a broadcast, is checked again and closed. The server and the generator are
// processes of their own; connections, heartbeats and their answers are counted by
// the server. It takes as long as MillionTakes says, or longer on a busy machine.
//
// Before memory runs out no more connections are opened, and the run goes on with
// those that there are; the report says where that was.
//
// A run that fails is part of the report. When ctx ends, or the report cannot be
// written, the report so far is returned together with the error. When nothing could
// be started, such as with a ScenarioError, the report is nil. All processes that were
// started have ended when it returns. The soft limit of open descriptors is raised to
// the hard one and left there.
func Million(ctx context.Context, o MillionOptions) (*MillionReport, error) {
	o, err := o.filled()
	if err != nil {
		return nil, err
	}
	steps, err := o.steps()
	if err != nil {
		return nil, err
	}
	self, err := o.self()
	if err != nil {
		return nil, err
	}
	out, err := o.openOut()
	if err != nil {
		return nil, err
	}
	r := &runner{self: self, launcher: newLauncher(), room: readRoom}
	r.launcher.grace = millionGrace
	defer r.launcher.close()
	report := newMillionReport(&o, len(steps))
	if err := raiseFileLimit(); err != nil {
		report.note("The limit of open descriptors could not be raised: %v.", err)
	}
	p := newProgress(o.Progress, nil)
	for _, s := range steps {
		if ctx.Err() != nil {
			break
		}
		m := &millionRunner{MillionOptions: &o, runner: r, subject: s.subject, progress: p}
		report.Runs = append(report.Runs, m.run(ctx, s.round))
	}
	p.end()
	if ctx.Err() != nil {
		report.note("Interrupted in run %d of %d.", len(report.Runs), len(steps))
		err = fmt.Errorf("interrupted in run %d of %d: %w", len(report.Runs), len(steps), ctx.Err())
	}
	return report, errors.Join(err, writeOut(out, report))
}

// millionGrace is how long a process may take to end: it may have a million
// connections to close.
const millionGrace = time.Minute

// millionStep is a server in a round.
type millionStep struct {
	subject millionSubject
	round   int
}

// steps are the runs, in order.
func (o *MillionOptions) steps() (all []millionStep, err error) {
	chosen, err := o.subjects()
	if err != nil {
		return nil, err
	}
	for round := range o.Rounds {
		for _, s := range chosen {
			all = append(all, millionStep{s, round + 1})
		}
	}
	return all, nil
}

// subjects are those that Names and Only choose.
func (o *MillionOptions) subjects() (chosen []millionSubject, err error) {
	names := o.Names
	if len(names) == 0 {
		names = MillionSubjects()
	}
	for _, name := range names {
		i := slices.IndexFunc(millionSubjects, func(s millionSubject) bool { return s.name == name })
		if i < 0 {
			return nil, wrong("subject %q; expected some of %v", name, MillionSubjects())
		}
		if o.Only == nil || o.Only.MatchString(millionName+"/"+name) {
			chosen = append(chosen, millionSubjects[i])
		}
	}
	if len(chosen) == 0 {
		return nil, wrong("%q matches no run; expected to match a WORKLOAD/SUBJECT such as %q", o.Only, millionName+"/"+names[0])
	}
	return chosen, nil
}
