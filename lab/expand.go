package lab

import (
	"fmt"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
)

const (
	// modelMark stands for a model's name in a subject with models.
	modelMark = "{model}"
	// autoModel is the model that chooses; it can run everywhere.
	autoModel = "auto"
)

// modelNames are the I/O models, whether they can run here or not.
func modelNames() (names []string) {
	for _, m := range models.All() {
		names = append(names, m.Name)
	}
	return names
}

// host is what of a machine scenarios depend on before they are run.
type host struct {
	// forbids says why a model can't run, nil if it can.
	forbids func(model string) error
	// table is how many connections a server with one table of descriptors can hold, and
	// wall what stops it there; 0 if nothing does.
	table int
	wall  string
}

// thisHost is the machine that the lab runs on.
func thisHost() host {
	h := host{forbids: forbidden}
	_, hard, ok := sock.DescriptorLimit()
	if ok && hard <= 1<<30 {
		h.table = max(int(hard)-sock.Reserve-room, 1)
		h.wall = fmt.Sprintf("one process has one table of descriptors, and RLIMIT_NOFILE, hard, is %d", hard)
	}
	return h
}

func forbidden(model string) error {
	if model == autoModel {
		return nil
	}
	_, err := models.Find(model)
	return err
}

// expanded returns the scenario as it is on a machine: a subject for each model that can
// run there, and how many connections each can hold. The notes say what can't be run.
func (s Scenario) expanded(h host) Scenario {
	subjects := s.Subjects
	s.Subjects = nil
	for _, x := range subjects {
		x = x.tabled(h)
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
	fill := strings.NewReplacer(modelMark, model)
	s.Name, s.Models = fill.Replace(s.Name), nil
	s.Command = slices.Clone(s.Command)
	for i, word := range s.Command {
		s.Command[i] = fill.Replace(word)
	}
	return s
}

// tabled is the subject with as many connections as descriptors allow on a machine.
func (s Subject) tabled(h host) Subject {
	switch {
	case h.table == 0:
	case s.OneTable:
		s.MaxConns, s.Wall = h.table, h.wall
	case s.PerTable:
		s.PerProcess = max(h.table*3/4, 1)
	}
	s.OneTable, s.PerTable = false, false
	return s
}

// bounded adds to the notes which subjects have fewer connections than their workloads.
func (s *Scenario) bounded() {
	for _, x := range s.Subjects {
		var names []string
		for _, w := range s.Workloads {
			if s.chosen(w, x) && !w.Full && w.heldBy(x.MaxConns).Connections < w.Connections {
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
		s.note("%s has %s connections under %s, which have more%s.", x.Name, thousands(float64(x.MaxConns)), joined(names), why)
	}
}
