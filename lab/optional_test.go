package lab

import (
	"errors"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// asking are expressions as --with has them.
func asking(texts ...string) (all []*regexp.Regexp) {
	for _, text := range texts {
		all = append(all, regexp.MustCompile(text))
	}
	return all
}

// choosy is a scenario of which a workload, a subject and one with models are optional.
func choosy() Scenario {
	return Scenario{
		Name: "choosy", Rounds: 1,
		Subjects: []Subject{
			{Name: "net", Command: Words{"net", "{addr}"}},
			{Name: "other", Command: Words{"other", "{addr}"}, Optional: true},
			{Name: "mine-{model}", Command: Words{"mine", "{model}", "{addr}"}, Models: []string{"goroutine", "auto"}, Optional: true},
		},
		Workloads: []Workload{small("few"), small("many")},
		Scales:    map[string]Scale{"small": {Without: []string{"other"}}},
	}
}

func TestOptional(t *testing.T) {
	s := choosy()
	s.Workloads[1].Optional, s.Workloads[1].Connections = true, 9
	if want := []string{"many", "other", "mine-goroutine", "mine-auto"}; !slices.Equal(s.Optional(), want) {
		t.Errorf("got %q, want %q", s.Optional(), want)
	}
	for _, test := range []struct {
		o    Options
		want string
	}{
		{Options{}, "few/net"},
		{Options{With: asking("^other$")}, "few/net few/other"},
		{Options{With: asking("many", "auto")}, "few/net few/mine-auto many/net many/mine-auto"},
		{Options{With: asking("")}, "few/net few/other few/mine-goroutine few/mine-auto many/net many/other many/mine-goroutine many/mine-auto"},
		{Options{With: asking("other"), Scale: "small"}, "few/net"},
	} {
		ready, err := s.With(test.o)
		if err != nil {
			t.Fatal(err)
		}
		steps, err := ready.plan(nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, st := range steps {
			got = append(got, st.workload.Name+"/"+st.subject.Name)
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%v: got %s, want %s", test.o.With, strings.Join(got, " "), test.want)
		}
	}
	if !s.Workloads[1].Optional || !s.Subjects[1].Optional {
		t.Error("the scenario itself was changed")
	}
}

// TestAskedForNothing asks for what no scenario has, for what only one of several has, and
// for runs of what is optional.
func TestAskedForNothing(t *testing.T) {
	plain := choosy()
	plain.Name, plain.Subjects = "plain", plain.Subjects[:1]
	for _, test := range []struct {
		all  []Scenario
		o    Options
		want string
	}{
		{[]Scenario{choosy()}, Options{With: asking("other", "nest")}, `"nest" matches no workload and no subject; expected to match some of those that are optional: other, mine-goroutine, mine-auto`},
		{[]Scenario{plain}, Options{With: asking("x")}, `"x" is asked for; expected nothing to be, as nothing is optional here`},
		{[]Scenario{plain, choosy()}, Options{With: asking("other")}, ""},
		{[]Scenario{plain}, Options{With: asking("net", "few")}, ""},
		{[]Scenario{choosy()}, Options{Only: regexp.MustCompile("few/other")}, `"few/other" matches only what is optional; expected that to be asked for, as by --with`},
		{[]Scenario{choosy()}, Options{Only: regexp.MustCompile("few/none")}, `"few/none" matches no run`},
	} {
		_, err := newBook(test.all, test.o)
		var wrong ScenarioError
		if test.want == "" && err != nil || test.want != "" && (!errors.As(err, &wrong) || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("got %v, want a ScenarioError with %q", err, test.want)
		}
	}
}

// TestPlaceholders has commands with what is filled in for others only.
func TestPlaceholders(t *testing.T) {
	for _, test := range []struct {
		subject Subject
		want    string
	}{
		{Subject{Command: Words{"x", "{addr}", "{workers}"}}, "{workers} in its command stands for nothing; expected some of {self}, {addr}, {port}, {app}, "},
		{Subject{Command: Words{"x", "{addr}", "{peers}"}}, `{peers} in its command stands for nothing; expected "bench overload --peers FILE", or the program's path`},
		{Subject{Command: Words{"{peers}", "{addr}"}, Optional: true}, ""},
		{Subject{Command: Words{"{self}", "offer", "{n}"}, Side: &Side{}}, "{n} in its command stands for nothing; expected some of {self}"},
		{Subject{Command: Words{"{self}", "offer"}, Side: &Side{}}, ""},
		{Subject{Command: Words{"x", "{port}", "{workers}"}, Side: &Side{Server: true}}, ""},
		{Subject{Command: Words{"x", "{port}", "{app}"}, Side: &Side{Server: true}}, "{app} in its command stands for nothing; expected some of {self}, {addr}, {port}, {workers}"},
		{Subject{Command: Words{"x", "{n}"}, Parks: true}, ""},
		{Subject{Command: Words{"x", "{addr}", "{other}", "{test}", "{m}", "{nn}", "{}", "{PORT}", "{\"app\":1}"}}, ""},
		{Subject{Command: Words{"x", "{port}", "a={prot}"}}, "{prot} in its command stands for nothing; did you mean {port}?"},
		{Subject{Command: Words{"x", "{port}{prt}"}}, "{prt} in its command stands for nothing; did you mean {port}?"},
		{Subject{Command: Words{"x", "{port}", "{apps}"}}, "{apps} in its command stands for nothing; did you mean {app}?"},
		{Subject{Command: Words{"x", "{port}", "{Addr}"}}, "{Addr} in its command stands for nothing; did you mean {addr}?"},
		{Subject{Command: Words{"x", "{port}", "{modle}"}}, "{modle} in its command stands for nothing; did you mean {model}?"},
	} {
		test.subject.Name = "a"
		err := test.subject.check()
		var wrong ScenarioError
		if test.want == "" && err != nil || test.want != "" && (!errors.As(err, &wrong) || !strings.HasPrefix(err.Error(), "subject a: "+test.want)) {
			t.Errorf("%v: got %v, want a ScenarioError with %q", test.subject.Command, err, test.want)
		}
	}
}
