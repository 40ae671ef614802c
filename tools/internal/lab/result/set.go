// Package result defines the records of runs (phases, samples and figures) and the reports that contain them.
package result

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// Set contains the reports of all scenarios that one command ran. In JSON, durations are numbers of nanoseconds.
type Set struct {
	// Format identifies the JSON format. Its value is the constant Format.
	Format string `json:"format"`
	// Version is Myriad's version, "" if unknown.
	Version string  `json:"version"`
	Machine Machine `json:"machine"`
	// Date is the time when the first run began. Took is the time from then to the end of the last run.
	Date    time.Time     `json:"date"`
	Took    time.Duration `json:"took"`
	Command string        `json:"command"`
	// Scale is the requested scale, or "" if scenarios were run as written.
	Scale string `json:"scale,omitempty"`
	// Strict makes those claims required whose Fails is scenario.IfStrict.
	Strict  bool      `json:"strict,omitempty"`
	Reports []*Report `json:"reports"`
}

const (
	// Format identifies the JSON format of a Set.
	Format      = "myriad-bench-2"
	maxSetBytes = 512 << 20
)

type Report struct {
	// Scenario is the scenario as it was run, with options applied.
	Scenario scenario.Scenario `json:"scenario"`
	Pinning  Pinning           `json:"pinning"`
	// Notes contains sentences about missing runs and about differences from the original scenario.
	Notes []string `json:"notes,omitempty"`
	// Planned is the planned number of runs. Runs contains the executed runs in chronological order.
	Planned  int       `json:"planned"`
	Runs     []Run     `json:"runs"`
	Verdicts []Verdict `json:"verdicts,omitempty"`
}

// Verdict states how a subject compares with a published result, or whether it meets a claim.
type Verdict struct {
	// Of is the title of the reference table, or the text of the claim.
	Of string `json:"of"`
	// Outcome is Ahead, Level, Behind, Uncertain or NotMeasured for a reference table. For a claim it is Met, NotMet,
	// Uncertain or NotMeasured.
	Outcome string `json:"outcome,omitempty"`
	// Text explains the outcome in a sentence.
	Text string `json:"text"`
	// Failed reports that a required claim was not met.
	Failed bool `json:"failed,omitempty"`
}

const (
	Met         = "met"
	NotMet      = "NOT MET"
	NotMeasured = "not measured"
	Uncertain   = "not certain" // the runs have caveats
	Ahead       = "ahead"
	Level       = "level"
	Behind      = "behind"
)

// Machine describes the machine on which a command ran scenarios. A zero field means that the value is unknown.
type Machine struct {
	OS     string `json:"os"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel,omitempty"`
	CPU    string `json:"cpu,omitempty"`
	// CPUs is the number of CPUs that this process may use.
	CPUs int `json:"cpus"`
	// Memory is the memory of the machine in bytes.
	Memory int64 `json:"memory,omitempty"`
	// Go is the Go version that built this program.
	Go string `json:"go"`
}

func DescribeThisMachine() Machine {
	m := Machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version()}
	if read, err := procfs.ReadKernelCPUsAndMemory(); err == nil {
		m.Kernel, m.CPU, m.Memory = read.Kernel, read.CPUModel, read.Memory
	}
	return m
}

func (m Machine) String() string {
	words := []string{m.CPU, fmt.Sprintf("%d CPUs", m.CPUs)}
	if m.CPU == "" {
		words = words[1:]
	}
	if m.Memory > 0 {
		words = append(words, fmt.Sprintf("%.1f GiB", float64(m.Memory)/(1<<30)))
	}
	system := strings.Join(strings.Fields(m.OS+" "+m.Kernel+" "+m.Arch), " ")
	return strings.Join(append(words, system, m.Go), "; ")
}

// Pinning lists the CPUs on which the server and the load generator run.
type Pinning struct {
	// Server and Load are the numbers of these CPUs. They are nil if nothing is pinned.
	Server []int `json:"server,omitempty"`
	Load   []int `json:"load,omitempty"`
	// Why is the reason why nothing is pinned, or "".
	Why string `json:"why,omitempty"`
}

func (p Pinning) Pinned() bool { return len(p.Server) > 0 }

func (p Pinning) String() string {
	if !p.Pinned() {
		return "none: " + p.Why
	}
	return fmt.Sprintf("server on CPU %s, load on CPU %s", formatCPUs(p.Server), formatCPUs(p.Load))
}

