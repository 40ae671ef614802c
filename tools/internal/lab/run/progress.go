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

// progress says how far all scenarios are: on a terminal in a line that is rewritten,
// otherwise in a line for each workload. It may be used from any goroutine.
type progress struct {
	w     io.Writer  // nil for none
	width func() int // of the terminal; nil where there is none
	steps []scenario.Step

	mu sync.Mutex
	at int // the step that runs, -1 before the first
}

func newProgress(w io.Writer, steps []scenario.Step) *progress {
	p := &progress{w: w, steps: steps, at: -1}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.width = func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 { // the size of the terminal is not known
				return 80
			}
			return width
		}
	}
	return p
}

// begin says that step i begins, perhaps once more.
func (p *progress) begin(i int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	another := p.at < 0 || p.steps[p.at].Workload.Name != p.steps[i].Workload.Name
	p.at = i
	switch {
	case p.w == nil:
	case p.width != nil:
		p.draw("")
	case another:
		fmt.Fprintf(p.w, "%s: run %d of %d, %v left\n", p.steps[i].Workload.Name, i+1, len(p.steps), p.left())
	}
}

// left is about how long the rest takes.
func (p *progress) left() time.Duration { return estimate(p.steps[p.at:]).Round(time.Second) }

// draw replaces the line on the terminal.
func (p *progress) draw(about string) {
	s := p.steps[p.at]
	line := fmt.Sprintf("run %d of %d, %v left  %s: %s, %s, round %d", p.at+1, len(p.steps), p.left(), s.Scenario, s.Workload.Name, s.Subject.Name, s.Round)
	if about != "" {
		line += ", " + about
	}
	if runes := []rune(line); len(runes) >= p.width() { // some terminals wrap at the last column
		line = string(runes[:p.width()-1])
	}
	fmt.Fprint(p.w, "\r\x1b[K", line)
}

func estimate(steps []scenario.Step) (sum time.Duration) {
	for _, s := range steps {
		sum += s.Workload.Estimate()
	}
	return sum
}

// tell writes a line of its own if that is final; otherwise it is what the step that runs
// says of itself, which only a terminal shows.
func (p *progress) tell(final bool, line string) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case final && p.width != nil:
		fmt.Fprintf(p.w, "\r\x1b[K%s\n", line)
	case final:
		fmt.Fprintln(p.w, line)
	case p.width != nil && p.at >= 0:
		p.draw(line)
	}
}

// end removes the line from the terminal.
func (p *progress) end() {
	if p.width != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
