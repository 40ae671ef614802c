package doctor

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/myriad-go/myriad/internal/format"
)

// beyond is how many walls behind the plan are shown in the table.
const beyond = 3

// textWidth is how wide running text is.
const textWidth = 100

// WriteText writes the report for people: how many connections the machine holds,
// the walls that are near, what moves them, and the commands that then do it.
func (r *Report) WriteText(w io.Writer) error {
	var b bytes.Buffer
	fmt.Fprintln(&b, r.Summary())
	near, far, never := r.sorted()
	shown := slices.Concat(near, far[:min(beyond, len(far))])
	r.writeTable(&b, shown)
	r.writeRest(&b, far[len(shown)-len(near):], never)
	writeNamed(&b, "What is seen there:", near, func(w *Wall) string { return w.Effect })
	r.writeChanges(&b)
	writeNamed(&b, "No setting is enough here:", near, func(w *Wall) string { return w.Advice })
	r.writeCommands(&b)
	writeNamed(&b, "Sources:", near, func(w *Wall) string { return w.Source })
	_, err := w.Write(b.Bytes())
	return err
}

// Summary is the first line: how many connections the machine holds now, and which
// wall is the first.
func (r *Report) Summary() string {
	plan := fmt.Sprintf("%s, model %s", r.Plan.who(), resolve(r.Plan.Model, r.Facts))
	if r.Plan.Processes > 1 {
		plan += fmt.Sprintf(", %d processes", r.Plan.Processes)
	}
	wanted := format.Count(r.Plan.Connections)
	switch {
	case r.Holds < int64(r.Plan.Connections):
		return fmt.Sprintf("This machine can hold %s connections now (wanted: %s; %s): the first wall is %s.", format.Count(r.Holds), wanted, plan, r.First)
	case r.Holds == Unlimited:
		return fmt.Sprintf("This machine can hold %s connections now (%s): no wall is known.", wanted, plan)
	}
	return fmt.Sprintf("This machine can hold %s connections now (%s): the first wall is %s, at %s.", wanted, plan, r.First, format.Count(r.Holds))
}

// who says whose walls were looked at.
func (p *Plan) who() string {
	if p.Side == Both {
		return "both sides"
	}
	return string(p.Side) + " side"
}

// sorted are the walls that are met before the plan is reached, those behind it,
// and those that never are.
func (r *Report) sorted() (near, far, never []*Wall) {
	for i := range r.Walls {
		switch w := &r.Walls[i]; {
		case w.Near(r.Plan.Connections):
			near = append(near, w)
		case w.Holds < Unlimited:
			far = append(far, w)
		default:
			never = append(never, w)
		}
	}
	return near, far, never
}

// writeTable writes a line for each wall.
func (r *Report) writeTable(b *bytes.Buffer, walls []*Wall) {
	if len(walls) == 0 {
		return
	}
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\n  wall\tside\tnow\tstops at\tneeds")
	for _, w := range walls {
		at := format.Count(w.Holds)
		if w.Soft {
			at = "hurts at " + at
		}
		needs := w.Needs
		if needs == "" {
			needs = "enough"
		}
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", w.Name, w.Side, w.Present, at, needs)
	}
	_ = t.Flush() // to a buffer
}

// writeRest writes in few lines which walls are further away, and which are not met
// at all.
func (r *Report) writeRest(b *bytes.Buffer, far, never []*Wall) {
	var items []string
	for _, w := range far {
		items = append(items, fmt.Sprintf("%s %s", w.Name, format.Count(w.Holds)))
	}
	writeList(b, "Further away: ", items)
	items = nil
	for _, w := range never {
		items = append(items, w.Name)
	}
	writeList(b, "Not met by this plan: ", items)
	writeList(b, "Not known: ", r.Facts.Unknown)
}

func writeList(b *bytes.Buffer, title string, items []string) {
	if len(items) > 0 {
		b.WriteString("\n" + wrap(title+strings.Join(items, ", ")+".", "  "))
	}
}

// writeNamed writes what is to be said of each wall behind its name.
func writeNamed(b *bytes.Buffer, title string, walls []*Wall, text func(*Wall) string) {
	for _, w := range walls {
		if said := text(w); said != "" {
			if title != "" {
				b.WriteString("\n" + title + "\n")
				title = ""
			}
			b.WriteString("  " + wrap(w.Name+": "+said, "    "))
		}
	}
}

// writeChanges writes the commands that make the changes, to be copied.
func (r *Report) writeChanges(b *bytes.Buffer) {
	title := "\nTo move them, in this order, as root:\n"
	for _, c := range r.Changes() {
		if !r.elsewhere(c) {
			fmt.Fprintf(b, "%s  %s\n", title, c.Command())
			title = ""
		}
	}
	title = "\nNot from here, where it can't be written, but on the machine itself or when the container is made:\n"
	for _, c := range r.Changes() {
		if r.elsewhere(c) {
			fmt.Fprintf(b, "%s  %s\n", title, c.Command())
			title = ""
		}
	}
}

