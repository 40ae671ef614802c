package doctor

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
)

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

// movable says whether a wall has changes, all of which can be made from here.
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
		title += fmt.Sprintf(", for the %s connections that have room", thousands(room))
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
