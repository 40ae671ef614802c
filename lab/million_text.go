package lab

import (
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/load"
)

// holdingParts is what the report says of the runs: what was asked, and for each run its
// phases, what a connection takes, and the findings.
func holdingParts(_ *Report, rows []row, w Workload) []page.Part {
	parts := []page.Part{{Text: fmt.Sprintf("Asked are %s connections, held for %v, a heartbeat each %v, %s MB of memory to stay free.",
		thousands(float64(w.Connections)), w.Hold, w.Interval, thousands(float64(w.million().KeepFree)/1e6))}}
	for _, row := range rows {
		for _, run := range row.runs {
			if run.Million != nil {
				parts = append(parts, page.Part{Heading: fmt.Sprintf("%s, round %d: %v", run.Subject, run.Round, run.Took.Round(time.Second))})
				parts = append(parts, run.Million.parts()...)
			}
		}
	}
	return parts
}

// parts are those of a run.
func (r *MillionRun) parts() (parts []page.Part) {
	var remarks []page.Remark
	for _, line := range r.Doctor {
		remarks = append(remarks, page.Remark{Text: "doctor: " + line})
	}
	if len(r.Phases) > 0 {
		parts = append(parts, page.Part{Table: r.table()}, page.Part{Table: r.memoryTable()})
	}
	for _, text := range r.memory() {
		remarks = append(remarks, page.Remark{Text: text})
	}
	if r.Stopped != nil {
		remarks = append(remarks, page.Remark{Tone: page.Warn, Text: r.Stopped.String()})
	}
	for _, f := range r.Findings {
		remarks = append(remarks, f.remark())
	}
	return append(parts, page.Part{Remarks: remarks})
}

// table has a line for each phase: what happened.
func (r *MillionRun) table() *page.Table {
	t := &page.Table{}
	t.Add("phase", "took", "connections", "count", "rate/s", "p50", "p99", "max", "server CPU", "load CPU", "")
	for i := range r.Phases {
		p := &r.Phases[i]
		l := &p.Latency
		t.Add(p.Name, seconds(p.Took), thousands(float64(p.End.Counts.Open)), orNone(float64(p.Count)), orNone(p.Rate),
			tookOrNone(l, l.P50), tookOrNone(l, l.P99), tookOrNone(l, l.Max),
			twoDecimals(part(p.ServerCPU, p.Sampled)), twoDecimals(part(p.LoadCPU, p.Sampled)), "")
	}
	return t
}

// memoryTable has a line for each phase: what was taken at its end.
func (r *MillionRun) memoryTable() *page.Table {
	t := &page.Table{}
	t.Add("at the end of", "server MB", "bytes/conn", "load MB", "bytes/conn", "kernel MB", "bytes/conn", "free MB", "")
	before := &r.Before
	t.Add("(before)", oneMB(before.Server.Anonymous), none, oneMB(before.Load.Anonymous), none, none, none, oneMB(before.Free), "")
	for i := range r.Phases {
		p := &r.Phases[i]
		end := &p.End
		each := func(growth int64) string {
			if end.Counts.Open == 0 {
				return none
			}
			return thousands(float64(growth) / float64(end.Counts.Open))
		}
		t.Add(p.Name, oneMB(end.Server.Anonymous), each(end.Server.Anonymous-before.Server.Anonymous),
			oneMB(end.Load.Anonymous), each(end.Load.Anonymous-before.Load.Anonymous),
			oneMB(end.Kernel()-before.Kernel()), each(end.Kernel()-before.Kernel()), oneMB(end.Free), "")
	}
	return t
}

// memory says what was taken, in sentences.
func (r *MillionRun) memory() []string {
	s := r.settled()
	if s == nil {
		return nil
	}
	figure := func(of func() (float64, bool)) string {
		v, _ := of() // there is a sample
		return thousands(v)
	}
	side := func(name string, now, before *MillionSide) string {
		return fmt.Sprintf("%s: processes %d, threads %d; RSS %s MB, PSS %s MB, anonymous %s MB, %s MB before the first connection",
			name, now.Processes, now.Threads, oneMB(now.RSS), oneMB(now.PSS), oneMB(now.Anonymous), oneMB(before.Anonymous))
	}
	return []string{
		fmt.Sprintf("a connection, idle after an exchange: server %s bytes, generator %s, kernel %s for both ends; the machine has %s less free",
			figure(r.userBytes), figure(r.loadBytes), figure(r.kernelBytes), figure(r.freeBytes)),
		side("server", &s.Server, &r.Before.Server),
		side("generator", &s.Load, &r.Before.Load),
	}
}

// String describes a phase in a line.
func (p *MillionPhase) String() string {
	text := fmt.Sprintf("%s: %s, %s connections", p.Name, seconds(p.Took), thousands(float64(p.End.Counts.Open)))
	if p.Count > 0 {
		text += fmt.Sprintf("; %s, %s/s", thousands(float64(p.Count)), thousands(p.Rate))
	}
	if l := &p.Latency; l.Count > 0 {
		text += fmt.Sprintf("; p50 %s, p99 %s, max %s", tookOrNone(l, l.P50), tookOrNone(l, l.P99), tookOrNone(l, l.Max))
	}
	return text
}

// seconds writes a time with a digit of it.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// tookOrNone writes a latency of a distribution that may be empty.
func tookOrNone(of *load.Latency, d time.Duration) string {
	if of.Count == 0 {
		return none
	}
	return latency(float64(d))
}

// oneMB writes bytes as millions of them.
func oneMB(bytes int64) string { return fmt.Sprintf("%.1f", float64(bytes)/1e6) }
