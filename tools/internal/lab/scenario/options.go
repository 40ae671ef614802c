package scenario

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
)

// Options modify scenarios. The zero value changes nothing.
type Options struct {
	// Rounds replaces the scenario's number of rounds. 0 keeps that number. The maximum is 1000.
	Rounds int
	// Duration replaces the duration of all Flood, Publish, Jobs and Attack phases. It also replaces the duration of
	// Load phases, unless they have heartbeats. 0 keeps all durations.
	Duration    time.Duration
	Connections int
	// Only selects runs by a pattern for their name "workload/subject". Nil selects all runs.
	Only *regexp.Regexp
	// Subjects contains further subjects to add to the scenario.
	Subjects []Subject
	// Scale is the name of one of the scenario's scales, which make the scenario smaller. "" applies no scale.
	Scale string
}

// ApplyForThisMachine returns a copy of the scenario with the options applied. The copy contains only subjects that can
// run on this machine. If a subject lists several I/O models, the copy contains a separate subject for each of these
// models.
func (o Options) ApplyForThisMachine(s Scenario) (Scenario, error) {
	switch {
	case o.Connections < 0:
		return s, Errorf("limit of %d connections; expected 1 or more, or 0 for the scenario's", o.Connections)
	case o.Rounds < 0:
		return s, Errorf("%d rounds; expected 1 or more, or 0 for the scenario's", o.Rounds)
	}
	scale, err := s.findScaleOrFull(o.Scale)
	if err != nil {
		return s, err
	}
	s.Subjects = slices.Concat(s.Subjects, o.Subjects)
	was := s.selectRunnableSubjectsPerModel(readHostLimits())
	s = scale.reduceScenario(was)
	s = Scale{Connections: o.Connections, Rounds: o.Rounds}.reduceScenario(s)
	s.Answer = slices.Clone(s.Answer)
	for i := range s.Workloads {
		w := s.Workloads[i]
		for j := range w.Phases { // the phases are copies
			p := &w.Phases[j]
			if o.Duration != 0 && p.Heartbeat == 0 && slices.Contains([]string{Load, Flood, Publish, Jobs, Attack}, p.Do) {
				p.For = Duration(o.Duration)
			}
		}
		w = w.WithDefaults()
		w.Caption = w.captionOrGenerated()
		s.Workloads[i] = w
		for j := range s.Answer {
			if c := &s.Answer[j]; c.Workload == w.Name {
				c.Text = w.fillPlaceholders(c.Text)
			}
		}
	}
	s.noteAndMarkReductions(&was, o)
	s.noteSubjectsWithFewerConns(o.Only)
	return s, s.Validate()
}

func (o Options) describeReductions() string {
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
	return JoinAsEnglishList(words)
}

// WithPeersExecutable returns a copy of the scenario for an executable that was built from the module tools/peers. In
// the commands of the copy, the path of the executable replaces "{peers}".
func (s Scenario) WithPeersExecutable(executable string) (Scenario, error) {
	path, err := filepath.Abs(executable) // a relative path would be searched in PATH
	if err == nil {
		_, err = os.Stat(path)
	}
	if err != nil {
		return s, Errorf("executable of the peers: %v; build it with go build -C tools/peers -o FILE .", err)
	}
	s.Subjects = slices.Clone(s.Subjects)
	for i := range s.Subjects {
		x := &s.Subjects[i]
		x.Command = x.Command.replaceInAllWords(peersPlaceholder, path)
	}
	return s, nil
}

// SubjectsNeedingPeers returns the names of the subjects that cannot run without a call of WithPeersExecutable.
func (s *Scenario) SubjectsNeedingPeers() (names []string) {
	for _, x := range s.Subjects {
		if x.commandHasPlaceholder(peersPlaceholder) {
			names = append(names, x.Name)
		}
	}
	return names
}

type hostLimits struct {
	// modelError returns the reason why a server cannot use an I/O model, or nil. programError returns the reason why a
	// program cannot be found, or nil.
	modelError   func(model string) error
	programError func(program string) error
	// maxTableConns is the number of connections that a server with one descriptor table can have open. 0 means any
	// number. tableLimit describes the limit.
	maxTableConns int
	tableLimit    string
}

var anyHost = hostLimits{modelError: func(string) error { return nil }, programError: func(string) error { return nil }}

// ownDescriptors is the number of descriptors that a server needs in addition to the load generator's connections.
const ownDescriptors = 100

