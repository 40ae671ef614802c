package lab

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"
)

// progress tells how far a scenario is.
type progress struct {
	w        io.Writer
	terminal bool
	steps    []step
	began    time.Time
	shown    int // the width of the line that stands on the terminal
}

func newProgress(w io.Writer, steps []step) *progress {
	p := &progress{w: w, steps: steps, began: time.Now()}
	if f, ok := w.(*os.File); ok {
		p.terminal = term.IsTerminal(int(f.Fd()))
	}
	return p
}

// show says that step i begins.
func (p *progress) show(i int) {
	if p.w == nil {
		return
	}
	s := p.steps[i]
	left := p.left(i, time.Since(p.began)).Round(time.Second)
	if p.terminal {
		p.rewrite(fmt.Sprintf("run %d of %d: %s, %s, round %d; %v left",
			i+1, len(p.steps), s.workload.Name, s.subject.Name, s.round, left))
		return
	}
	if i == 0 || p.steps[i-1].workload.Name != s.workload.Name {
		fmt.Fprintf(p.w, "%s: run %d of %d, %v left\n", s.workload.Name, i+1, len(p.steps), left)
	}
}

// left estimates the time from the begin of step i to the end: what the
// workloads say of themselves, corrected by how long the steps so far took.
func (p *progress) left(i int, elapsed time.Duration) time.Duration {
	past, future := estimate(p.steps[:i]), estimate(p.steps[i:])
	if past <= 0 {
		return future
	}
	return time.Duration(float64(future) * float64(elapsed) / float64(past))
}

func estimate(steps []step) time.Duration {
	var sum time.Duration
	for _, s := range steps {
		sum += s.workload.estimate()
	}
	return sum
}

// end removes the line from the terminal.
func (p *progress) end() {
	if p.w != nil && p.terminal {
		p.rewrite("")
		fmt.Fprint(p.w, "\r")
	}
}

// rewrite replaces the line on the terminal.
func (p *progress) rewrite(line string) {
	width := utf8.RuneCountInString(line)
	fmt.Fprint(p.w, "\r", line, strings.Repeat(" ", max(0, p.shown-width)))
	p.shown = width
}
