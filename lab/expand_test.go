package lab

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// narrow is a machine without io_uring, where a process has 1,000 connections.
var narrow = host{
	forbids: func(model string) error {
		if model == "uring" {
			return errors.New("io_uring is forbidden")
		}
		return nil
	},
	table: 1000, wall: "one table",
}

func TestExpanded(t *testing.T) {
	s := Scenario{
		Name: "test", Rounds: 1,
		Subjects: []Subject{
			{Name: "net", Command: Words{"net", "{addr}"}, OneTable: true},
			{Name: "m-{model}", Command: Words{"serve", "--model={model}", "{addr}"}, Models: []string{"epoll", "uring", "auto"}, PerTable: true},
			{Name: "other", Command: Words{"other", "{addr}"}, MaxConns: 7, Wall: "it is small"},
		},
		Workloads: []Workload{small("one"), small("two"), {Name: "full", Kind: Idle, App: Echo, Connections: 5000, Size: 16, Pipeline: 1, Hold: minHold, Full: true}},
	}
	s.Workloads[1].Connections = 5000
	got := s.expanded(narrow)
	if err := got.check(); err != nil {
		t.Fatal(err)
	}
	var names, commands []string
	for _, x := range got.Subjects {
		names, commands = append(names, x.Name), append(commands, strings.Join(x.Command, " "))
	}
	if want := []string{"net", "m-epoll", "m-auto", "other"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	if want := []string{"net {addr}", "serve --model=epoll {addr}", "serve --model=auto {addr}", "other {addr}"}; !slices.Equal(commands, want) {
		t.Errorf("got %q, want %q", commands, want)
	}
	if x := got.Subjects[0]; x.MaxConns != 1000 || x.Wall != "one table" || x.OneTable {
		t.Errorf("one table: got %+v", x)
	}
	if x := got.Subjects[1]; x.PerProcess != 750 || x.MaxConns != 0 || x.PerTable || x.Models != nil {
		t.Errorf("a table for each process: got %+v", x)
	}
	got.bounded()
	if want := []string{
		"m-uring is left out: io_uring is forbidden.",
		"net has 1,000 connections under two, which have more: one table.",
		"other has 7 connections under two, which have more: it is small.",
	}; !slices.Equal(got.notes, want) {
		t.Errorf("got notes %q, want %q", got.notes, want)
	}
	if s.Subjects[1].Command[1] != "--model={model}" || !s.Subjects[0].OneTable || len(s.notes) > 0 {
		t.Errorf("the scenario itself was changed: %+v", s)
	}
	again := got.expanded(narrow)
	if len(again.Subjects) != len(got.Subjects) || again.Subjects[0].MaxConns != 1000 || len(again.notes) != len(got.notes) {
		t.Errorf("once more: got %+v, want the same", again)
	}
}

// TestExpandedUnlimited has a machine without a limit of descriptors.
func TestExpandedUnlimited(t *testing.T) {
	s := Scenario{Subjects: []Subject{{Name: "a", OneTable: true}, {Name: "b", PerTable: true}}}
	s = s.expanded(ideal)
	if a, b := s.Subjects[0], s.Subjects[1]; a.MaxConns != 0 || b.PerProcess != 0 || a.OneTable || b.PerTable {
		t.Errorf("got %+v and %+v, want no bounds", a, b)
	}
}

// TestThisHost has every model either run here, or be forbidden with a reason.
func TestThisHost(t *testing.T) {
	h := thisHost()
	if err := h.forbids(autoModel); err != nil {
		t.Errorf("auto: %v", err)
	}
	if err := h.forbids("goroutine"); err != nil {
		t.Errorf("goroutine: %v", err)
	}
	if (h.table > 0) != (h.wall != "") {
		t.Errorf("got %+v, want a wall where there is a limit", h)
	}
}

func TestJoined(t *testing.T) {
	for want, names := range map[string][]string{"": nil, "a": {"a"}, "a and b": {"a", "b"}, "a, b and c": {"a", "b", "c"}} {
		if got := joined(names); got != want {
			t.Errorf("%q: got %q", want, got)
		}
	}
}
