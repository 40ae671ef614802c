package lab

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/myriad-go/myriad/load"
)

// WriteText writes the report for people: what was run and where, and for each run its
// phases, what a connection takes, and the findings.
func (r *MillionReport) WriteText(w io.Writer) error {
	var b bytes.Buffer
	r.header(&b)
	for i := range r.Runs {
		if err := r.Runs[i].write(&b); err != nil {
			return err
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// millionQuestion is what Million asks.
const millionQuestion = "Does a server hold so many connections, and what do they take?"

// header says what was run, where, and how the figures are to be read.
func (r *MillionReport) header(b *bytes.Buffer) {
	fmt.Fprintf(b, "%s: %s\n\n", millionName, millionQuestion)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(b, "  %-8s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("machine", "%s", r.Machine)
	line("date", "%s", r.Date.UTC().Format(time.DateTime+" MST"))
	line("command", "%s", r.Command)
	line("asked", "%s connections, held for %v, a heartbeat each %v, %s MB of memory to stay free",
		thousands(float64(r.Connections)), r.Hold, r.Heartbeat, thousands(float64(r.KeepFree)/1e6))
	line("figures", "connections and heartbeats are the server's count; rate is of what the phase is about;")
	line("", "CPU is processors kept busy by each side in the phase; memory is anonymous, of all processes")
	line("", "of a side; kernel is slab, page tables and stacks of the whole machine, for both ends, and")
	line("", "what others do at the same time is in it")
	for _, note := range r.Notes {
		line("note", "%s", note)
	}
}

// write writes a run.
func (r *MillionRun) write(b *bytes.Buffer) error {
	fmt.Fprintf(b, "\n%s, round %d: %v\n", r.Subject, r.Round, r.Took.Round(time.Second))
	for _, line := range r.Doctor {
		fmt.Fprintf(b, "  doctor: %s\n", line)
	}
	if len(r.Phases) > 0 {
		if err := r.table().write(b); err != nil {
			return err
		}
		b.WriteByte('\n')
		if err := r.memoryTable().write(b); err != nil {
			return err
		}
		b.WriteByte('\n')
		r.memory(b)
	}
	if r.Stopped != nil {
		fmt.Fprintf(b, "  %v\n", r.Stopped)
	}
	if r.Error != "" {
		fmt.Fprintf(b, "  FAILED: %s\n", strings.ReplaceAll(r.Error, "\n", "\n      "))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(b, "  %s\n", f)
	}
	return nil
}

// table has a line for each phase: what happened.
func (r *MillionRun) table() *table {
	t := &table{}
	t.add("phase", "took", "connections", "count", "rate/s", "p50", "p99", "max", "server CPU", "load CPU", "")
	for i := range r.Phases {
		p := &r.Phases[i]
		l := &p.Latency
		t.add(p.Name, seconds(p.Took), thousands(float64(p.End.Counts.Open)), orNone(float64(p.Count)), orNone(p.Rate),
			tookOrNone(l, l.P50), tookOrNone(l, l.P99), tookOrNone(l, l.Max),
			twoDecimals(part(p.ServerCPU, p.Sampled)), twoDecimals(part(p.LoadCPU, p.Sampled)), "")
	}
	return t
}

// memoryTable has a line for each phase: what was taken at its end.
func (r *MillionRun) memoryTable() *table {
	t := &table{}
	t.add("at the end of", "server MB", "bytes/conn", "load MB", "bytes/conn", "kernel MB", "bytes/conn", "free MB", "")
	before := &r.Before
	t.add("(before)", oneMB(before.Server.Anonymous), none, oneMB(before.Load.Anonymous), none, none, none, oneMB(before.Free), "")
	for i := range r.Phases {
		p := &r.Phases[i]
		end := &p.End
		each := func(growth int64) string {
			if end.Counts.Open == 0 {
				return none
			}
			return thousands(float64(growth) / float64(end.Counts.Open))
		}
		t.add(p.Name, oneMB(end.Server.Anonymous), each(end.Server.Anonymous-before.Server.Anonymous),
			oneMB(end.Load.Anonymous), each(end.Load.Anonymous-before.Load.Anonymous),
			oneMB(end.Kernel()-before.Kernel()), each(end.Kernel()-before.Kernel()), oneMB(end.Free), "")
	}
	return t
}

// memory says what was taken, in sentences.
func (r *MillionRun) memory(b *bytes.Buffer) {
	s := r.settled()
	if s == nil {
		return
	}
	figure := func(of func() (float64, bool)) string {
		v, _ := of() // there is a sample
		return thousands(v)
	}
	fmt.Fprintf(b, "  a connection, idle after an exchange: server %s bytes, generator %s, kernel %s for both ends; the machine has %s less free\n",
		figure(r.userBytes), figure(r.loadBytes), figure(r.kernelBytes), figure(r.freeBytes))
	side := func(name string, now, before *MillionSide) {
		fmt.Fprintf(b, "  %s: processes %d, threads %d; RSS %s MB, PSS %s MB, anonymous %s MB, %s MB before the first connection\n",
			name, now.Processes, now.Threads, oneMB(now.RSS), oneMB(now.PSS), oneMB(now.Anonymous), oneMB(before.Anonymous))
	}
	side("server", &s.Server, &r.Before.Server)
	side("generator", &s.Load, &r.Before.Load)
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
