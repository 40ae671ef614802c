package lab

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/page"
)

// SoakFigures are what was seen in a run under a Soaking workload.
type SoakFigures struct {
	// Lines are what was said while it went on, in order.
	Lines []string `json:"lines"`
	// Verdicts are what was wrong, none where the server was sound. They are the error
	// of the run, too.
	Verdicts []string `json:"verdicts,omitempty"`
	// Answers and Errors are those of the honest clients, P99 their latency in seconds:
	// the largest that a line has.
	Answers int64   `json:"answers"`
	Errors  int64   `json:"errors"`
	P99     float64 `json:"p99"`
}

// soakingParts is what the report says of the runs: a table, and for each of them what was
// said while it went on.
func soakingParts(_ *Report, rows []row, w Workload) []page.Part {
	t := &page.Table{}
	t.Add("subject", "round", "answers", "errors", "p99 at most", "verdict")
	parts := []page.Part{{Table: t}}
	for _, row := range rows {
		for _, run := range row.runs {
			f := run.Soak
			if f == nil {
				continue
			}
			word, tone := "sound", page.Good
			if run.Error != "" {
				word, tone = "failed", page.Bad // why is below, as of each run that failed
			}
			t.Add(run.Subject, fmt.Sprint(run.Round), thousands(float64(f.Answers)), thousands(float64(f.Errors)), latency(f.P99*1e9), word)
			t.SetTone(5, tone)
			var remarks []page.Remark
			for _, line := range f.Lines {
				remarks = append(remarks, page.Remark{Text: line})
			}
			if run.Error == "" {
				remarks = append(remarks, page.Remark{Tone: page.Good, Text: run.Subject + ": sound"})
			}
			parts = append(parts, page.Part{Heading: fmt.Sprintf("%s, round %d", run.Subject, run.Round)}, page.Part{Remarks: remarks})
		}
	}
	return parts
}
