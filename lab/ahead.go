package lab

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/page"
)

// standing says how one subject of ours stands beside the design of a published row, by
// one figure, in the same run.
type standing struct {
	row      *PublishedRow
	figure   Figure
	workload string
	subject  string
	design   string
	// at is how many connections both had, where the published row had another number.
	at string
	// ratio is above 1 where ours is ahead, margin its ±; of one round there is none. It
	// is infinite where the design came to nothing in all rounds.
	ratio, margin float64
	// rounds are those that the ratio is of, alone those in which the design came to
	// nothing and ours did not, and of is how many were run.
	rounds, alone, of int
	ours, theirs      string // the figures
	marks             string // of both
	// why says why there is no ratio, "" if there is one, and cut the same where the
	// watchdog has ended the design: then other figures say how ours stands.
	why, cut string
}

// The ways to stand.
const (
	inFront     = "ahead"
	behind      = "behind"
	level       = "level"
	notCompared = NotMeasured
)

// stand compares a row of ours with that of a design.
func stand(f Figure, ours, design row) standing {
	s := standing{figure: f, subject: ours.subject, design: design.subject, ours: f.said(ours), theirs: f.said(design),
		marks: markedBoth(ours, design), of: max(len(ours.runs), len(design.runs))}
	var all []float64
	all, s.alone = f.leads(ours, design)
	s.rounds = len(all)
	s.cut = f.cutBy(design)
	s.why = cmp.Or(f.unfit(ours), whyNone(f, ours), s.cut, whyNone(f, design))
	if s.why != "" {
		return s
	}
	var ok bool
	if s.ratio, ok = median(all); ok {
		s.margin, _ = margin(all)
	} else if s.alone > 0 {
		s.ratio = math.Inf(1)
	} else {
		s.why = "there is no ratio of " + s.ours + " and " + s.theirs + " in the same round"
	}
	return s
}

// cutBy says that the watchdog has ended a design in some round, which leaves it no figure
// to compare but its memory: that was at least as much. It is "" where it has not.
func (f Figure) cutBy(design row) string {
	ended := design.ended()
	if len(ended) == 0 || f.Name == peakMemory.Name {
		return ""
	}
	return fmt.Sprintf("%s was ended by the watchdog of this lab at %.2f GB: not compared", design.subject, float64(ended[0].Overload.Ended.Most)/1e9)
}

// leads are by how much a row is ahead of a base in each round, above 1 where it is; alone
// counts the rounds without a ratio in which only the base came to nothing.
func (f Figure) leads(w, base row) (all []float64, alone int) {
	theirs := f.byRound(base)
	for round, v := range f.byRound(w) {
		b, ok := theirs[round]
		switch {
		case !ok || f.nothing(v):
		case f.nothing(b):
			alone++
		case v <= 0 || b <= 0:
		case f.Better == Lower:
			all = append(all, b/v)
		default:
			all = append(all, v/b)
		}
	}
	return all, alone
}

// nothing says whether a value is that of a run in which nothing was done.
func (f Figure) nothing(v float64) bool { return v == never || f.Better == Higher && v == 0 }

// said is the median over the rounds of a row, in a sentence.
func (f Figure) said(w row) string {
	v, ok := f.median(w)
	if !ok {
		return none
	}
	return f.say(v)
}

// say writes a value as Text does, but for the latency of no job.
func (f Figure) say(v float64) string {
	if v == never {
		return "never"
	}
	return f.Text(v)
}

// breaking are the rules with which a run of ours is not compared, whatever its figures
// are: answers were wrong or missing, it was another load than the design's, or the watchdog
// has ended it.
var breaking = []string{RuleMismatch, RuleLost, RuleUnanswered, RuleConnect, RuleCount, RulePanicked, RuleBooks, RuleWatchdog}

// unfit says why a row of ours is not compared though it may have figures, "" if it is: the
// rounds that are left of a row that failed in others would flatter it.
func (f Figure) unfit(ours row) string {
	failed, why := 0, ""
	broken := make(map[string]int)
	for _, run := range ours.runs {
		v, ok := f.of(run)
		switch {
		case run.failed():
			failed, why = failed+1, cmp.Or(why, run.failure())
		case ok && f.nothing(v):
			failed, why = failed+1, cmp.Or(why, "it came to nothing")
		}
		for _, m := range run.Marks {
			if slices.Contains(breaking, m.Rule) {
				broken[m.Rule]++
			}
		}
	}
	if failed > 0 {
		return fmt.Sprintf("%s failed in %d of %d rounds: %s", ours.subject, failed, len(ours.runs), why)
	}
	if len(broken) > 0 {
		return "its runs are marked " + counted(broken, len(ours.runs))
	}
	return ""
}

// markedBoth names the marks of both sides, "" if there are none.
func markedBoth(ours, design row) (text string) {
	for _, w := range []row{ours, design} {
		if marks := w.marks(); marks != "" {
			text += fmt.Sprintf("; %s is marked %s", w.subject, marks)
		}
	}
	return text
}

