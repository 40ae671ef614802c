package page

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// The chart that Markdown shows as a table has this many points and series at the most.
const (
	fewPoints = 12
	fewSeries = 8
)

// WriteMarkdown writes the page as GitHub reads it. A chart of few points becomes a
// table; of any other it says that the page in HTML draws it. Errors are those of
// WriteHTML.
func (p *Page) WriteMarkdown(w io.Writer) error {
	if err := p.check(); err != nil {
		return err
	}
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
	if len(p.Sections) > 1 {
		for i := range p.Sections {
			m.line("- [%s](#%s)", plain(p.Sections[i].Title), p.Sections[i].ID)
		}
		m.line("")
	}
	for i := range p.Sections {
		m.section(&p.Sections[i], len(p.Sections) > 1)
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
		if part.Chart != nil {
			m.chart(part.Chart)
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

func (m *markdown) chart(c *Chart) {
	if t := c.table(); t != nil {
		m.table(t)
	} else {
		m.line("**%s**: the page in HTML draws this chart, %s by %s, in %d curves.\n",
			plain(c.Title), plain(c.Y.Label), plain(c.X.Label), len(c.Series))
	}
	m.paragraph("", c.Note)
}

// table is the chart's points, nil if they are too many or none.
func (c *Chart) table() *Table {
	if len(c.Series) == 0 || len(c.Series) > fewSeries {
		return nil
	}
	var all []float64
	head := []string{c.X.Label}
	series := slices.Clone(c.Series)
	for i := range series {
		s := &series[i]
		s.X, s.Y = usable(s.X, s.Y, c.X.Log, c.axis(s).Log)
		head = append(head, s.Name)
		all = append(all, s.X...)
		slices.Sort(all)
		if all = slices.Compact(all); len(all) > fewPoints {
			return nil
		}
	}
	t := &Table{Caption: c.Title + ": " + c.Y.Label, Lines: [][]string{head}, Figures: true}
	for _, x := range all {
		cells := []string{c.X.Unit.Text(x)}
		for _, s := range series {
			cell := ""
			if i := slices.Index(s.X, x); i >= 0 {
				cell = c.axis(&s).Unit.Text(s.Y[i])
			}
			cells = append(cells, cell)
		}
		t.Add(cells...)
	}
	return t
}

var (
	marks = strings.NewReplacer(`\`, `\\`, "`", "\\`", `*`, `\*`, `_`, `\_`, `[`, `\[`, `]`, `\]`,
		`|`, `\|`, `~`, `\~`, `$`, `\$`, `<`, `&lt;`, `>`, `&gt;`, `&`, `&amp;`)
	blocks = regexp.MustCompile(`^(#|[-+=]|[0-9]{1,9}[.)])`)
)

// plain is a text on one line in which nothing is Markdown.
func plain(text string) string { return marks.Replace(strings.Join(strings.Fields(text), " ")) }

// begin keeps a plain text from being a heading, a list or a rule where it begins a
// paragraph.
func begin(text string) string {
	at := blocks.FindStringIndex(text)
	if at == nil {
		return text
	}
	return text[:at[1]-1] + `\` + text[at[1]-1:]
}
