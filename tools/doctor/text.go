package doctor

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/myriad-go/myriad/internal/format"
)

// shownFarWalls is the maximum number of table rows for limits that only larger plans exceed.
const shownFarWalls = 3

const textWidth = 100

// WriteText writes the report as text: the number of connections that the machine can hold, the limits that the plan
// exceeds, the changes that raise them, the commands that run the plan, and links to sources.
func (r *Report) WriteText(w io.Writer) error {
	exceeded, far, never := r.splitWallsByReach()
	shown := min(shownFarWalls, len(far))
	var further, unreached []string
	for _, w := range far[shown:] {
		further = append(further, fmt.Sprintf("%s %s", w.Name, format.Count(w.Holds)))
	}
	for _, w := range never {
		unreached = append(unreached, w.Name)
	}
	var here, elsewhere []string
	for _, c := range r.Changes() {
		if r.isSysctlReadOnlyHere(c) {
			elsewhere = append(elsewhere, c.Command())
		} else {
			here = append(here, c.Command())
		}
	}

	var b bytes.Buffer
	fmt.Fprintln(&b, r.Summary())
	writeWallTable(&b, slices.Concat(exceeded, far[:shown]))
	writeTitledCommaList(&b, "Further away: ", further)
	writeTitledCommaList(&b, "Not reached by this plan: ", unreached)
	writeTitledCommaList(&b, "Unknown: ", r.Facts.Unknown)
	writeTitledLines(&b, "Effects:", formatTextOfEachWall(exceeded, func(w *Wall) string { return w.Effect }))
	writeTitledLines(&b, "To raise them, in this order, as root:", here)
	writeTitledLines(&b, "Not writable here; on the machine itself or when the container is created:", elsewhere)
	writeTitledLines(&b, "No setting suffices here:", formatTextOfEachWall(exceeded, func(w *Wall) string { return w.Advice }))
	writeTitledLines(&b, r.titleOfServeAndHoldCommands(), r.CommandsToRunPlan())
	writeTitledLines(&b, "Sources:", formatTextOfEachWall(exceeded, func(w *Wall) string { return w.Source }))
	_, err := w.Write(b.Bytes())
	return err
}

func writeTitledLines(b *bytes.Buffer, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(b, "\n%s\n  %s\n", title, strings.Join(lines, "\n  "))
	}
}

func writeTitledCommaList(b *bytes.Buffer, title string, items []string) {
	if len(items) > 0 {
		fmt.Fprintf(b, "\n%s\n", wrapText(title+strings.Join(items, ", ")+".", "  "))
	}
}

func formatTextOfEachWall(walls []*Wall, text func(*Wall) string) (lines []string) {
	for _, w := range walls {
		if said := text(w); said != "" {
			lines = append(lines, wrapText(w.Name+": "+said, "    "))
		}
	}
	return lines
}

// Summary states in one line how many connections the machine can hold now, and which limit prevents more.
func (r *Report) Summary() string {
	plan := fmt.Sprintf("%s, model %s", r.Plan.sidePhrase(), resolveModel(r.Plan.Model, r.Facts))
	if r.Plan.Processes > 1 {
		plan += fmt.Sprintf(", %d processes", r.Plan.Processes)
	}
	wanted := format.Count(r.Plan.Connections)
	switch {
	case r.Holds < int64(r.Plan.Connections):
		return fmt.Sprintf("This machine can hold %s connections now (wanted: %s; %s): the first wall is %s.", format.Count(r.Holds), wanted, plan, r.First)
	case r.Holds == Unlimited:
		return fmt.Sprintf("This machine can hold %s connections now, as planned (%s); no wall is known.", wanted, plan)
	}
	return fmt.Sprintf("This machine can hold %s connections now, as planned (%s); the first wall is at %s: %s.", wanted, plan, format.Count(r.Holds), r.First)
}

func (p *Plan) sidePhrase() string {
	if p.Side == Both {
		return "both sides"
	}
	return string(p.Side) + " side"
}

// splitWallsByReach divides the limits into those that the plan exceeds, those that only a larger plan exceeds, and
// those that no plan can exceed.
func (r *Report) splitWallsByReach() (exceeded, exceededByLarger, unreachable []*Wall) {
	for i := range r.Walls {
		switch w := &r.Walls[i]; {
		case w.Exceeded(r.Plan.Connections):
			exceeded = append(exceeded, w)
		case w.Holds < Unlimited:
			exceededByLarger = append(exceededByLarger, w)
		default:
			unreachable = append(unreachable, w)
		}
	}
	return exceeded, exceededByLarger, unreachable
}

