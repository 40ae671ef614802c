package report

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
)

// articlePart returns a pattern that matches the generated parts of an article. An article is a Markdown page. A
// generated part ends with "<!-- end -->" and begins with one of three markers:
//
//	<!-- table SCENARIO REGEXP FIGURE ... -->
//	<!-- chart SCENARIO REGEXP FIGURE TITLE -->
//	<!-- lines SCENARIO REGEXP FIGURE TITLE -->
//
// The part shows the runs whose name "workload/subject" matches REGEXP. A "table" has columns for the workload, the
// subject, each figure, and the caveats. The author of the article writes the two header lines of the table. A "chart"
// shows bars, and "lines" shows lines over the number of connections. All charts of an article are panels of one SVG
// file, which the author includes as an image.
var articlePart = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?s)(<!-- (table|chart|lines) (\S+) (\S+) (.*?) -->\n)(.*?)(<!-- end -->)`)
})

// connectionsColumn can be used in place of a figure's name in a table. The column then shows the number of
// connections.
const connectionsColumn = "connections"

// articleWords contains the fixed texts of the tables in an article, in one language.
type articleWords struct{ published, footer string }

var (
	englishWords = articleWords{"published", "Commit %s; %s; scale %s; %s; load average before %s."}
	chineseWords = articleWords{"原文", "提交 %s；%s；规模 %s；%s；之前的平均负载 %s。"}
)

// UpdateArticle regenerates the marked parts of an article from the runs in set. It returns the new text of the
// article, and the charts of the article as one SVG image. svg is "" if the article has no charts. If chinese is set,
// the generated texts are Chinese.
//
// UpdateArticle returns an error if a table has no header, if a figure is unknown, or if set has no runs of a scenario.
func UpdateArticle(page string, set *result.Set, chinese bool) (text, svg string, err error) {
	words := englishWords
	if chinese {
		words = chineseWords
	}
	a := articleUpdate{set: set, words: words, colors: map[string]int{words.published: 0}}
	text = articlePart().ReplaceAllStringFunc(page, func(part string) string {
		m := articlePart().FindStringSubmatch(part)
		body, partErr := a.regeneratePart(m)
		if partErr != nil {
			err = errors.Join(err, fmt.Errorf("%s %s %s: %w", m[2], m[3], m[4], partErr))
			return part
		}
		return m[1] + body + m[7]
	})
	if len(a.panels) > 0 {
		svg = DrawPanelsAsSVG(a.panels, AutoTheme, false)
	}
	return text, svg, err
}

type articleUpdate struct {
	set    *result.Set
	words  articleWords
	panels []Panel
	colors map[string]int // colour of each label
}

// regeneratePart returns the new text between the two markers of a generated part. m is a match of articlePart.
func (a *articleUpdate) regeneratePart(m []string) (string, error) {
	rows, err := a.rowsWithPublishedResults(m[3], m[4])
	if err != nil {
		return "", err
	}
	if m[2] == "chart" {
		figure, title, _ := strings.Cut(m[5], " ")
		return m[6], a.addBarPanel(rows, figure, title)
	} else if m[2] == "lines" {
		figure, title, _ := strings.Cut(m[5], " ")
		return m[6], a.addLinePanel(rows, figure, title)
	}
	lines := strings.SplitAfter(m[6], "\n")
	if len(lines) < 3 {
		return "", errors.New("no table header; expected two lines")
	}
	text, workload := lines[0]+lines[1], ""
	for _, row := range rows {
		cells := []string{"", row.label}
		if row.workload.Name != workload {
			workload = row.workload.Name
			cells[0] = "`" + workload + "`"
		}
		for figure := range strings.FieldsSeq(m[5]) {
			cell, _, err := row.figureCell(figure)
			if err != nil {
				return "", err
			}
			cells = append(cells, cell)
		}
		text += "|" + strings.Join(append(cells, row.formatMarks()), "|") + "|\n"
	}
	return text + "\n" + formatOrigins(rows, a.words) + "\n", nil
}

// articleRow is a table row. It shows either a subject's runs or a published result.
type articleRow struct {
	subjectRuns
	label     string
	report    *result.Report
	workload  *scenario.Workload
	reference *scenario.ReferenceTable
	published *scenario.ReferenceRow
}

// rowsWithPublishedResults returns the rows of a table, grouped by workload. There is a row for each pair of workload
// and subject whose name "workload/subject" matches the pattern. There is also a row for each published result of these
// workloads. The row of a published result stands above the row of the subject that reimplements the published design.
func (a *articleUpdate) rowsWithPublishedResults(scenarioName, runNamePattern string) (rows []articleRow, err error) {
	selected, err := regexp.Compile(runNamePattern)
	i := slices.IndexFunc(a.set.Reports, func(r *result.Report) bool { return r.Scenario.Name == scenarioName })
	if err != nil || i < 0 {
		return nil, cmp.Or(err, errors.New("the results contain no runs of this scenario; expected some"))
	}
	r := a.set.Reports[i]
	for w := range r.Scenario.Workloads {
		workload := &r.Scenario.Workloads[w]
		subjects := slices.DeleteFunc(groupRunsBySubject(r, workload.Name), func(x subjectRuns) bool {
			return !selected.MatchString(workload.Name + "/" + x.subject)
		})
		for i, x := range subjects {
			rows = append(rows, a.publishedRowsAbove(r, workload, subjects, i)...)
			rows = append(rows, articleRow{subjectRuns: x, label: "`" + x.subject + "`", report: r, workload: workload})
		}
	}
	return rows, nil
}

// publishedRowsAbove returns the published results to show above subjects[i]. These are the results of the design that
// subjects[i] reimplements. If i is 0, they also include results whose design is not among the subjects. If
// publishedRowsAbove returns several rows, it adds the names of the published results to the labels, to distinguish
// them.
func (a *articleUpdate) publishedRowsAbove(r *result.Report, workload *scenario.Workload, subjects []subjectRuns, i int) (rows []articleRow) {
	for t := range r.Scenario.References {
		reference := &r.Scenario.References[t]
		for p := range reference.Rows {
			published := &reference.Rows[p]
			design := max(slices.IndexFunc(subjects, func(x subjectRuns) bool { return x.subject == published.Design }), 0)
			if published.Workload == workload.Name && design == i {
				rows = append(rows, articleRow{label: a.words.published, workload: workload, reference: reference, published: published})
			}
		}
	}
	for i := range rows {
		if len(rows) > 1 {
			rows[i].label += ": " + rows[i].published.Name
		}
	}
	return rows
}

// formatMarks lists the problems of the row's runs with their frequencies. If the runs did not meet some of the
// required claims, it adds the number of these claims.
func (row *articleRow) formatMarks() string {
	marks, _ := row.formatProblemsWithWorstTone()
	if row.report == nil {
		return marks
	}
	failed := 0
	for _, v := range row.report.Verdicts {
		if v.Failed && strings.HasPrefix(v.Text, row.workload.Name+"/"+row.subject+":") {
			failed++
		}
	}
	if failed > 0 {
		marks = strings.TrimPrefix(fmt.Sprintf("%s, failed %d", marks, failed), ", ")
	}
	return marks
}

// connections returns the number of connections of the row's runs. If the row shows a published result, connections
// returns the published number.
func (row *articleRow) connections() int {
	if row.published != nil {
		return row.published.Count
	}
	n := row.runs[0].Connections
	if s := row.report.Scenario.FindSubject(row.subject); s != nil && s.MaxConns > 0 && !row.workload.Whole {
		n = min(n, s.MaxConns)
	}
	return n
}

// figureCell returns a figure of the row as text and as a number. A published figure keeps its published text and unit.
// The number is 0 if the figure is missing, if the text is a ratio, or if the figure is connectionsColumn.
func (row *articleRow) figureCell(figure string) (text string, valueOrZero float64, err error) {
	f, ok := probe.FindFigure(figure)
	switch {
	case figure == connectionsColumn:
		return formatCountOrNoFigure(row.connections()), 0, nil
	case !ok:
		return "", 0, fmt.Errorf("unknown figure %q", figure)
	case row.published != nil:
		i := slices.IndexFunc(row.reference.Columns, func(c scenario.Column) bool { return c.Figure == figure })
		if i < 0 {
			return probe.NoFigure, 0, nil
		}
		column := row.reference.Columns[i]
		text = row.published.Cells[i]
		if column.Unit != "" && !strings.Contains(text, " ") && text != probe.NoFigure {
			text += " " + column.Unit
		}
		valueOrZero, _ = column.ParsePublishedCell(row.published.Cells[i])
		return text, valueOrZero, nil
	}
	for _, t := range row.report.Scenario.References {
		for _, c := range t.Columns {
			if c.Figure == figure && c.Relative != "" {
				return formatMeasuredFigureOrRatio(c, groupRunsBySubject(row.report, row.workload.Name), row.subjectRuns), 0, nil
			}
		}
	}
	valueOrZero, _ = row.medianOfFigure(figure)
	return strings.ReplaceAll(row.formatMedian(f), " %", "%"), valueOrZero, nil
}

// formatOrigins describes in a sentence the rows' commits, dates, scales, machines and load averages.
func formatOrigins(rows []articleRow, words articleWords) string {
	var lists [5][]string
	for _, row := range rows {
		for _, run := range row.runs {
			o := &run.Origin
			for i, word := range []string{"`" + o.Commit + "`", run.Started.UTC().Format(time.DateOnly), o.Scale, o.Machine, o.LoadAverage} {
				lists[i] = append(lists[i], word)
			}
		}
	}
	var texts []any
	for _, list := range lists {
		slices.Sort(list)
		texts = append(texts, strings.Join(slices.Compact(list), ", "))
	}
	return fmt.Sprintf(words.footer, texts...)
}

func (a *articleUpdate) addBarPanel(rows []articleRow, figure, title string) error {
	panel := BarPanel{Title: title}
	workload := ""
	for _, row := range rows {
		text, value, err := row.figureCell(figure)
		if err != nil {
			return err
		}
		if value == 0 || stats.IsNeverLatency(value) {
			continue
		}
		if row.workload.Name != workload {
			workload = row.workload.Name
			panel.Groups = append(panel.Groups, BarGroup{Title: workload})
		}
		g := &panel.Groups[len(panel.Groups)-1]
		g.Bars = append(g.Bars, Bar{strings.Trim(row.label, "`"), text, value, a.reuseOrAssignColor(row.label)})
	}
	return a.addPanel(panel)
}

