package capacity

import (
	"fmt"
	"io"
	"strings"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
)

func (m *MeasuredCosts) WriteMeasurementText(w io.Writer) error {
	var out strings.Builder
	what := []string{format.Count(m.Connections) + " connections"}
	for _, word := range []string{m.Subject, m.App} {
		if word != "" {
			what = append(what, word)
		}
	}
	if m.Loops > 0 {
		what = append(what, format.Plural(int64(m.Loops), "loop", "loops"))
	}
	what = append(what, fmt.Sprintf("messages of %s bytes", format.Count(m.Size)), map[bool]string{true: "TLS", false: "no TLS"}[m.TLS])
	fmt.Fprintf(&out, "Measured: %s\n", strings.Join(what, ", "))
	fmt.Fprintf(&out, "  memory   %s before the first connection, then %.0f bytes for each", format.Bytes(m.Base), m.BytesPerConn)
	if m.Kernel > 0 {
		fmt.Fprintf(&out, ", and %.0f of the kernel for both ends", m.Kernel)
	}
	out.WriteByte('\n')
	switch n := float64(m.Connections); {
	case m.IdleCoresPerConn > 0:
		fmt.Fprintf(&out, "  idle     %s of CPU a second for each connection\n", format.Seconds(m.IdleCoresPerConn))
	case m.MaxIdleCoresPerConn > 0:
		fmt.Fprintf(&out, "  idle     at most %.4f cores for all connections, too little to tell from none: not in the plan\n", m.MaxIdleCoresPerConn*n)
	}
	for _, p := range m.Points {
		fmt.Fprintf(&out, "  CPU      %.3f cores at %s messages/s, %s each\n", p.Cores, format.Whole(p.Rate), format.Seconds(p.Cores/p.Rate))
	}
	if m.Connect > 0 {
		fmt.Fprintf(&out, "  connect  %s of CPU for each connection\n", format.Seconds(m.Connect.Seconds()))
	}
	if len(m.Caveats) > 0 {
		fmt.Fprintf(&out, "  marked   %s: the report says why, and another run may say something else\n", strings.Join(m.Caveats, ", "))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// WritePlansSideBySide writes a table with one column for each plan. The heading describes the first plan's goal. The
// last line names the command that prints the settings of a machine.
func WritePlansSideBySide(w io.Writer, plans []*Plan) error {
	g := &plans[0].Goal
	_, err := fmt.Fprintf(w, "\nPlan: %s messages/s on each connection, %s bytes and as many back; machines with %s, %s and %sbit/s,\nof which %s stays free.\n\n",
		format.Rounded(g.Rate), format.Count(g.Size), format.Plural(int64(g.Cores), "core", "cores"), format.Bytes(float64(g.Memory)), formatSI(g.Network), format.Percent(g.Free))
	if err != nil {
		return err
	}
	t := &page.Table{Figures: true}
	line := func(name string, of func(*Plan) string) {
		cells := []string{name}
		for _, p := range plans {
			cells = append(cells, of(p))
		}
		t.AddRow(cells...)
	}
	line("connections", func(p *Plan) string { return format.Count(p.Goal.Connections) })
	line("machines", func(p *Plan) string {
		return fmt.Sprintf("%s (%s + %d)", format.Count(p.Machines), format.Count(p.Machines-int64(p.Goal.Spare)), p.Goal.Spare)
	})
	line("  one holds", func(p *Plan) string { return format.Count(p.Holds) })
	line("  limited by", func(p *Plan) string { return p.Limit })
	line("a machine: connections", func(p *Plan) string { return format.Count(p.Each) })
	line("  while none is missing", func(p *Plan) string { return format.Count(p.EachNow) })
	line("  user memory", func(p *Plan) string { return format.Bytes(p.User) })
	line("  kernel memory", func(p *Plan) string { return format.Bytes(p.Kernel) })
	line("  memory used", func(p *Plan) string { return format.Percent((p.User + p.Kernel) / float64(p.Goal.Memory)) })
	line("  descriptors (LimitNOFILE)", func(p *Plan) string { return format.Count(p.Descriptors) })
	line("  addresses of a proxy in front", func(p *Plan) string {
		if p.Sources == 0 {
			return "not known"
		}
		return format.Count(p.Sources)
	})
	line("  event loops", func(p *Plan) string { return format.Count(p.Loops) })
	line("  CPU, cores", func(p *Plan) string { return format.Rounded(p.Cores) })
	if plans[0].IdleCores > 0 {
		line("    for idle connections", func(p *Plan) string { return format.Rounded(p.IdleCores) })
	}
	line("  messages/s", func(p *Plan) string { return format.Whole(float64(p.Each) * p.Goal.Rate) })
	line("  network in", func(p *Plan) string { return formatSI(p.In.Bits) + "bit/s" })
	line("  network out", func(p *Plan) string { return formatSI(p.Out.Bits) + "bit/s" })
	line("  packets/s in", func(p *Plan) string { return format.Whole(p.In.Packets) })
	line("  packets/s out", func(p *Plan) string { return format.Whole(p.Out.Packets) })
	line("one fails: connections/s to each", func(p *Plan) string { return format.Whole(p.Returning) })
	line("  CPU for them, cores", func(p *Plan) string { return format.Rounded(p.ReturnCores) })
	if err := t.WriteText(w); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "\nWhat a machine's settings are to be: myriad doctor -n %d --side server --print sysctl\n", plans[len(plans)-1].Each)
	return err
}

func formatSI(v float64) string {
	for _, unit := range []struct {
		of   float64
		name string
	}{{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if v >= unit.of {
			return format.Rounded(v/unit.of) + " " + unit.name
		}
	}
	return format.Rounded(v) + " "
}

func (p *Prediction) WriteComparisonTable(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "\n%s: %s connections, predicted from %s\n\n", p.To.Subject, format.Count(p.To.Connections), format.Count(p.From.Connections)); err != nil {
		return err
	}
	t := &page.Table{Figures: true}
	t.AddRow("", "predicted", "measured", "off by")
	for _, c := range p.Figures {
		name := c.What
		if c.IsPart {
			name = "  " + name
		}
		t.AddRow(name, c.Format(c.Predicted), c.Format(c.Measured), fmt.Sprintf("%+.1f %%", c.RelativeError()*100))
	}
	return t.WriteText(w)
}
