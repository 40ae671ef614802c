package lab

import (
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/page"
)

// Page is the book for people: what was found in short, each report, its charts, and its
// time lines.
func (b *Book) Page() page.Page {
	p := page.Page{Title: b.title(), Facts: b.facts()}
	used := newIDs("overview")
	p.Sections = append(p.Sections, b.overview())
	for _, r := range b.Reports {
		s := r.Section()
		s.ID = used.id(s.ID)
		s.Parts = append(s.Parts, r.charts(used)...)
		p.Sections = append(p.Sections, s)
	}
	for _, r := range b.Reports {
		p.Sections = append(p.Sections, r.timelines(used)...)
	}
	return p
}

// title names the scenarios, if they are few.
func (b *Book) title() string {
	var names []string
	for _, r := range b.Reports {
		names = append(names, r.Scenario.Name)
	}
	if len(names) == 0 || len(names) > 3 {
		return "Myriad bench"
	}
	return "Myriad bench: " + joined(names)
}

// facts are how the book was made.
func (b *Book) facts() [][2]string {
	version := b.Version
	if version == "" {
		version = "not known"
	}
	scale := b.Scale
	if scale == "" {
		scale = "as the scenarios are written"
	}
	facts := [][2]string{
		{"Machine", b.Machine.String()},
		{"Myriad", version},
		{"Date", b.Date.UTC().Format(time.DateTime + " MST")},
	}
	if b.Took > 0 {
		facts = append(facts, [2]string{"Took", b.Took.Round(time.Second).String()})
	}
	return append(facts,
		[2]string{"Command", b.Command},
		[2]string{"Scale", scale},
		[2]string{"Runs", fmt.Sprintf("%d, of which %d failed", b.Runs(), b.Failed())})
}
