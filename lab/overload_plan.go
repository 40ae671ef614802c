package lab

import (
	"fmt"
	"strings"
	"time"
)

// overloadQuestion is what Overload asks.
const overloadQuestion = "What becomes of a pool when more is asked of it than it can do?"

// shape is a kind of job.
type shape struct {
	name, caption string
	network       bool // offered to a server, through the network
}

// shapes are those of "myriad offer --work", and that of the network.
var shapes = []shape{
	{name: "published", caption: "Jobs that wait for 20 ms and allocate 500 KB"},
	{name: "cpu", caption: "Jobs that compute for about 1 ms"},
	{name: "mixed", caption: "Jobs of both kinds"},
	{name: "network", caption: "Lines to a server that computes for each and waits", network: true},
}

// overloadLoad is a shape of job at a rate.
type overloadLoad struct {
	shape    shape
	name     string
	factor   float64 // of the capacity
	rate     float64 // jobs a second; 0 is by the factor
	duration time.Duration
}

// The names of the loads. Exactly 1 × is offered, not a bit less, so that in an
// open loop a queue builds up there, too.
const (
	unloaded = "unloaded"
	once     = "1x"
	twice    = "2x"
	tenfold  = "10x"
	million  = "1M"
)

// overloadLoads are the loads of the options.
func (o OverloadOptions) overloadLoads() (all []overloadLoad) {
	for _, s := range shapes {
		if s.network && !o.Network {
			continue
		}
		of := func(name string, factor, rate float64, duration time.Duration) {
			all = append(all, overloadLoad{shape: s, name: name, factor: factor, rate: rate, duration: duration})
		}
		of(unloaded, 0.05, 0, o.Duration)
		of(once, 1, 0, o.Duration)
		of(twice, 2, 0, o.Duration)
		of(tenfold, 10, 0, o.Duration)
		if s.name == "published" {
			of(million, 0, 1e6, 3*o.Duration)
		}
	}
	return all
}

// workload is the load as a workload of a plan.
func (l overloadLoad) workload(warmup time.Duration) Workload {
	text := l.shape.caption + "."
	if l.rate == 0 {
		text = fmt.Sprintf("%s, %g × the capacity.", l.shape.caption, l.factor)
	}
	// A side has ended most of what it has within a second.
	return Workload{
		Name: l.shape.name + "-" + l.name, Caption: text, App: l.shape.name,
		Kind: Throughput, WarmUp: warmup, Duration: l.duration, Drain: time.Second,
	}
}

// overloadPlan is what Overload runs.
type overloadPlan struct {
	workloads []Workload
	loads     map[string]overloadLoad // by the name of the workload
	subjects  []Subject
	sides     map[string]OverloadSide
	steps     []step
}

// plan plans the runs of the options, which are filled.
func (o OverloadOptions) plan() (*overloadPlan, error) {
	p := &overloadPlan{loads: make(map[string]overloadLoad), sides: make(map[string]OverloadSide)}
	for _, l := range o.overloadLoads() {
		w := l.workload(o.Warmup)
		p.workloads = append(p.workloads, w)
		p.loads[w.Name] = l
	}
	sides, err := o.sides()
	if err != nil {
		return nil, err
	}
	for _, s := range sides {
		if _, double := p.sides[s.Name]; double {
			return nil, wrong("two sides are named %q; expected a name for each", s.Name)
		}
		p.sides[s.Name] = s
		p.subjects = append(p.subjects, Subject{Name: s.Name, Apps: s.shapes(), Command: s.Command})
	}
	scenario := Scenario{Subjects: p.subjects, Workloads: p.workloads, Rounds: o.Rounds}
	p.steps, err = scenario.plan(o.Only)
	return p, err
}

// takes is about how long the plan takes.
func (p *overloadPlan) takes(o OverloadOptions) time.Duration {
	all := estimate(p.steps)
	for _, s := range shapes {
		if p.has(s.name) {
			all += time.Duration(len(workerLadder())) * (o.Warmup + o.calibrating() + time.Second)
		}
	}
	return all
}

