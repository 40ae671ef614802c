package run

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// progressPrinter prints the progress of all scenarios. It is safe for concurrent use.
type progressPrinter struct {
	w     io.Writer  // nil disables printing
	width func() int // width of the terminal; nil without a terminal
	steps []scenario.Step

	mu      sync.Mutex
	current int // index of the running step, -1 before the first
}

func newProgressPrinter(w io.Writer, steps []scenario.Step) *progressPrinter {
	p := &progressPrinter{w: w, steps: steps, current: -1}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.width = func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 { // unknown size
				return 80
			}
			return width
		}
	}
	return p
}

// setCurrentStepAndPrint sets the current step and prints it. If the output is not a terminal, it prints only the first
// step of each workload.
func (p *progressPrinter) setCurrentStepAndPrint(stepIndex int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	another := p.current < 0 || p.steps[p.current].Workload.Name != p.steps[stepIndex].Workload.Name
	p.current = stepIndex
	switch {
	case p.w == nil:
	case p.width != nil:
		p.redrawProgressLineLocked("")
	case another:
		fmt.Fprintf(p.w, "%s: run %d of %d, %v left\n", p.steps[stepIndex].Workload.Name, stepIndex+1, len(p.steps), p.estimateRemainingTime())
	}
}

func (p *progressPrinter) estimateRemainingTime() time.Duration {
	return estimateTotalDuration(p.steps[p.current:]).Round(time.Second)
}

func (p *progressPrinter) redrawProgressLineLocked(detail string) {
	s := p.steps[p.current]
	line := fmt.Sprintf("run %d of %d, %v left  %s: %s, %s, round %d", p.current+1, len(p.steps), p.estimateRemainingTime(), s.Scenario, s.Workload.Name, s.Subject.Name, s.Round)
	if detail != "" {
		line += ", " + detail
	}
	if runes := []rune(line); len(runes) >= p.width() { // some terminals wrap at the last column
		line = string(runes[:p.width()-1])
	}
	fmt.Fprint(p.w, "\r\x1b[K", line)
}

func estimateTotalDuration(steps []scenario.Step) (sum time.Duration) {
	for _, s := range steps {
		if s.Subject.MaxConns > 0 && s.Workload.Whole && s.Workload.Connections > s.Subject.MaxConns {
			continue // the run will be skipped
		}
		sum += s.Workload.EstimateDuration()
	}
	return sum
}

// printFinalOrProgressLine prints a line. If isFinal is set, the line remains. Otherwise, it is a progress line: on a
// terminal, the next line overwrites it, and other outputs do not get it.
func (p *progressPrinter) printFinalOrProgressLine(isFinal bool, line string) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case isFinal && p.width != nil:
		fmt.Fprintf(p.w, "\r\x1b[K%s\n", line)
	case isFinal:
		fmt.Fprintln(p.w, line)
	case p.width != nil && p.current >= 0:
		p.redrawProgressLineLocked(line)
	}
}

func (p *progressPrinter) clearTerminalLine() {
	if p.width != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
