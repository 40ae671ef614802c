package scenario

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
)

// Options say what is changed of scenarios. The zero value leaves them as they are written.
type Options struct {
	// Rounds replaces the scenario's rounds, up to 1000; 0 keeps them.
	Rounds int
	// Duration replaces that of every Load without heartbeats, Flood, Jobs and Attack; 0
	// keeps them.
	Duration time.Duration
	// Connections is the most that a workload has, or goroutines. 0 keeps them.
	Connections int
	// Only keeps the runs whose "workload/subject" it matches; nil keeps all.
	Only *regexp.Regexp
	// With asks for what is optional: the subjects and workloads whose names any of these
	// matches.
	With []*regexp.Regexp
	// Subjects are compared in addition to the scenario's own.
	Subjects []Subject
	// Scale is the name of a scale of the scenarios; "" runs them as they are written.
	Scale string
}

// Apply returns the scenario as it is run on this machine: a subject for each model, at the
// scale and with the other options applied to it. s stays as it is.
func (o Options) Apply(s Scenario) (Scenario, error) {
	switch {
	case o.Connections < 0:
		return s, Errorf("%d connections at most; expected 1 or more, or 0 to keep them", o.Connections)
	case o.Rounds < 0:
		return s, Errorf("%d rounds; expected 1 or more, or 0 to keep them", o.Rounds)
	}
	scale, err := s.scale(o.Scale)
	if err != nil {
		return s, err
	}
	s.Subjects = slices.Concat(s.Subjects, o.Subjects)
	was := s.expanded(thisHost()).withOptional(o.With)
	s = scale.apply(was)
	s = Scale{Connections: o.Connections, Rounds: o.Rounds}.apply(s)
	s.Answer = slices.Clone(s.Answer)
	for i := range s.Workloads {
		w := s.Workloads[i]
		for j := range w.Phases { // which are copies
			p := &w.Phases[j]
			if o.Duration != 0 && p.Heartbeat == 0 && slices.Contains([]string{Load, Flood, Jobs, Attack}, p.Do) {
				p.For = Duration(o.Duration)
			}
		}
		w = w.Filled()
		w.Caption = w.caption()
		s.Workloads[i] = w
		for j := range s.Answer {
			if c := &s.Answer[j]; c.Workload == w.Name {
				c.Text = w.fill(c.Text)
			}
		}
	}
	s.noteChanges(&was, o)
	s.noteBounded(o.Only)
	return s, s.Check()
}

// String says what makes workloads smaller, or their times others.
func (o Options) String() string {
	var words []string
	if o.Scale != "" && o.Scale != fullScale {
		words = append(words, "scale "+o.Scale)
	}
	if o.Connections > 0 {
		words = append(words, "at most "+format.Count(o.Connections)+" connections")
	}
	if o.Duration > 0 {
		words = append(words, "duration "+o.Duration.String())
	}
	return Join(words)
}

// CheckWith returns an Error where something optional is asked for that none of the
// scenarios has.
func (o Options) CheckWith(all []Scenario) error {
	var names, optional []string
	for _, s := range all {
		optional = append(optional, s.Optional()...)
		for _, w := range s.Workloads {
			names = append(names, w.Name)
		}
		for _, x := range s.expanded(anyHost).Subjects {
			names = append(names, x.Name)
		}
	}
	for _, r := range o.With {
		switch {
		case slices.ContainsFunc(names, r.MatchString):
		case len(optional) == 0:
			return Errorf("%q is asked for; expected nothing to be, as nothing is optional here", r)
		default:
			return Errorf("%q matches no workload and no subject; expected to match some of those that are optional: %s", r, strings.Join(optional, ", "))
		}
	}
	return nil
}

// WithPeers returns the scenario with the sides of the module peers, whose executable it is.
func (s Scenario) WithPeers(executable string) (Scenario, error) {
	path, err := filepath.Abs(executable) // or it would be looked for in PATH
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return s, Errorf("the executable of the peers: %v; expected it to be built: go build -C peers -o FILE .", err)
	}
	s.Subjects = slices.Clone(s.Subjects)
	for i := range s.Subjects {
		x := &s.Subjects[i]
		if !x.says(peersPlaceholder) {
			continue
		}
		x.Optional, x.Command = false, slices.Clone(x.Command)
		for i, word := range x.Command {
			x.Command[i] = strings.ReplaceAll(word, peersPlaceholder, path)
		}
	}
	return s, nil
}

// Peers are the sides of the module peers that are left out.
func (s *Scenario) Peers() (names []string) {
	for _, x := range s.Subjects {
		if x.Optional && x.says(peersPlaceholder) {
			names = append(names, x.Name)
		}
	}
	return names
}

// host is what of a machine scenarios depend on before they are run.
type host struct {
	// forbids says why a model can't run, nil if it can.
	forbids func(model string) error
	// table is how many connections a server with one table of descriptors can hold, 0
	// for any number, and wall what stops it there.
	table int
	wall  string
}

// anyHost is a machine on which every model can run.
var anyHost = host{forbids: func(string) error { return nil }}

// tableRoom is how many descriptors a server has for the lab's connections and its own.
const tableRoom = 100

// thisHost is the machine that the lab runs on.
func thisHost() host {
	h := host{forbids: func(model string) error {
		if model == autoModel {
			return nil
		}
		_, err := models.Find(model)
		return err
	}}
	_, hard, ok := sock.DescriptorLimit()
	if ok && hard <= 1<<30 {
		h.table = max(int(hard)-sock.Reserve-tableRoom, 1)
		h.wall = fmt.Sprintf("one process has one table of descriptors, and RLIMIT_NOFILE, hard, is %d", hard)
	}
	return h
}

// expanded returns the scenario as it is on a machine: a subject for each model that can run
// there, and how many connections each can hold. The notes say what can't be run.
func (s Scenario) expanded(h host) Scenario {
	subjects := s.Subjects
	s.Subjects = nil
	for _, x := range subjects {
		if x.OneTable && h.table > 0 {
			x.MaxConns, x.Wall, x.OneTable = h.table, h.wall, false
		}
		if len(x.Models) == 0 {
			s.Subjects = append(s.Subjects, x)
			continue
		}
		for _, model := range x.Models {
			one := x.of(model)
			if err := h.forbids(model); err != nil {
				s.note("%s is left out: %v.", one.Name, err)
				continue
			}
			s.Subjects = append(s.Subjects, one)
		}
	}
	return s
}

// of is the subject with one of its models.
func (s Subject) of(model string) Subject {
	s.Name, s.Models = strings.ReplaceAll(s.Name, modelPlaceholder, model), nil
	s.Command = slices.Clone(s.Command)
	for i, word := range s.Command {
		s.Command[i] = strings.ReplaceAll(word, modelPlaceholder, model)
	}
	return s
}

// noteBounded notes which subjects have fewer connections than their workloads.
func (s *Scenario) noteBounded(only *regexp.Regexp) {
	for _, x := range s.Subjects {
		var names []string
		for _, w := range s.Workloads {
			if x.Serves(w) && matches(only, w, x) && !w.Whole && w.For(x.MaxConns).Connections < w.Connections {
				names = append(names, w.Name)
			}
		}
		if len(names) == 0 {
			continue
		}
		why := ""
		if x.Wall != "" {
			why = ": " + x.Wall
		}
		s.note("%s has %s connections under %s, which have more%s.", x.Name, format.Count(x.MaxConns), Join(names), why)
	}
}
