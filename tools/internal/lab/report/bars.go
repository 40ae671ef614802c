package report

import (
	"fmt"
	"html"
	"strings"
)

// Panel is a section of a chart.
type Panel interface {
	// draw draws the panel below (x, y) and returns the y coordinate of its lower edge.
	draw(b *strings.Builder, x, y int) (bottom int)
}

// BarPanel is a bar chart with a title, and one scale for all its bars.
type BarPanel struct {
	Title  string
	Groups []BarGroup
}

type BarGroup struct {
	Title string // may be ""
	Bars  []Bar
}

// Bar is a labeled bar. Text is the displayed value. Color is an index from 0 to BarColors-1.
type Bar struct {
	Label, Text string
	Value       float64
	Color       int
}

// Themes of a chart. AutoTheme follows the reader's color scheme and has a background of its own.
const (
	LightTheme = iota
	DarkTheme
	AutoTheme
)

// BarColors is the number of colors for bars and lines in a theme.
const BarColors = 8

const firstBarColor = 3

// themeVariables contains the CSS variables of the light and the dark theme: background, text, quiet text, bar colors.
var themeVariables = [2][firstBarColor + BarColors]string{
	{"#ffffff", "#1f2328", "#59636e", "#818b98", "#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#1b7c83"},
	{"#0d1117", "#e6edf3", "#9198a1", "#6e7681", "#4493f8", "#f0883e", "#3fb950", "#ab7df8", "#f778ba", "#d29922", "#39c5cf"},
}

func themeCSS(theme int) string {
	rule := func(theme int) string {
		css := ":root{"
		for i, color := range themeVariables[theme] {
			css += fmt.Sprintf("--%d:%s;", i, color)
		}
		return css + "}"
	}
	if theme == AutoTheme {
		return rule(LightTheme) + "@media(prefers-color-scheme:dark){" + rule(DarkTheme) + "}"
	}
	return rule(theme)
}

const panelWidth = 410

// DrawPanelsAsSVG returns an SVG image with all panels. theme is LightTheme, DarkTheme or AutoTheme. The panels form a
// row if sideBySide is set, and a column otherwise.
func DrawPanelsAsSVG(panels []Panel, theme int, sideBySide bool) string {
	var b strings.Builder
	x, y, bottom := 0, 0, 0
	for i, p := range panels {
		if sideBySide {
			x, y = i*panelWidth, 0
		}
		y = p.draw(&b, x, y)
		bottom = max(bottom, y)
	}
	background := ""
	if theme == AutoTheme {
		background = `<rect width="100%" height="100%" fill="var(--0)"/>` + "\n"
	}
	return fmt.Sprintf(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="system-ui, sans-serif" font-size="13" fill="var(--1)">`+"\n<style>%s</style>\n%s%s</svg>\n",
		x+panelWidth, bottom, themeCSS(theme), background, b.String())
}

func drawTitle(b *strings.Builder, x, y int, title string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="15" font-weight="600">%s</text>`+"\n", x+4, y, html.EscapeString(title))
}

func (p BarPanel) draw(b *strings.Builder, x, y int) (bottom int) {
	const row, label, longest = 24, 150, 180
	most := 1e-9
	for _, g := range p.Groups {
		for _, bar := range g.Bars {
			most = max(most, bar.Value)
		}
	}
	y += 20
	drawTitle(b, x, y, p.Title)
	for _, g := range p.Groups {
		if g.Title != "" {
			y += row
			fmt.Fprintf(b, `<text x="%d" y="%d" fill="var(--2)">%s</text>`+"\n", x+4, y, html.EscapeString(g.Title))
		}
		for _, bar := range g.Bars {
			y += row
			length := max(bar.Value/most*longest, 1)
			fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="end">%s</text><rect x="%d" y="%d" width="%.1f" height="16" rx="2" fill="var(--%d)"/><text x="%.1f" y="%[2]d">%[9]s</text>`+"\n",
				x+label-8, y, html.EscapeString(bar.Label), x+label, y-13, length, firstBarColor+bar.Color, float64(x+label)+length+6, html.EscapeString(bar.Text))
		}
	}
	return y + 16
}
