package lab

import (
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/offer"
	"github.com/myriad-go/myriad/internal/page"
)

// rateRow is a subject with a rate in each round; 0 is a round that has none.
func rateRow(subject string, rates ...float64) row {
	w := row{subject: subject}
	for i, v := range rates {
		run := RunRecord{Round: i + 1}
		if v != 0 {
			run = throughputRun("w", subject, i+1, v, 100)
		}
		w.runs = append(w.runs, &run)
	}
	return w
}

func TestStand(t *testing.T) {
	for _, c := range []struct {
		ours, design []float64
		f            Figure
		outcome      string
		says         string
	}{
		{[]float64{150, 300, 450}, []float64{100, 200, 300}, tps, inFront, "1.50 ±0.00 (300 against 200)."},
		{[]float64{150, 300, 450}, []float64{100, 200, 300}, meanLatency, inFront, "in mean latency, 1.50"},
		{[]float64{50, 50, 50}, []float64{100, 100, 100}, meanLatency, behind, "in mean latency, 0.50"},
		{[]float64{102, 101, 103}, []float64{100, 100, 100}, tps, level, "o is level with d, within the spread in TPS, 1.02 ±0.03"},
		{[]float64{98, 99, 97}, []float64{100, 100, 100}, tps, level, "0.98 ±0.03"},
		{[]float64{120}, []float64{100}, tps, inFront, "1.20 (120 against 100), in one round, of which no spread is known: 10 % are taken for it."},
		{[]float64{109}, []float64{100}, tps, level, "1.09 (109 against 100), in one round"},
		{[]float64{100}, []float64{100}, tps, level, "1.00 (100 against 100), in one round"},
		{[]float64{120, 0}, []float64{0, 100}, tps, notCompared, "there is no ratio of 120 and 100 in the same round"},
		{[]float64{120}, nil, tps, notCompared, "d was not run"},
		{nil, []float64{100}, tps, notCompared, "o was not run"},
		{[]float64{0}, []float64{100}, tps, notCompared, "o has no figure of this kind"},
	} {
		s := stand(c.f, rateRow("o", c.ours...), rateRow("d", c.design...))
		s.row = &PublishedRow{Name: "row"}
		text := s.String()
		if s.outcome() != c.outcome || !strings.Contains(text, c.says) || !strings.HasPrefix(text, "row: ") || !strings.HasSuffix(text, ".") {
			t.Errorf("%v against %v: %s; want %s, %q", c.ours, c.design, text, c.outcome, c.says)
		}
		if s.tone() == page.Plain {
			t.Errorf("%s has no tone", s.outcome())
		}
	}
}

// TestStandWithout says why there is nothing to compare.
func TestStandWithout(t *testing.T) {
	ours := rateRow("o", 100)
	for says, run := range map[string]RunRecord{
		"d has failed: no room.":       {Error: "no room\nat all"},
		"d was not run: memory is low": {Skipped: "memory is low."},
	} {
		s := stand(tps, ours, row{subject: "d", runs: []*RunRecord{&run}})
		s.row = &PublishedRow{}
		if text := s.String(); s.outcome() != notCompared || !strings.Contains(text, says) || strings.Contains(text, "..") {
			t.Errorf("got %s; want %s", text, says)
		}
	}
}

// offeredRow is a subject that was offered jobs, with a mean latency in each round; 0 is a
// round in which none finished.
func offeredRow(subject string, means ...time.Duration) row {
	w := row{subject: subject}
	for i, mean := range means {
		w.runs = append(w.runs, &RunRecord{Round: i + 1, Overload: &OverloadRun{Result: &offer.Result{Mean: mean, Finished: uint64(mean)}}})
	}
	return w
}

// TestStandAlone has rounds in which a side came to nothing: of the design's they are won,
// of ours they have failed.
func TestStandAlone(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		ours, design []time.Duration
		f            Figure
		outcome      string
		says         string
	}{
		{[]time.Duration{ms, ms, ms}, []time.Duration{0, 0, 0}, meanLatency, inFront, "is ahead of d in mean latency, alone (1.00 ms against never); d came to nothing in 3 of 3 rounds."},
		{[]time.Duration{ms, ms, ms}, []time.Duration{0, 0, 0}, finished, inFront, "d came to nothing in 3 of 3 rounds."},
		{[]time.Duration{ms, ms, ms}, []time.Duration{0, 0, 2 * ms}, meanLatency, inFront, "2.00 (1.00 ms against never), in one round, of which no spread is known: 10 % are taken for it; d came to nothing in 2 of 3 rounds."},
		{[]time.Duration{ms, ms, ms}, []time.Duration{0, ms, ms}, meanLatency, level, "in 2 of 3 rounds; d came to nothing in 1 of 3 rounds."},
		{[]time.Duration{ms, ms, ms}, []time.Duration{0, 0, ms / 2}, meanLatency, behind, "0.50"},
		{[]time.Duration{ms, 0, 0}, []time.Duration{2 * ms, 2 * ms, 2 * ms}, meanLatency, notCompared, "o failed in 2 of 3 rounds: it came to nothing."},
		{[]time.Duration{0}, []time.Duration{0}, finished, notCompared, "o failed in 1 of 1 rounds: it came to nothing."},
	} {
		s := stand(c.f, offeredRow("o", c.ours...), offeredRow("d", c.design...))
		s.row = &PublishedRow{Name: "row"}
		if text := s.String(); s.outcome() != c.outcome || !strings.Contains(text, c.says) {
			t.Errorf("%v against %v: %s; want %s, %q", c.ours, c.design, text, c.outcome, c.says)
		}
	}
}

