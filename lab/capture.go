package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// What a server does while its window runs is asked of the server itself, where it shows
// its figures: two requests at the most, a goroutine each, from the begin of the window
// until the answers are whole, which may be after its end. The run waits for both before
// its server is ended.

const (
	// longestTrace and longestProfile are how long a recording is at the most, in
	// seconds: a busy server fills megabytes of trace in each.
	longestTrace   = 5
	longestProfile = 60
	// maxCaptured bounds a file, in bytes, and captureGrace how much longer than the
	// recording a request may take.
	maxCaptured  = 256 << 20
	captureGrace = 15 * time.Second
	// capturedDir is the folder of the files in a report's directory.
	capturedDir = "captured"
)

// capture says of which runs something is to be captured.
type capture struct {
	dir            string // of the report
	trace, profile *regexp.Regexp
}

// recording is one thing to be captured of a run.
type recording struct {
	what, path, ending string
	longest            int // seconds
}

var (
	traced   = recording{what: "trace", path: "/debug/trace", ending: ".trace", longest: longestTrace}
	profiled = recording{what: "CPU profile", path: "/debug/pprof/profile", ending: ".pprof", longest: longestProfile}
)

// asked lists what is asked for of a step.
func (c *capture) asked(s step) []recording {
	var all []recording
	name := s.workload.Name + "/" + s.subject.Name
	if c.trace != nil && c.trace.MatchString(name) {
		all = append(all, traced)
	}
	if c.profile != nil && c.profile.MatchString(name) {
		all = append(all, profiled)
	}
	return all
}

// capturable says whether there is a window to be captured, and a server that can tell.
func (s step) capturable() bool {
	return s.subject.shows() && slices.Contains([]Kind{Throughput, Heartbeats, Flood}, s.workload.Kind)
}

// checkCapture returns a ScenarioError when nothing could be captured of what was asked
// for, and notes of what it can't.
func (s *session) checkCapture() error {
	c := &s.runner.capture
	if c.trace == nil && c.profile == nil {
		return nil
	}
	if c.dir == "" {
		return wrong("a trace or a profile is asked for and there is no directory; expected one for the report")
	}
	var can bool
	for i, steps := range s.plans {
		var without []string
		for _, st := range steps {
			name := st.workload.Name + "/" + st.subject.Name
			switch {
			case len(c.asked(st)) == 0 || slices.Contains(without, name):
			case st.capturable():
				can = true
			default:
				without = append(without, name)
			}
		}
		if len(without) > 0 {
			s.book.Reports[i].note("Not captured, for want of {admin} in the command or of a window: %s.", strings.Join(without, ", "))
		}
	}
	if !can {
		return wrong("no run can be captured; expected to match a WORKLOAD/SUBJECT with a window, " +
			"whose command says where it shows its figures, such as --admin {admin}")
	}
	return nil
}

// captures is the capturing of one run. A nil one captures nothing.
type captures struct {
	dir, name string
	admin     string
	window    time.Duration
	all       []recording
	record    *RunRecord
	wait      sync.WaitGroup

	mu  sync.Mutex
	got []string // what was captured, or why not
}

// of is the capturing of a step, nil where nothing is to be captured.
func (c *capture) of(s step, admin string, rec *RunRecord) *captures {
	all := c.asked(s)
	if len(all) == 0 || !s.capturable() {
		return nil
	}
	name := fmt.Sprintf("%s-%s-%s-%d", s.scenario, s.workload.Name, s.subject.Name, s.round)
	if s.attempt > 1 {
		name += fmt.Sprintf("-%d", s.attempt)
	}
	return &captures{dir: c.dir, name: fileName(name), admin: admin, window: s.workload.Duration, all: all, record: rec}
}

// fileName is a name that every system can have for a file.
func fileName(name string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c) {
			return c
		}
		return '_'
	}, name)
}

// begin asks for everything, when the window begins.
func (c *captures) begin(ctx context.Context) {
	if c == nil {
		return
	}
	for _, what := range c.all {
		c.wait.Go(func() { c.take(ctx, what) })
	}
}

// end waits for what was asked for, and marks the run.
func (c *captures) end() {
	if c == nil {
		return
	}
	c.wait.Wait()
	slices.Sort(c.got)
	slices.Sort(c.record.Captured)
	if len(c.got) > 0 {
		c.record.Marks = append(c.record.Marks, Mark{RuleCaptured, strings.Join(c.got, ", ") + ": the figures are disturbed"})
	}
}

// take captures one thing.
func (c *captures) take(ctx context.Context, what recording) {
	seconds := min(max(int(c.window.Seconds()), 1), what.longest)
	name := capturedDir + "/" + c.name + what.ending
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds)*time.Second+captureGrace)
	defer cancel()
	err := writeFile(c.dir, name, func(to io.Writer) error {
		return download(ctx, fmt.Sprintf("http://%s%s?seconds=%d", c.admin, what.path, seconds), to, maxCaptured)
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.got = append(c.got, fmt.Sprintf("no %s: %v", what.what, err))
		return
	}
	c.got = append(c.got, fmt.Sprintf("a %s of %d s", what.what, seconds))
	c.record.Captured = append(c.record.Captured, name)
}

// download writes what is at an address, at most so many bytes.
func download(ctx context.Context, address string, to io.Writer, most int64) error {
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(ask)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 200)) // as much as there is
		return fmt.Errorf("%s: %s", answer.Status, strings.TrimSpace(string(text)))
	}
	n, err := io.Copy(to, io.LimitReader(answer.Body, most+1))
	if err == nil && n > most {
		err = errors.New("more than " + thousands(float64(most)) + " bytes")
	}
	return err
}
