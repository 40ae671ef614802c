package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// Report is the answer to a scenario. It is plain data: as JSON it holds every
// run raw. Durations are nanoseconds in JSON.
type Report struct {
	// Scenario is what was run, options applied.
	Scenario Scenario `json:"scenario"`
	Machine  Machine  `json:"machine"`
	Pinning  Pinning  `json:"pinning"`
	// Date is when the first run began.
	Date time.Time `json:"date"`
	// Command is the command line that made the report.
	Command string `json:"command"`
	// Notes are sentences on what is missing or was different.
	Notes []string `json:"notes,omitempty"`
	// Planned is how many runs there were to be; Runs are those that were,
	// in the order of time.
	Planned int         `json:"planned"`
	Runs    []RunRecord `json:"runs"`
	// Verdicts are what follows from the runs: they are worked out when these have ended.
	Verdicts []Verdict `json:"verdicts,omitempty"`
}

// Machine is what a report was made on. What the system does not tell is empty.
type Machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel,omitempty"`
	CPU    string `json:"cpu,omitempty"`
	// CPUs is how many this process may use.
	CPUs int `json:"cpus"`
	// Memory is in bytes.
	Memory int64 `json:"memory,omitempty"`
	// Go is the version of Go that the lab was built with.
	Go string `json:"go"`
}

// thisMachine is the machine that the lab runs on.
func thisMachine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	if read, err := procfs.ReadMachine(); err == nil {
		m.Kernel, m.CPU, m.Memory = read.Kernel, read.CPUModel, read.Memory
	}
	return m
}

func newReport(s Scenario, b *Book, planned int) *Report {
	return &Report{
		Scenario: s, Machine: b.Machine, Pinning: choosePinning(), Date: b.Date,
		Command: b.Command, Notes: s.notes, Planned: planned, Runs: []RunRecord{},
	}
}

// note notes something, once: a report that is resumed has the notes that it had.
func (r *Report) note(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.Notes, text) {
		r.Notes = append(r.Notes, text)
	}
}

// Failed counts the runs that failed.
func (r *Report) Failed() int {
	n := 0
	for i := range r.Runs {
		if r.Runs[i].failed() {
			n++
		}
	}
	return n
}

// WriteJSON writes the report as one indented JSON object.
func (r *Report) WriteJSON(w io.Writer) error { return writeJSON(w, r) }

func writeJSON(w io.Writer, report any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(report)
}
