package main

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/lab/report"
)

var update = flag.Bool("update", false, "draw the charts of README.md and of the articles anew")

// chartPanels are the charts of README.md. Each group of bars is a column of a workload's table.
var chartPanels = []struct {
	title, unit string
	columns     [2][2]string // workload and column, for TCP and for HTTP
}{
	{"Memory of an idle connection", "bytes", [2][2]string{{"idle-10000", "bytes/conn idle"}, {"idle", "bytes/conn idle"}}},
	{"Server CPU for a message", "µs", [2][2]string{{"echo-1000", "CPU µs/msg"}, {"hello", "CPU µs/msg"}}},
}

// chartGroups are the subjects of each group and how the chart names them.
var chartGroups = [2]struct {
	title    string
	subjects [][2]string
}{
	{"TCP echo", [][2]string{{"net", "package net"}, {"gnet", "gnet"}, {"epoll", "Myriad, epoll"}, {"uring", "Myriad, io_uring"}}},
	{"HTTP GET", [][2]string{{"net-http", "net/http"}, {"web-epoll", "Myriad web, epoll"}, {"web-uring", "Myriad web, io_uring"}}},
}

var cellGap = regexp.MustCompile(` {2,}`)

// readFigure returns the figure of a subject in the table of a workload.
func readFigure(t *testing.T, report, workload, column, subject string) (text string, value float64) {
	t.Helper()
	_, section, _ := strings.Cut(report, "\n"+workload+"\n")
	index := -1
	for line := range strings.Lines(section) {
		if cells := cellGap.Split(strings.TrimSpace(line), -1); cells[0] == "subject" {
			index = slices.Index(cells, column)
		} else if index > 0 && cells[0] == subject {
			value, err := strconv.ParseFloat(strings.ReplaceAll(cells[index], ",", ""), 64)
			testkit.RequireNoError(t, err)
			return cells[index], value
		}
	}
	t.Fatalf("no %q of %s in the table of %s", column, subject, workload)
	return "", 0
}

func drawReadmeChart(t *testing.T, text string, theme int) string {
	var panels []report.Panel
	for _, p := range chartPanels {
		panel := report.BarPanel{Title: p.title + ", " + p.unit}
		for g, group := range chartGroups {
			bars := report.BarGroup{Title: group.title}
			for _, s := range group.subjects {
				bar := report.Bar{Label: s[1]}
				bar.Text, bar.Value = readFigure(t, text, p.columns[g][0], p.columns[g][1], s[0])
				if strings.HasPrefix(s[1], "Myriad") {
					bar.Color = 1
				}
				bars.Bars = append(bars.Bars, bar)
			}
			panel.Groups = append(panel.Groups, bars)
		}
		panels = append(panels, panel)
	}
	return report.DrawPanelsAsSVG(panels, theme, true)
}

// TestDocumentsChart checks that the charts of README.md have the figures of the report beside them.
func TestDocumentsChart(t *testing.T) {
	const dir = "../../docs/results/readme"
	text, err := os.ReadFile(dir + ".txt")
	testkit.RequireNoError(t, err)
	for file, theme := range map[string]int{dir + "-light.svg": report.LightTheme, dir + "-dark.svg": report.DarkTheme} {
		chart := drawReadmeChart(t, string(text), theme)
		if *update {
			testkit.RequireNoError(t, os.WriteFile(file, []byte(chart), 0o644))
		}
		if text, err := os.ReadFile(file); err != nil || string(text) != chart {
			t.Errorf("%s, %v, does not have the figures of %s.txt; run go test ./tools/myriad -run DocumentsChart -update", file, err, dir)
		}
	}
}