// elsewhere reports whether a change can't be made here even by root: the setting is
// another namespace's, or /proc/sys is read-only.
func (r *Report) elsewhere(c Change) bool {
	return r.Facts.Process.Root && c.Kind == Sysctl && slices.Contains(r.Facts.ReadOnly, c.Name)
}

// wrap breaks text into lines, the second and further ones indented. A command line,
// which is in backticks, stays on one.
func wrap(text, indent string) string {
	var out strings.Builder
	width := 0
	for i, word := range words(text) {
		switch {
		case i > 0 && width+1+len(word) > textWidth:
			out.WriteString("\n" + indent)
			width = len(indent)
		case i > 0:
			out.WriteByte(' ')
			width++
		}
		out.WriteString(word)
		width += len(word)
	}
	return out.String() + "\n"
}

// words splits text at spaces, but not within backticks.
func words(text string) (list []string) {
	open := false
	for word := range strings.SplitSeq(text, " ") {
		if open {
			list[len(list)-1] += " " + word
		} else {
			list = append(list, word)
		}
		open = open != (strings.Count(word, "`")%2 == 1)
	}
	return list
}

// Commands are the command lines that then do what the plan says, or as much of it
// as there is room for after those Changes that can be made from here: of the server,
// of the client, or of both in that order. There are none where not even one connection
// has room.
func (r *Report) Commands() []string {
	p, room := r.Plan, r.reach()
	if room == 0 {
		return nil
	}
	p.Connections = int(room)
	var lines []string
	if p.Side != Client {
		lines = append(lines, p.serve())
	}
	if p.Side != Server {
		lines = append(lines, p.hold())
	}
	return lines
}

// reach is how many connections of the plan have room after the changes that can be
// made from here.
func (r *Report) reach() int64 {
	room := int64(r.Plan.Connections)
	for i := range r.Walls {
		if w := &r.Walls[i]; !w.Soft && !r.movable(w) {
			room = min(room, w.Holds)
		}
	}
	return room
}

// movable reports whether a wall has changes, all of which can be made from here.
func (r *Report) movable(w *Wall) bool {
	return len(w.Changes) > 0 && !slices.ContainsFunc(w.Changes, r.elsewhere)
}

// serve is the server's. Its clients may be silent from the start, which it would
// not have otherwise; and a worker process gets some more than its share by chance.
func (p *Plan) serve() string {
	most := p.Connections
	line := "myriad serve --addr " + quote(p.targets()[0].String())
	if p.Model != auto {
		line += " --model " + p.Model
	}
	if p.Processes > 1 {
		line += fmt.Sprintf(" --processes %d", p.Processes)
		most = p.Processes * int(evenShare(int64(most), int64(p.Processes)))
	}
	return line + fmt.Sprintf(" --max-conns %d --first-byte-timeout never", most)
}

// hold is the client's. With both sides here it has the best model.
func (p *Plan) hold() string {
	line := fmt.Sprintf("myriad hold -n %d", p.Connections)
	if p.Model != auto && p.Side == Client {
		line += " --model " + p.Model
	}
	for _, s := range runs(p.Sources) {
		line += " --src " + s
	}
	for _, t := range p.targets() {
		line += " " + quote(t.String())
	}
	return line
}

// runs writes addresses, those that follow each other as a range.
func runs(addrs []netip.Addr) []string {
	var list []string
	for i := 0; i < len(addrs); {
		first, last := addrs[i], addrs[i]
		for i++; i < len(addrs) && addrs[i] == last.Next(); i++ {
			last = addrs[i]
		}
		if first == last {
			list = append(list, first.String())
		} else {
			list = append(list, first.String()+"-"+last.String())
		}
	}
	return list
}

// writeCommands writes them.
func (r *Report) writeCommands(b *bytes.Buffer) {
	lines, title := r.Commands(), "Then"
	if len(lines) == 0 {
		return
	}
	if room := r.reach(); room < int64(r.Plan.Connections) {
		title += fmt.Sprintf(", for the %s connections that have room", format.Count(room))
	}
	if len(lines) > 1 {
		title += ", each in a shell of its own"
		if slices.ContainsFunc(r.Changes(), Change.ofShell) {
			title += ", after the ulimit above in both"
		}
	}
	fmt.Fprintf(b, "\n%s:\n", title)
	for _, line := range lines {
		fmt.Fprintf(b, "  %s\n", line)
	}
}
