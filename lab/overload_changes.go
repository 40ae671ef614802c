package lab

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// peersMark stands for the executable of the module peers.
const peersMark = "{peers}"

// OverloadChanges are what can be asked of a scenario whose workloads are of kind
// Offering. The zero value changes nothing.
type OverloadChanges struct {
	// Memory, Deadline and Queue are as in Offer, for all workloads; 0 keeps what they
	// have.
	Memory   int64
	Deadline time.Duration
	Queue    int
	// WarmUp is that of all workloads; 0 keeps what they have, and less is none.
	WarmUp time.Duration
	// Peers is the executable of the module peers: it stands for "{peers}" in the
	// commands of optional sides, which are part of the scenario with it.
	Peers string
}

// Apply returns the scenario with the changes; s stays as it is. It fails with a
// ScenarioError when Peers is not there.
func (c OverloadChanges) Apply(s Scenario) (Scenario, error) {
	if c.Peers != "" {
		path, err := filepath.Abs(c.Peers) // or it would be looked for in PATH
		if err != nil {
			return s, err
		}
		if _, err := os.Stat(path); err != nil {
			return s, wrong("the executable of the peers: %v; expected it to be built: go build -C peers -o FILE .", err)
		}
		c.Peers = path
	}
	s.Subjects, s.Workloads = slices.Clone(s.Subjects), slices.Clone(s.Workloads)
	for i := range s.Subjects {
		c.subject(&s.Subjects[i])
	}
	for i := range s.Workloads {
		c.workload(&s.Workloads[i])
	}
	return s, nil
}

// subject has a side of the module peers be part of the scenario.
func (c *OverloadChanges) subject(x *Subject) {
	if x.says(peersMark) && c.Peers != "" {
		x.Optional, x.Command = false, slices.Clone(x.Command)
		for i, word := range x.Command {
			x.Command[i] = strings.ReplaceAll(word, peersMark, c.Peers)
		}
	}
}

// workload changes a workload.
func (c *OverloadChanges) workload(w *Workload) {
	if w.Offer == nil {
		return
	}
	f := *w.Offer
	if c.Memory != 0 {
		f.Memory = c.Memory
	}
	if c.Deadline != 0 {
		f.Deadline = c.Deadline
	}
	if c.Queue != 0 {
		f.Queue = c.Queue
	}
	if c.WarmUp != 0 {
		w.WarmUp = max(c.WarmUp, 0)
	}
	w.Offer = &f
}