func formatCPUs(cpus []int) string {
	return strings.Trim(strings.Join(strings.Fields(fmt.Sprint(cpus)), ","), "[]")
}

func (r *Report) AddNote(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

func (s *Set) CountRuns() (n int) {
	for _, r := range s.Reports {
		n += len(r.Runs)
	}
	return n
}

func (s *Set) CountFailedRunsAndClaims() (runs, claims int) {
	for _, r := range s.Reports {
		for i := range r.Runs {
			if r.Runs[i].Error != "" {
				runs++
			}
		}
		for _, v := range r.Verdicts {
			if v.Failed {
				claims++
			}
		}
	}
	return runs, claims
}

// Interrupted is the value of Run.Skipped for a run that was interrupted.
const Interrupted = "interrupted"

// TrimForRepository makes the set small enough for a repository. It removes phases, samples, timelines, logs and
// interrupted runs. It sets the origin of all other runs.
func (s *Set) TrimForRepository(origin Origin) {
	for _, r := range s.Reports {
		r.Runs = slices.DeleteFunc(r.Runs, func(x Run) bool { return x.Skipped == Interrupted })
		for i := range r.Runs {
			run := &r.Runs[i]
			run.Phases, run.Samples, run.Timeline, run.Log, run.Broadcaster = nil, nil, nil, nil, nil
			run.Origin = origin
		}
	}
}

// AddMissingRuns copies runs of an earlier set into s. It does not copy a run if s already has runs of the same
// scenario, workload and subject.
func (s *Set) AddMissingRuns(earlier *Set) {
	for _, old := range earlier.Reports {
		i := slices.IndexFunc(s.Reports, func(r *Report) bool { return r.Scenario.Name == old.Scenario.Name })
		if i < 0 {
			s.Reports = append(s.Reports, old)
			continue
		}
		r, added := s.Reports[i], []Run(nil)
		for _, run := range old.Runs {
			if slices.ContainsFunc(r.Runs, func(x Run) bool { return x.Workload == run.Workload && x.Subject == run.Subject }) {
				continue
			}
			added = append(added, run)
			if r.Scenario.FindWorkload(run.Workload) == nil {
				r.Scenario.Workloads = append(r.Scenario.Workloads, *old.Scenario.FindWorkload(run.Workload))
			}
			if r.Scenario.FindSubject(run.Subject) == nil {
				r.Scenario.Subjects = append(r.Scenario.Subjects, *old.Scenario.FindSubject(run.Subject))
			}
		}
		r.Runs = append(r.Runs, added...)
		r.Planned += len(added)
	}
}

// WriteJSON writes the set as an indented JSON object.
func (s *Set) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(s)
}

// ReadSet reads a set that Set.WriteJSON has written. It returns an error if the JSON is longer than 512 MiB.
func ReadSet(in io.Reader) (*Set, error) {
	limited := &io.LimitedReader{R: in, N: maxSetBytes + 1}
	decoder := json.NewDecoder(limited)
	var s Set
	err := decoder.Decode(&s)
	if limited.N == 0 {
		return nil, fmt.Errorf("longer than %d bytes; expected the report.json of a bench", maxSetBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("%w; expected the report.json of a bench", err)
	}
	if s.Format != Format {
		return nil, fmt.Errorf("format is %.40q; expected %q, a report.json of this version of Myriad", s.Format, Format)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("data after the report; expected one report in a file")
	}
	if slices.Contains(s.Reports, nil) {
		return nil, errors.New("a report in the file is null; expected the report.json of a bench")
	}
	return &s, nil
}

// BeginsLikeSet reports whether the first bytes of a file look like the JSON of a Set of any version.
func BeginsLikeSet(beginning []byte) bool {
	text := strings.TrimLeft(string(beginning), " \t\r\n{")
	return strings.HasPrefix(text, `"format"`)
}

// WriteFileAtomically creates or replaces a file in dir. The function write produces the content. Readers never see a
// partly written file. If write returns an error, an existing file keeps its content.
func WriteFileAtomically(dir, name string, write func(io.Writer) error) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot write %s: %w", filepath.Join(dir, name), err)
		}
	}()
	f, err := os.CreateTemp(dir, "."+name+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // has no effect after the rename
	if err = write(f); err == nil {
		err = errors.Join(f.Chmod(0o644), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), filepath.Join(dir, name))
}
