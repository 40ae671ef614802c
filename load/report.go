package load

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// WriteText writes the result for people to read, a line for each figure.
func (r *Result) WriteText(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	line("target", "%s", r.Target)
	r.writeConnections(line)
	if r.Window > 0 {
		r.writeTraffic(line)
		r.writeGenerator(line)
	}
	r.writeFaults(line)
	return t.Flush()
}

// writeLine writes a line that has a name.
type writeLine func(name, format string, args ...any)

func (r *Result) writeConnections(line writeLine) {
	rate := ""
	if r.ConnectTime > 0 {
		rate = fmt.Sprintf(" in %v, %s/s", round(r.ConnectTime), group(int64(float64(r.Connected)/r.ConnectTime.Seconds())))
	}
	line("connected", "%s of %s%s", group(int64(r.Connected)), group(int64(r.Connections)), rate)
	if r.TLS != "" {
		line("encrypted", "%s", r.TLS)
	}
	if len(r.ConnectErrors) > 0 {
		line("failed", "%s", list(r.ConnectErrors))
	}
}

func (r *Result) writeTraffic(line writeLine) {
	line("messages", "%s bytes, %d in flight a connection", group(int64(r.MessageSize)), r.Pipeline)
	line("sent", "%s, %s bytes", group(r.Sent), group(r.BytesSent))
	line("answered", "%s, %s bytes", group(r.Answered), group(r.BytesReceived))
	line("rate", "%s/s over %v", group(int64(math.Round(r.Rate()))), round(r.Window))
	if l := r.Latency; l.Count > 0 {
		line("latency", "mean %v, min %v, max %v", round(l.Mean), round(l.Min), round(l.Max))
		line("", "50%% %v, 90%% %v, 99%% %v, 99.9%% %v", round(l.P50), round(l.P90), round(l.P99), round(l.P999))
	}
	if r.Messages > 0 {
		return // not all connections are loaded at a time, nor meant to be
	}
	want := float64(r.Connected) * float64(r.Pipeline)
	verdict := ""
	if d := math.Abs(r.InFlight() - want); d > want/10 {
		verdict = ": not all connections were loaded all the time"
	}
	line("in flight", "%s of %s (rate × mean latency)%s", group(int64(math.Round(r.InFlight()))), group(int64(want)), verdict)
}

func (r *Result) writeGenerator(line writeLine) {
	if r.UserCPU+r.SystemCPU == 0 {
		line("generator", "%s", r.Model)
		return
	}
	verdict := ""
	if r.GeneratorBound() {
		verdict = ": the generator was the bottleneck"
	}
	line("generator", "%s, user %v, system %v, %.0f%% of %d CPU%s", r.Model, round(r.UserCPU), round(r.SystemCPU), 100*r.CPUShare(), r.CPUs, verdict)
}

func (r *Result) writeFaults(line writeLine) {
	if r.Mismatched > 0 {
		line("wrong", "answers on %s connections; first: %v", group(r.Mismatched), r.FirstMismatch)
	}
	if len(r.Lost) > 0 {
		line("lost", "%s", list(r.Lost))
	}
	if r.Unanswered > 0 {
		line("unanswered", "%s", group(r.Unanswered))
	}
}

// String is the snapshot in a line, without a rate.
func (s Snapshot) String() string {
	text := group(s.Open) + " open, " + group(s.Answered) + " answered"
	if s.Failed > 0 {
		text += ", " + group(s.Failed) + " failed"
	}
	return text
}

// list names causes and their counts, the most frequent first.
func list(causes map[string]int64) string {
	names := slices.SortedFunc(maps.Keys(causes), func(a, b string) int {
		return cmp.Or(cmp.Compare(causes[b], causes[a]), cmp.Compare(a, b))
	})
	for i, name := range names {
		names[i] = group(causes[name]) + " × " + name
	}
	return strings.Join(names, ", ")
}

// group writes a number with a comma before each three digits.
func group(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// round leaves three digits of a duration.
func round(d time.Duration) time.Duration {
	step := time.Duration(1)
	for d/step >= 1000 {
		step *= 10
	}
	return d.Round(step)
}