func writeWallTable(b *bytes.Buffer, walls []*Wall) {
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
		fmt.Fprintf(t, "  %s\t%s\t%s\t%s\t%s\n", w.Name, w.Side, w.Present, at, cmp.Or(w.Needs, "enough"))
	}
	_ = t.Flush() // cannot fail, because it writes to a buffer
}

// isSysctlReadOnlyHere reports whether c changes a kernel setting that this process cannot write although it has root
// rights, for example because the process is in a container.
func (r *Report) isSysctlReadOnlyHere(c Change) bool {
	return r.Facts.Process.Root && c.Kind == Sysctl && slices.Contains(r.Facts.ReadOnly, c.Name)
}

// wrapText breaks text into lines of up to textWidth columns. It does not break text between backticks. It puts
// continuationIndent in front of all lines except the first.
func wrapText(text, continuationIndent string) string {
	var out strings.Builder
	width := 0
	for i, word := range splitWordsOutsideBackticks(text) {
		switch {
		case i > 0 && width+1+len(word) > textWidth:
			out.WriteString("\n" + continuationIndent)
			width = len(continuationIndent)
		case i > 0:
			out.WriteByte(' ')
			width++
		}
		out.WriteString(word)
		width += len(word)
	}
	return out.String()
}

func splitWordsOutsideBackticks(text string) (list []string) {
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

// CommandsToRunPlan returns the commands that run the plan: the server's command, the client's command, or first the
// server's and then the client's. If some connections do not fit even after all changes, the commands open as many as
// fit. If no connection fits, CommandsToRunPlan returns nil.
func (r *Report) CommandsToRunPlan() []string {
	p, room := r.Plan, r.plannedConnsFittingAfterChanges()
	if room == 0 {
		return nil
	}
	p.Connections = int(room)
	var lines []string
	if p.Side != Client {
		lines = append(lines, p.serveCommand())
	}
	if p.Side != Server {
		lines = append(lines, p.holdCommand())
	}
	return lines
}

func (r *Report) plannedConnsFittingAfterChanges() int64 {
	room := int64(r.Plan.Connections)
	for i := range r.Walls {
		if w := &r.Walls[i]; !w.Soft && !r.canRaiseFromHere(w) {
			room = min(room, w.Holds)
		}
	}
	return room
}

func (r *Report) canRaiseFromHere(w *Wall) bool {
	return len(w.Changes) > 0 && !slices.ContainsFunc(w.Changes, r.isSysctlReadOnlyHere)
}

func (p *Plan) serveCommand() string {
	most := p.Connections
	line := "myriad serve --addr " + quoteForShell(p.targetsOrDefault()[0].String())
	if p.Model != auto {
		line += " --model " + p.Model
	}
	if p.Processes > 1 {
		line += fmt.Sprintf(" --processes %d", p.Processes)
		most = p.Processes * int(shareWithImbalanceMargin(int64(most), int64(p.Processes)))
	}
	return line + fmt.Sprintf(" --max-conns %d --first-byte-timeout never", most)
}

func (p *Plan) holdCommand() string {
	line := fmt.Sprintf("myriad hold -n %d", p.Connections)
	if p.Model != auto && p.Side == Client {
		line += " --model " + p.Model
	}
	for _, s := range formatAddrRanges(p.Sources) {
		line += " --src " + s
	}
	for _, t := range p.targetsOrDefault() {
		line += " " + quoteForShell(t.String())
	}
	return line
}

func formatAddrRanges(addrs []netip.Addr) []string {
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

func (r *Report) titleOfServeAndHoldCommands() string {
	title := "Then"
	if room := r.plannedConnsFittingAfterChanges(); room < int64(r.Plan.Connections) {
		title += fmt.Sprintf(", for the %s connections that fit", format.Count(room))
	}
	if r.Plan.Side == Both {
		title += ", each in a shell of its own"
		if slices.ContainsFunc(r.Changes(), Change.isShellLimit) {
			title += ", after the ulimit above in both"
		}
	}
	return title + ":"
}