// TestStandEnded has a design that the watchdog has ended: its memory was at least that, and
// nothing else of it is compared, whatever it had come to.
func TestStandEnded(t *testing.T) {
	const ms = time.Millisecond
	row := &PublishedRow{Name: "row"}
	for _, mean := range []time.Duration{0, 2 * ms} {
		ours, design := offeredRow("o", ms, ms), offeredRow("d", mean, mean)
		design.runs[1].Overload.Ended = &OverloadEnd{RSS: 2.2e9, Most: 2 << 30}
		for i := range 2 {
			ours.runs[i].Overload.PeakRSS, design.runs[i].Overload.PeakRSS = 40e6, 2e9
		}
		var all standings
		for f, want := range map[*Figure]struct{ outcome, says string }{
			&peakMemory:  {inFront, "row: o is ahead of d in peak memory, 50.00 ±0.00"},
			&meanLatency: {notCompared, "row: o beside d in mean latency: d was ended by the watchdog of this lab at 2.15 GB: not compared."},
			&finished:    {notCompared, "row: o beside d in finished: d was ended by the watchdog of this lab at 2.15 GB: not compared."},
		} {
			s := stand(*f, ours, design)
			s.row = row
			if text := s.String(); s.outcome() != want.outcome || !strings.HasPrefix(text, want.says) {
				t.Errorf("%s: %s; want %s, %q", f.Name, text, want.outcome, want.says)
			}
			all = append(all, s)
		}
		if got := all.outcome(); got != inFront {
			t.Errorf("the row is %s, want it ahead by what was compared", got)
		}
		ours.runs[0].Error = "no"
		if s := stand(finished, ours, design); (standings{s}).outcome() != notCompared || s.cutOff() {
			t.Errorf("ours has failed: %+v", s)
		}
	}
	only := standings{{why: "d was ended", cut: "d was ended"}}
	if got := only.outcome(); got != notCompared {
		t.Errorf("the row is %s, want it not measured: nothing of it was compared", got)
	}
}

// TestStandMarked has runs of ours that answered wrongly, or failed, compared with nothing;
// other marks, and those of the design, are named.
func TestStandMarked(t *testing.T) {
	for _, c := range []struct {
		change  func(ours, design row)
		outcome string
		says    string
	}{
		{func(ours, _ row) { ours.runs[1].Error = "no room\nat all" }, notCompared, "row: o is not measured against d in TPS: o failed in 1 of 3 rounds: no room."},
		{func(ours, _ row) { ours.runs[0].Marks = []Mark{{RuleMismatch, ""}} }, notCompared, "its runs are marked mismatch 1/3."},
		{func(ours, _ row) { ours.runs[0].Marks = []Mark{{RuleConnect, ""}, {RuleNoise, ""}} }, notCompared, "its runs are marked connect 1/3."},
		{func(ours, _ row) { ours.runs[0].Marks = []Mark{{RuleNoise, ""}, {RuleLoad, ""}} }, inFront, "; o is marked load 1/3, noise 1/3."},
		{func(ours, _ row) { ours.runs[0].Skipped = "no memory" }, inFront, ", in 2 of 3 rounds; o is marked not run 1/3."},
		{func(_, design row) { design.runs[0].Marks = []Mark{{RuleUnanswered, ""}} }, inFront, "; d is marked unanswered 1/3."},
		{func(_, design row) { design.runs[0].Error = "no" }, inFront, ", in 2 of 3 rounds; d is marked FAILED 1/3."},
	} {
		ours, design := rateRow("o", 300, 300, 300), rateRow("d", 100, 100, 100)
		c.change(ours, design)
		s := stand(tps, ours, design)
		s.row = &PublishedRow{Name: "row"}
		if text := s.String(); s.outcome() != c.outcome || !strings.HasSuffix(text, c.says) {
			t.Errorf("%s; want %s, %q", text, c.outcome, c.says)
		}
	}
}

func TestTallied(t *testing.T) {
	of := func(ratios ...float64) (all []standings) {
		for _, v := range ratios {
			// By the other figure it is ahead.
			all = append(all, standings{{ratio: 2, rounds: 1}, {ratio: v, margin: 0.05, rounds: 3}})
		}
		return all
	}
	for _, c := range []struct {
		all     []standings
		missing int
		tone    page.Tone
		says    string
	}{
		{of(1.5, 1.2), 1, page.Warn, "2 of 2 rows of ours are ahead of the published design in the same run; and nothing was measured of 1 published."},
		{of(1.5, 1.2), 0, page.Good, "2 of 2 rows of ours are ahead of the published design in the same run."},
		{of(1.5, 1.02), 0, page.Warn, "1 of 2 rows of ours are ahead of the published design in the same run; 1 level."},
		{append(of(1.5, 0.5, 1), standings{{why: "no"}}), 0, page.Bad, "1 of 4 rows of ours are ahead of the published design in the same run; 1 level, 1 not measured, 1 behind."},
	} {
		if got := tallied(c.all, c.missing); got.Tone != c.tone || got.Text != c.says {
			t.Errorf("got %+v, want %s: %s", got, c.tone, c.says)
		}
	}
	if got := of(1.5)[0].leads(); got != " 2.00,  1.50 ±0.05" {
		t.Errorf("leads: %q", got)
	}
}