// addLinePanel adds a panel with a line chart. There is one line for each label of the rows. It shows the figure over
// the number of connections.
func (a *articleUpdate) addLinePanel(rows []articleRow, figure, title string) error {
	panel := LinePanel{Title: title}
	for _, row := range rows {
		_, value, err := row.figureCell(figure)
		if err != nil {
			return err
		}
		if value == 0 || stats.IsNeverLatency(value) {
			continue
		}
		label := strings.Trim(row.label, "`")
		i := slices.IndexFunc(panel.Lines, func(line Line) bool { return line.Label == label })
		if i < 0 {
			i, panel.Lines = len(panel.Lines), append(panel.Lines, Line{Label: label, Color: a.reuseOrAssignColor(row.label)})
		}
		line := &panel.Lines[i]
		line.X, line.Y = append(line.X, float64(row.connections())), append(line.Y, value)
	}
	if len(panel.Lines) == 0 {
		return fmt.Errorf("no run has the figure %s; expected at least one", figure)
	}
	return a.addPanel(panel)
}

func (a *articleUpdate) reuseOrAssignColor(label string) int {
	if _, ok := a.colors[label]; !ok {
		a.colors[label] = len(a.colors)
	}
	return a.colors[label]
}

func (a *articleUpdate) addPanel(p Panel) error {
	if a.panels = append(a.panels, p); len(a.colors) > BarColors {
		return fmt.Errorf("the chart has %d different labels; expected at most %d", len(a.colors), BarColors)
	}
	return nil
}