func readHostLimits() hostLimits {
	h := hostLimits{modelError: func(model string) error {
		_, err := models.FindAvailable(model)
		return err
	}, programError: func(program string) error {
		_, err := exec.LookPath(program)
		return err
	}}
	_, hard, ok := sock.DescriptorLimit()
	if ok && hard <= 1<<30 {
		h.maxTableConns = max(int(hard)-sock.ReservedDescriptors-ownDescriptors, 1)
		h.tableLimit = fmt.Sprintf("one process has one table of descriptors, and RLIMIT_NOFILE, hard, is %d", hard)
	}
	return h
}

// selectRunnableSubjectsPerModel returns the scenario with only the subjects that can run on h. For each of the other
// subjects, it adds a note. If a subject lists several I/O models, it is replaced by one subject per model. If OneTable
// of a subject is set, its MaxConns is set to h.maxTableConns.
func (s Scenario) selectRunnableSubjectsPerModel(h hostLimits) Scenario {
	subjects := s.Subjects
	s.Subjects = nil
	for _, x := range subjects {
		if x.OneTable && h.maxTableConns > 0 {
			x.MaxConns, x.Wall, x.OneTable = h.maxTableConns, h.tableLimit, false
		}
		if x.Optional {
			if err := h.programError(x.Command[0]); err != nil {
				s.addNote("%s is left out, as its program is not installed: %v.", x.Name, err)
				continue
			}
			x.Optional = false
		}
		if len(x.Models) == 0 {
			s.Subjects = append(s.Subjects, x)
			continue
		}
		for _, model := range x.Models {
			one := x.withModel(model)
			if err := h.modelError(model); err != nil {
				s.addNote("%s is left out: %v.", one.Name, err)
				continue
			}
			s.Subjects = append(s.Subjects, one)
		}
	}
	return s
}

func (s Subject) withModel(model string) Subject {
	s.Name, s.Models = strings.ReplaceAll(s.Name, modelPlaceholder, model), nil
	s.Command = s.Command.replaceInAllWords(modelPlaceholder, model)
	return s
}

func (s *Scenario) noteSubjectsWithFewerConns(filter *regexp.Regexp) {
	for _, x := range s.Subjects {
		var names []string
		for _, w := range s.Workloads {
			if x.RunsUnderWorkload(w) && isPairSelected(filter, w, x) && !w.Whole && w.WithMaxConns(x.MaxConns).Connections < w.Connections {
				names = append(names, w.Name)
			}
		}
		if len(names) == 0 {
			continue
		}
		reason := ""
		if x.Wall != "" {
			reason = ": " + x.Wall
		}
		s.addNote("%s has %s connections under %s, which have more%s.", x.Name, format.Count(x.MaxConns), JoinAsEnglishList(names), reason)
	}
}

// Scale describes how to make a scenario smaller. A zero field changes nothing.
type Scale struct {
	// Rounds replaces the number of rounds of the scenario and of its workloads.
	Rounds      int `json:"rounds,omitempty" toml:"rounds"`
	Connections int `json:"connections,omitempty" toml:"connections"`
	// WarmUp limits the warm-up of phases. Hold limits the duration of Hold phases, and Duration that of others.
	Duration Duration `json:"duration,omitempty" toml:"duration"`
	WarmUp   Duration `json:"warm_up,omitempty" toml:"warm_up"`
	Hold     Duration `json:"hold,omitempty" toml:"hold"`
	// Without lists workloads and subjects to exclude.
	Without []string `json:"without,omitempty" toml:"without"`
}

const fullScale = "full"

