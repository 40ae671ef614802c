package page

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// textWidth is the maximum line length of paragraphs and captions in text output.
const textWidth = 100

// WriteText writes the page as plain text for a terminal, without charts.
func (p *Page) WriteText(w io.Writer) error {
	var b strings.Builder
	title := p.Title
	if p.Lead != "" {
		title += ": " + p.Lead
	}
	fmt.Fprintf(&b, "%s\n", title)
	Part{Remarks: p.Remarks}.writeText(&b)
	writeFacts(&b, slices.Concat(p.Figures, p.Facts))
	for _, s := range removeChartsAndEmptyHeadings(p.Sections) {
		s.writeText(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func removeChartsAndEmptyHeadings(sections []Section) (remaining []Section) {
	for _, s := range sections {
		var parts []Part // in reverse order
		for i := len(s.Parts) - 1; i >= 0; i-- {
			part := s.Parts[i]
			last := len(parts) == 0 || parts[len(parts)-1].Heading != ""
			if part.Chart == nil && (part.Heading == "" || !last) {
				parts = append(parts, part)
			}
		}
		if len(parts) == 0 && len(s.Parts) > 0 {
			continue
		}
		slices.Reverse(parts)
		s.Parts = parts
		remaining = append(remaining, s)
	}
	return remaining
}

func writeFacts(b *strings.Builder, facts [][2]string) {
	widest := 0
	for _, f := range facts {
		widest = max(widest, utf8.RuneCountInString(f[0]))
	}
	if len(facts) > 0 {
		b.WriteByte('\n')
	}
	for _, f := range facts {
		fill := strings.Repeat(" ", widest-utf8.RuneCountInString(f[0]))
		fmt.Fprintf(b, "  %s%s  %s\n", f[0], fill, f[1])
	}
}

func (s *Section) writeText(b *strings.Builder) {
	if s.Title != "" {
		fmt.Fprintf(b, "\n%s\n%s\n", s.Title, strings.Repeat("=", utf8.RuneCountInString(s.Title)))
	}
	if s.Lead != "" {
		writeWrapped(b, s.Lead)
	}
	headed := false // the previous part is a heading
	for _, part := range s.Parts {
		if !headed && (part.Text != "" || part.Table != nil || part.Bars != nil) {
			b.WriteByte('\n')
		}
		part.writeText(b)
		headed = part.Heading != ""
	}
}

func (p Part) writeText(b *strings.Builder) {
	switch {
	case p.Text != "":
		writeWrapped(b, p.Text)
	case p.Heading != "":
		fmt.Fprintf(b, "\n%s\n", p.Heading)
	case p.Bars != nil:
		p.Bars.writeText(b)
	case p.Table != nil:
		if p.Table.Caption != "" {
			writeWrapped(b, p.Table.Caption)
		}
		_ = p.Table.WriteText(b) // a builder does not fail
	}
	for _, r := range p.Remarks {
		fmt.Fprintf(b, "    %s\n", strings.ReplaceAll(r.Text, "\n", "\n      "))
	}
}

func writeWrapped(b *strings.Builder, text string) {
	column := 0
	for _, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case column == 0:
			b.WriteString("  ")
			column = 2
		case column+1+n > textWidth:
			b.WriteString("\n  ")
			column = 2
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	b.WriteByte('\n')
}
