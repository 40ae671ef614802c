package lab

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// progressSteps are steps of 1.4 s each, by their own estimate.
func progressSteps(n int) []step {
	steps := make([]step, n)
	for i := range steps {
		steps[i] = step{workload: Workload{Name: "w", Kind: Throughput, Duration: time.Second}, subject: Subject{Name: "s"}, round: i + 1, scenario: "quick"}
	}
	return steps
}

func TestProgressFar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := progressSteps(4)
		each := steps[0].workload.estimate()
		var out strings.Builder
		p := newProgress(&out, steps)
		far := func(when string, part float64, left time.Duration) {
			t.Helper()
			if got, rest := p.far(); got < part-0.001 || got > part+0.001 || (rest-left).Abs() > time.Millisecond {
				t.Errorf("%s: got %.3f, %v, want %.3f, %v", when, got, rest, part, left)
			}
		}
		p.show(0)
		far("at the begin", 0, 4*each)
		time.Sleep(each / 2)
		far("in the first", 1.0/8, 4*each-each/2)
		time.Sleep(each + each/2)
		far("the first takes long", 1.0/4, 3*each)
		p.show(1)
		far("the second", 1.0/4, 6*each) // it took twice its time
		time.Sleep(each)
		far("in the second", 3.0/8, 5*each)
		p.show(1) // again, as it was disturbed
		far("the second again", 1.0/4, time.Duration(float64(3*each)*3))
		p.show(3)
		far("the fourth, after one that was not run", 3.0/4, time.Duration(float64(each)*1.5))
		p.end()
		if got := out.String(); got != "w: run 1 of 4, 6s left\n" {
			t.Errorf("got %q, want a line for the workload", got)
		}
	})
}

// TestProgressLine draws the bar as time goes by, within the terminal's width, and
// removes it.
func TestProgressLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, width := range []int{1, 20, 40, 100} {
			var out strings.Builder
			p := newProgress(&out, progressSteps(4))
			p.terminal, p.width = true, func() int { return width }
			p.show(1)
			p.detail("so far")
			time.Sleep(10 * progressEvery)
			synctest.Wait()
			p.end()
			lines := strings.Split(out.String(), "\r")
			if len(lines) < 10 || strings.Contains(out.String(), "\n") {
				t.Fatalf("got %q, want one line that is drawn again", lines)
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > width-1 {
					t.Errorf("width %d: got %q", width, line)
				}
			}
			if last := lines[len(lines)-2:]; strings.TrimSpace(last[0]) != "" || last[1] != "" {
				t.Errorf("width %d: got %q at the end, want it removed", width, last)
			}
			const want = "[#########----------]  50 %  run 2 of 4  3s left  quick: w, s, round 2, so far"
			if got := strings.TrimSpace(lines[len(lines)-3]); width == 100 && got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
	})
}

// TestProgressNobody is told nothing.
func TestProgressNobody(t *testing.T) {
	p := newProgress(nil, progressSteps(1))
	p.show(0)
	p.end()
	if p.stop != nil {
		t.Error("a goroutine for nobody")
	}
}
