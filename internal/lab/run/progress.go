package run

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/myriad-go/myriad/internal/lab/scenario"
)

// progressEvery is the time between two looks at the clock while a run goes on, and
// barWidth how wide the bar is at the most.
const (
	progressEvery = time.Second
	barWidth      = 24
)

// progress tells how far all scenarios are. On a terminal it has a line that is rewritten
// as time goes by, by a goroutine from the first show to end; otherwise it writes a line
// for each workload.
type progress struct {
	w        io.Writer
	terminal bool
	width    func() int // of the terminal
	steps    []scenario.Step
	total    time.Duration // estimated, of all steps

	stop chan struct{} // nil without a goroutine
	wait sync.WaitGroup

	mu    sync.Mutex
	at    int           // the step that runs, -1 before the first
	begun time.Time     // when it began
	ran   time.Duration // estimated, of the steps that were run
	took  time.Duration // what they took
	about string        // what the step says of itself
	shown int           // the width of the line that stands on the terminal
}

func newProgress(w io.Writer, steps []scenario.Step) *progress {
	p := &progress{w: w, steps: steps, total: estimate(steps), at: -1}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		p.terminal = true
		p.width = func() int {
			width, _, err := term.GetSize(int(f.Fd()))
			if err != nil || width <= 0 { // nobody has told the terminal
				return 80
			}
			return width
		}
	}
	return p
}

// show says that step i begins, once more perhaps. Steps between it and the last one were
// not run.
func (p *progress) show(i int) {
	if p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	first := p.at < 0
	another := first || p.steps[p.at].Workload.Name != p.steps[i].Workload.Name
	if !first {
		p.took += time.Since(p.begun)
		if i != p.at {
			p.ran += p.steps[p.at].Workload.Estimate()
		}
	}
	p.at, p.begun, p.about = i, time.Now(), ""
	switch {
	case p.terminal:
		p.draw()
		if first {
			p.stop = make(chan struct{})
			p.wait.Go(p.follow)
		}
	case another:
		_, left := p.far()
		fmt.Fprintf(p.w, "%s: run %d of %d, %v left\n", p.steps[i].Workload.Name, i+1, len(p.steps), left.Round(time.Second))
	}
}

// follow draws the line again and again until end.
func (p *progress) follow() {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-tick.C:
			p.mu.Lock()
			p.draw()
			p.mu.Unlock()
		}
	}
}

// far estimates which part of the time is over, and how much is left: what the workloads
// say of themselves, corrected by how long the steps so far took. A step that takes longer
// than it should stands still at its end.
func (p *progress) far() (part float64, left time.Duration) {
	factor := 1.0
	if p.ran > 0 {
		factor = float64(p.took) / float64(p.ran)
	}
	here := float64(p.steps[p.at].Workload.Estimate())
	past := min(here, float64(time.Since(p.begun))/max(factor, 0.01))
	past += float64(estimate(p.steps[:p.at]))
	whole := float64(p.total)
	if whole <= 0 {
		return 0, 0
	}
	return past / whole, time.Duration((whole - past) * factor)
}

// draw replaces the line on the terminal.
func (p *progress) draw() {
	part, left := p.far()
	s := p.steps[p.at]
	name := s.Workload.Name + ", " + s.Subject.Name
	if s.Scenario != "" {
		name = s.Scenario + ": " + name
	}
	line := fmt.Sprintf("%3.0f %%  run %d of %d  %v left  %s, round %d",
		part*100, p.at+1, len(p.steps), left.Round(time.Second), name, s.Round)
	if p.about != "" {
		line += ", " + p.about
	}
	width := p.width() - 1 // some terminals wrap at the last column
	if bar := min(barWidth, width/5); bar >= 8 {
		full := int(part * float64(bar))
		line = "[" + strings.Repeat("#", full) + strings.Repeat("-", bar-full) + "] " + line
	}
	if runes := []rune(line); len(runes) > width {
		line = string(runes[:max(0, width)])
	}
	p.rewrite(line)
}

// rewrite replaces the line on the terminal.
func (p *progress) rewrite(line string) {
	width := utf8.RuneCountInString(line)
	fmt.Fprint(p.w, "\r", line, strings.Repeat(" ", max(0, p.shown-width)))
	p.shown = width
}

func estimate(steps []scenario.Step) time.Duration {
	var sum time.Duration
	for _, s := range steps {
		sum += s.Workload.Estimate()
	}
	return sum
}

// tell tells of a run as it goes on: a line of its own if that is final, otherwise what the
// scenario.Step that runs says of itself. It may be called from any goroutine, and of a nil progress.
func (p *progress) tell(final bool, line string) {
	if p == nil || p.w == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !final {
		p.about = line
		return
	}
	if p.terminal {
		p.rewrite(line)
	} else {
		fmt.Fprint(p.w, line)
	}
	fmt.Fprintln(p.w)
	p.shown = 0
}

// end removes the line from the terminal.
func (p *progress) end() {
	if p.stop != nil {
		close(p.stop)
		p.wait.Wait()
		p.stop = nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.w != nil && p.terminal {
		p.rewrite("")
		fmt.Fprint(p.w, "\r")
	}
}
