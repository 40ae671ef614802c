package page

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// WriteMarkdown writes the page as GitHub reads it. Charts are not in it. Errors are those of
// WriteHTML.
func (p *Page) WriteMarkdown(w io.Writer) error {
	if err := p.check(); err != nil {
		return err
	}
	p.identify()
	m := &markdown{bufio.NewWriter(w)}
	m.paragraph("# ", p.Title)
	m.paragraph("", p.Lead)
	facts := slices.Concat(p.Figures, p.Facts)
	for _, fact := range facts {
		m.line("- **%s**: %s", plain(fact[0]), plain(fact[1]))
	}
	if len(facts) > 0 {
		m.line("")
	}
	sections := withoutCharts(p.Sections)
	if len(sections) > 1 {
		for _, s := range sections {
			m.line("- [%s](#%s)", plain(s.Title), s.ID)
		}
		m.line("")
	}
	for i := range sections {
		m.section(&sections[i], len(sections) > 1)
	}
	return m.Flush()
}

// markdown writes; its first error stays, and Flush returns it.
type markdown struct{ *bufio.Writer }

func (m *markdown) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }

// paragraph writes a text after a mark, and nothing of no text.
func (m *markdown) paragraph(mark, text string) {
	if text != "" {
		m.line("%s%s\n", mark, begin(plain(text)))
	}
}

func (m *markdown) section(s *Section, linked bool) {
	if linked {
		m.line("<a id=\"%s\"></a>\n", s.ID)
	}
	m.paragraph("## ", s.Title)
	m.paragraph("", s.Lead)
	for _, part := range s.Parts {
		m.paragraph("", part.Text)
		m.paragraph("### ", part.Heading)
		for _, r := range part.Remarks {
			if word := r.Tone.word(); word != "" {
				m.line("- %s **%s**: %s", r.Tone.mark(), word, plain(r.Text))
			} else {
				m.line("- %s", begin(plain(r.Text)))
			}
		}
		if len(part.Remarks) > 0 {
			m.line("")
		}
		if part.Table != nil {
			m.table(part.Table)
		}
		if part.Bars != nil {
			m.table(part.Bars.table())
		}
	}
}

func (m *markdown) table(t *Table) {
	if t.Caption != "" {
		m.line("**%s**\n", plain(t.Caption))
	}
	for i, line := range t.Lines {
		cells := make([]string, len(line))
		for j, cell := range line {
			cells[j] = plain(cell)
			if sign := t.Tone(i, j).mark(); sign != "" && i > 0 {
				cells[j] = sign + " " + cells[j]
			}
		}
		m.line("| %s |", strings.Join(cells, " | "))
		if i > 0 {
			continue
		}
		m.WriteString("|")
		for j := range line {
			if t.words(j) {
				m.WriteString(" :-- |")
			} else {
				m.WriteString(" --: |")
			}
		}
		m.line("")
	}
	m.line("")
}

var (
	marks = strings.NewReplacer(`\`, `\\`, "`", "\\`", `*`, `\*`, `_`, `\_`, `[`, `\[`, `]`, `\]`,
		`|`, `\|`, `~`, `\~`, `$`, `\$`, `<`, `&lt;`, `>`, `&gt;`, `&`, `&amp;`)
	blockMarks = regexp.MustCompile(`^(#|[-+=]|[0-9]{1,9}[.)])`)
)

// plain is a text on one line in which nothing is Markdown.
func plain(text string) string { return marks.Replace(strings.Join(strings.Fields(text), " ")) }

// begin keeps a plain text from being a heading, a list or a rule where it begins a
// paragraph.
func begin(text string) string {
	at := blockMarks.FindStringIndex(text)
	if at == nil {
		return text
	}
	return text[:at[1]-1] + `\` + text[at[1]-1:]
}