// OverloadSide is what jobs are offered to.
type OverloadSide struct {
	Name string `json:"name"`
	// Command is what it is started with, with placeholders as in Subject; the
	// flags of "myriad offer" come behind it, and More at the end.
	Command []string `json:"command"`
	More    []string `json:"more,omitempty"`
	// Told says that it is told the best number of workers.
	Told bool `json:"told,omitempty"`
	// Own says that it is the pool of this repository, Variant that it is that
	// pool without a rule.
	Own     bool `json:"own,omitempty"`
	Variant bool `json:"variant,omitempty"`
	// Network says that it is a server.
	Network bool `json:"network,omitempty"`
}

// shapes are the names of the shapes that the side is offered.
func (s OverloadSide) shapes() (names []string) {
	for _, x := range shapes {
		if x.network == s.Network {
			names = append(names, x.name)
		}
	}
	return names
}

// The names of sides that the report speaks of.
const (
	sideNaive   = "naive"
	sideChannel = "channel"
	sideOurs    = "ours"
)

// peerSides are those of the module peers.
var peerSides = []string{"ants", "pond", "failsafe"}

// ruleSides are the pool of this repository without rules, by their name.
var ruleSides = []struct{ name, off string }{
	{"ours-no-adapting", "adapting"},
	{"ours-no-shedding", "shedding"},
	{"ours-no-newest", "newest"},
	{"ours-no-fairness", "fairness"},
	{"ours-plain", "adapting,shedding,newest,fairness"},
}

// sides are the sides of the options, in the order of the report.
func (o OverloadOptions) sides() ([]OverloadSide, error) {
	offer := func(program, pool string) []string { return []string{program, "offer", "--pool", pool} }
	all := []OverloadSide{
		{Name: sideNaive, Command: offer("{self}", sideNaive)},
		{Name: sideChannel, Command: offer("{self}", sideChannel), Told: true},
	}
	for _, name := range peerSides {
		if o.Peers != "" {
			all = append(all, OverloadSide{Name: name, Command: offer(o.Peers, name), Told: true})
		}
	}
	for _, s := range o.Subjects {
		if err := s.checkName(); err != nil {
			return nil, err
		}
		all = append(all, OverloadSide{Name: s.Name, Command: s.Command, Told: true})
	}
	all = append(all, OverloadSide{Name: sideOurs, Command: offer("{self}", sideOurs), Own: true})
	for _, r := range ruleSides {
		if o.Rules {
			all = append(all, OverloadSide{
				Name: r.name, Command: offer("{self}", sideOurs), More: []string{"--off", r.off}, Own: true, Variant: true,
			})
		}
	}
	if o.Network {
		all = append(all, networkSides()...)
	}
	return all, nil
}

// ParseOverloadSide reads a side written as "name=command line", such as
// "mine=/usr/bin/mine offer". The flags of "myriad offer" but for --pool are put
// behind it. An error is a ScenarioError.
func ParseOverloadSide(text string) (Subject, error) {
	name, line, ok := strings.Cut(text, "=")
	if !ok {
		return Subject{}, wrong("side %q has no name; expected NAME=COMMAND, such as mine=\"/usr/bin/mine offer\"", text)
	}
	command, err := splitWords(line)
	if err != nil {
		return Subject{}, err
	}
	s := Subject{Name: name, Command: command}
	return s, s.checkName()
}

// missing says which sides are not part of the run.
func (o OverloadOptions) missing() string {
	if o.Peers != "" {
		return ""
	}
	return fmt.Sprintf("Missing: %s, which are part of the module peers. To add them: "+
		"go build -C peers -o FILE . && myriad bench overload --peers FILE", joined(peerSides))
}

// joined writes words as "a, b and c".
func joined(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