var scaleName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-z][a-z-]{0,39}$`) })

func (x Scale) validateScaleAndName(name string) error {
	switch {
	case !scaleName().MatchString(name) || name == fullScale:
		return Errorf("scale name is %q; expected 1 to 40 lower-case letters and dashes, and not %s, which is the scenario as written", name, fullScale)
	case x.Rounds < 0 || x.Connections < 0 || x.Duration < 0 || x.WarmUp < 0 || x.Hold < 0:
		return Errorf("negative number or duration; expected 0 or more")
	}
	return nil
}

func (s *Scenario) findScaleOrFull(name string) (Scale, error) {
	x, ok := s.Scales[name]
	if !ok && name != "" && name != fullScale {
		return x, Errorf("scenario %s has no scale %q; expected one of %s", s.Name, name,
			strings.Join(append(slices.Sorted(maps.Keys(s.Scales)), fullScale), ", "))
	}
	return x, nil
}

// reduceScenario returns a copy of s with the scale applied. If the scale makes two different workloads the same, the
// copy contains only the first of them.
func (x Scale) reduceScenario(s Scenario) Scenario {
	without := func(name string) bool { return slices.Contains(x.Without, name) }
	s.Subjects = slices.DeleteFunc(slices.Clone(s.Subjects), func(x Subject) bool { return without(x.Name) })
	if x.Rounds > 0 {
		s.Rounds = x.Rounds
	}
	was := s.Workloads
	s.Workloads = nil
	for _, w := range was {
		if without(w.Name) {
			continue
		}
		w = x.limitWorkload(w)
		if x.Rounds > 0 {
			w.Rounds = 0
		}
		if !slices.ContainsFunc(s.Workloads, func(before Workload) bool {
			return generatesSameLoadIgnoringHolds(w, before) && !generatesSameLoadIgnoringHolds(*findWorkload(was, w.Name), *findWorkload(was, before.Name))
		}) {
			s.Workloads = append(s.Workloads, w)
		}
	}
	return s
}

// limitWorkload returns w with the limits of the scale applied. If this shortens a Hold phase, it also shortens the
// heartbeat interval of the phase in proportion.
func (x Scale) limitWorkload(w Workload) Workload {
	if x.Connections > 0 {
		w.Connections = min(w.Connections, x.Connections)
	}
	atMost := func(d, most Duration) Duration {
		if most > 0 {
			return min(d, most)
		}
		return d
	}
	w.Phases = slices.Clone(w.Phases)
	for i := range w.Phases {
		p := &w.Phases[i]
		p.WarmUp = atMost(p.WarmUp, x.WarmUp)
		if x.Connections > 0 {
			p.Topics = min(p.Topics, x.Connections)
		}
		if p.Do != Hold {
			p.For = atMost(p.For, x.Duration)
			continue
		}
		was := p.For
		p.For = atMost(p.For, x.Hold)
		if p.Heartbeat > 0 && p.For < was {
			p.Heartbeat = max(Duration(float64(p.Heartbeat)*float64(p.For)/float64(was)), Duration(minHeartbeat))
		}
	}
	return w
}

// noteAndMarkReductions compares s with the original scenario. It adds a note on each difference, with the reason. It
// sets Workload.Reduced for each workload that has fewer connections or different times.
func (s *Scenario) noteAndMarkReductions(original *Scenario, o Options) {
	reason := o.describeReductions()
	if s.Rounds != original.Rounds {
		s.addNote("Rounds: %d instead of %d.", s.Rounds, original.Rounds)
	}
	var left, shorter []string
	for i := range original.Subjects {
		if x := &original.Subjects[i]; s.FindSubject(x.Name) == nil {
			left = append(left, x.Name)
		}
	}
	for i := range original.Workloads {
		old := &original.Workloads[i]
		w := s.FindWorkload(old.Name)
		switch {
		case !original.hasSubjectForWorkload(*old, o.Only):
			continue
		case w == nil:
			left = append(left, old.Name)
			continue
		case w.Connections != old.Connections:
			s.addNote("%s has %s connections instead of %s (%s).", w.Name, format.Count(w.Connections), format.Count(old.Connections), reason)
		}
		if !reflect.DeepEqual(w.WithDefaults().Phases, old.WithDefaults().Phases) {
			shorter = append(shorter, w.Name)
		}
		w.Reduced = w.Connections < old.Connections || slices.Contains(shorter, w.Name)
	}
	if len(left) > 0 {
		s.addNote("Left out: %s (%s).", JoinAsEnglishList(left), reason)
	}
	switch {
	case len(shorter) == len(s.Workloads) && len(shorter) > 1:
		s.addNote("The times of all workloads are changed (%s).", reason)
	case len(shorter) > 0:
		s.addNote("Times are changed of %s (%s).", JoinAsEnglishList(shorter), reason)
	}
}

// generatesSameLoadIgnoringHolds reports whether two workloads generate the same load. Their names may differ. The
// durations of Hold phases may differ, too, if these phases have no heartbeats.
func generatesSameLoadIgnoringHolds(a, b Workload) bool {
	for _, w := range []*Workload{&a, &b} {
		*w = w.WithDefaults()
		w.Name, w.Caption, w.Rounds, w.Whole, w.Reduced = "", "", 0, false, false
		for i := range w.Phases {
			if p := &w.Phases[i]; p.Do == Hold && p.Heartbeat == 0 {
				p.For = 0
			}
		}
	}
	return reflect.DeepEqual(a, b)
}
