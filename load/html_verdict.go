package load

import (
	"math"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// verdict is a sentence or two on the run.
type verdict struct {
	// Class is "good", "fair" or "bad".
	Class      string
	Text, More string
}

// keptUp is the share of what was intended from which on the rate counts as
// reached.
const keptUp = 0.99

// verdicts say in plain words what to think of the run, the worst first. A run
// that missed what was expected of it isn't a good one. One that met all of it is:
// that stands first, and what else there is to say is no more than fair.
func (s *Stream) verdicts(expected []checkedRow) []verdict {
	r, bad := s.Result, missedExpectations(expected)
	if r == nil {
		return append([]verdict{{"bad", "The run was cut off after " + roundTime(s.Span()) + ".", "What follows is what its stream has up to there; there is no result."}}, bad...)
	}
	var fair []verdict
	if err := r.Err(); err != nil {
		bad = append(bad, verdict{"bad", "The run has faults.", sentence(strings.TrimPrefix(err.Error(), "load: "))})
	}
	for _, l := range r.Limits {
		bad = append(bad, verdict{"bad", "The generator's side met a limit: " + l.Wall + ".", sentence(l.Evidence) + " " + sentence(l.Advice)})
	}
	if len(r.Limits) == 0 && r.GeneratorBound() {
		bad = append(bad, verdict{"bad", "The generator was the bottleneck.", "It used " + percentText(r.CPUShare()) + " of its CPUs; the figures say more about it than about the server."})
	}
	if v, missed := r.missedRate(); missed {
		fair = append(fair, v)
	}
	if n := sumCauses(r.ConnectErrors); n > 0 && r.Connected > 0 {
		fair = append(fair, verdict{"fair", group(n) + " attempts to connect failed.", list(r.ConnectErrors) + "."})
	}
	if all := append(bad, fair...); len(expected) > 0 && len(missedExpectations(expected)) == 0 {
		for i := range all {
			all[i].Class = "fair"
		}
		return append([]verdict{metExpectations(expected)}, all...)
	} else if len(all) > 0 {
		return all
	}
	more := ""
	if r.knowsCPU() {
		more = "The generator used " + percentText(r.CPUShare()) + " of its CPUs, and met no limit that it knows of."
	}
	if r.Answered == 0 {
		return []verdict{{"good", "Nothing failed.", more}}
	}
	return []verdict{{"good", "A clean run: every answer came, and was right.", more}}
}

// missedRate says if less was answered, or sent where no answers were awaited, than
// the plan of an open loop had.
func (r *Result) missedRate() (verdict, bool) {
	if r.Intended == 0 || r.Window <= 0 || float64(r.rated()) >= keptUp*float64(r.Intended) {
		return verdict{}, false
	}
	intended := float64(r.Intended) / r.Window.Seconds()
	text := "Less was " + r.ratedHow() + " than intended: " + perSecondText(math.Round(r.Rate())) + "/s of " + perSecondText(math.Round(intended)) + "/s."
	more := ""
	if r.Unsent > 0 {
		more = group(r.Unsent) + " messages of the plan could not be sent at all."
	}
	return verdict{"fair", text, more}, true
}

// sentence begins a text with a capital letter and ends it with a stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + strings.TrimSuffix(text[size:], ".") + "."
}

// percentText writes a share.
func percentText(share float64) string {
	return strconv.FormatFloat(100*share, 'f', 0, 64) + "\u00a0%"
}
