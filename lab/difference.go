package lab

import (
	"fmt"
	"math"
)

// Difference is how a figure of one book differs from that of the first.
type Difference struct {
	// Change is what the median is more, as a part of the first: -0.1 is 10 % less. It is
	// infinite where the first is 0, or only one of them is the latency of no job.
	Change float64
	// P is how likely so much of a difference in ranks is without a cause.
	P float64
	// Few says that the figure is not judged: there were too few rounds for the rank test
	// to call any difference significant, and for one of both ± too, for which 2 are needed.
	// Apart says that the medians are further apart than both ± together, or that only one
	// of them is the latency of no job.
	Few, Apart bool
	// ranked says that there were enough rounds for the rank test, which is 4 in each, and
	// spread that both ± are known.
	ranked, spread bool
	// words are the change where it is no number.
	words string
	// better is -1 where the change is for the worse, 1 where it is for the better.
	better int
}

// Against compares the figure in a book, by its place, with that in the first; false
// where the book has none.
func (f *ComparedFigure) Against(i int) (Difference, bool) {
	a, b := f.Values[0], f.Values[i]
	was, ok := median(a)
	is, too := median(b)
	if !ok || !too {
		return Difference{}, false
	}
	d := Difference{P: rankTest(a, b), ranked: leastP(len(a), len(b)) <= alpha, Change: (is - was) / math.Abs(was)}
	switch {
	case is == was:
		d.Change = 0
	case is > was:
		d.better = int(f.Figure.Better)
	case is < was:
		d.better = -int(f.Figure.Better)
	}
	left, known := margin(a)
	right, both := margin(b)
	d.spread = known && both
	d.Apart = d.spread && math.Abs(is-was) > left+right
	switch {
	case is == was:
	case is == never:
		d.Change, d.Apart, d.words = math.Inf(1), true, "to never"
	case was == never:
		d.Change, d.Apart, d.words = math.Inf(-1), true, "from never"
	case was == 0:
		d.words = "from 0"
	}
	d.Few = !d.ranked && !d.spread && !d.Apart
	return d, true
}

// Significant says whether the difference is one: by its p, or with too few rounds for that
// by what is printed as ±.
func (d Difference) Significant() bool {
	if !d.ranked {
		return d.Apart
	}
	return d.P <= alpha
}

// Better and Worse say which way a significant difference goes.
func (d Difference) Better() bool { return d.Significant() && d.better > 0 }

// Worse is the opposite of Better.
func (d Difference) Worse() bool { return d.Significant() && d.better < 0 }

// What Difference.Verdict says.
const (
	verdictBetter = "better"
	verdictWorse  = "worse"
	verdictSame   = "not significant"
	verdictFew    = "too few rounds"
)

// Verdict says what the difference is: "better", "worse", "not significant", or "too few
// rounds" where it is Few. Everything that tells of a comparison tells this.
func (d Difference) Verdict() string {
	switch {
	case d.Better():
		return verdictBetter
	case d.Worse():
		return verdictWorse
	case !d.Few:
		return verdictSame
	}
	return verdictFew
}

// change is the change in words.
func (d Difference) change() string {
	if d.words != "" {
		return d.words
	}
	return fmt.Sprintf("%+.1f %%", d.Change*100)
}

// why is what says whether the difference is significant, in words.
func (d Difference) why(n, m int) string {
	if d.ranked {
		return fmt.Sprintf("p=%.3f n=%d+%d", d.P, n, m)
	}
	switch {
	case d.Apart && !d.spread:
		return fmt.Sprintf("no job against some, n=%d+%d", n, m)
	case n < 2 || m < 2:
		return fmt.Sprintf("need ≥ 2 rounds, better 4; n=%d+%d", n, m)
	case d.Apart:
		return fmt.Sprintf("further apart than both ±, n=%d+%d", n, m)
	case !d.spread:
		return fmt.Sprintf("no ± is known, need ≥ 4 rounds; n=%d+%d", n, m)
	}
	return fmt.Sprintf("within both ±, n=%d+%d", n, m)
}