// whyNone says why a row has no figure, "" if it has one.
func whyNone(f Figure, w row) string {
	if _, ok := f.median(w); ok {
		return ""
	}
	for _, run := range w.runs {
		if text := run.failure(); text != "" {
			return w.subject + " has failed: " + text
		}
		if run.Skipped != "" {
			return w.subject + " was not run: " + run.Skipped
		}
	}
	if len(w.runs) == 0 {
		return w.subject + " was not run"
	}
	return w.subject + " has no figure of this kind"
}

// oneRound is the ± of a ratio that is of one round, where none is known: it has to be as
// far from 1 to be called ahead or behind.
const oneRound = 0.1

// outcome is one of the ways to stand.
func (s standing) outcome() string {
	if s.rounds == 1 {
		s.margin = oneRound
	}
	switch {
	case s.why != "":
		return notCompared
	case s.ratio-s.margin > 1:
		return inFront
	case s.ratio+s.margin < 1:
		return behind
	}
	return level
}

// cutOff says whether the design's end by the watchdog is why there is no ratio.
func (s standing) cutOff() bool { return s.why != "" && s.why == s.cut }

func (s standing) tone() page.Tone { return outcomeTones[s.outcome()] }

var outcomeTones = map[string]page.Tone{inFront: page.Good, behind: page.Bad, level: page.Warn, notCompared: page.Warn}

// lead writes the ratio with its ±.
func (s standing) lead() string {
	if s.why != "" {
		return none
	}
	if math.IsInf(s.ratio, 1) {
		return "alone"
	}
	if s.rounds < 2 {
		return twoDecimals(s.ratio)
	}
	return fmt.Sprintf("%.2f ±%.2f", s.ratio, s.margin)
}

// String says it in a sentence.
func (s standing) String() string {
	var says string
	switch s.outcome() {
	case notCompared:
		if s.cutOff() {
			return fmt.Sprintf("%s: %s beside %s in %s: %s.", s.row.Name, s.subject, s.design, s.figure.Heading, s.why)
		}
		return fmt.Sprintf("%s: %s is not measured against %s in %s: %s", s.row.Name, s.subject, s.design, s.figure.Heading, strings.TrimSuffix(s.why, ".")) + "."
	case inFront:
		says = "ahead of " + s.design
	case behind:
		says = "behind " + s.design
	default:
		says = "level with " + s.design + ", within the spread"
	}
	text := fmt.Sprintf("%s: %s is %s in %s, %s (%s against %s)", s.row.Name, s.subject, says, s.figure.Heading, s.lead(), s.ours, s.theirs)
	if s.at != "" {
		text += ", " + s.at
	}
	switch {
	case s.rounds == 1:
		text += fmt.Sprintf(", in one round, of which no spread is known: %.0f %% are taken for it", oneRound*100)
	case s.rounds > 1 && s.rounds < s.of:
		text += fmt.Sprintf(", in %d of %d rounds", s.rounds, s.of)
	}
	if s.alone > 0 {
		text += fmt.Sprintf("; %s came to nothing in %d of %d rounds", s.design, s.alone, s.of)
	}
	text += s.marks
	return text + "."
}

// outcomes are from the worst to the best.
var outcomes = []string{behind, notCompared, level, inFront}

// standings are those of one row of ours, by each figure that the published row is about.
type standings []standing

// outcome is the worst of them, but for those of a design that the watchdog has ended if
// there are others.
func (all standings) outcome() string {
	if fair := slices.DeleteFunc(slices.Clone(all), standing.cutOff); len(fair) > 0 {
		all = fair
	}
	for _, o := range outcomes {
		if slices.ContainsFunc(all, func(s standing) bool { return s.outcome() == o }) {
			return o
		}
	}
	return inFront
}

// repeated is how many rows stand on the same runs as one before them.
func repeated(rows []standings) (n int) {
	type runs struct{ workload, subject, design string }
	seen := make(map[runs]bool)
	for _, all := range rows {
		of := runs{all[0].workload, all[0].subject, all[0].design}
		if seen[of] {
			n++
		}
		seen[of] = true
	}
	return n
}

// leads are the ratios by which a row is ahead.
func (all standings) leads() string {
	if len(all) == 1 {
		return all[0].lead()
	}
	var words []string
	for _, s := range all {
		words = append(words, s.figure.Heading+" "+s.lead())
	}
	return strings.Join(words, ", ")
}

// tallied says how many rows of ours are ahead, and how the others stand; beside them so
// many published rows have nothing of ours.
func tallied(rows []standings, missing int) page.Remark {
	counts := make(map[string]int)
	for _, all := range rows {
		counts[all.outcome()]++
	}
	text := fmt.Sprintf("%d of %d rows of ours are ahead of the published design in the same run", counts[inFront], len(rows))
	tone := page.Good
	var rest []string
	for _, o := range []string{level, notCompared, behind} {
		if counts[o] > 0 {
			rest = append(rest, fmt.Sprintf("%d %s", counts[o], o))
			tone = outcomeTones[o]
		}
	}
	if missing > 0 {
		rest = append(rest, fmt.Sprintf("and nothing was measured of %d published", missing))
		if tone == page.Good {
			tone = page.Warn
		}
	}
	if len(rest) > 0 {
		text += "; " + strings.Join(rest, ", ")
	}
	return page.Remark{Tone: tone, Text: text + "."}
}
