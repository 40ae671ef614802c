package page

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"io"
	"sync"
	"time"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

//go:embed theme.js
var themeJS string

//go:embed page.js
var pageJS string

//go:embed uplot/uPlot.iife.min.js
var uplotJS string

//go:embed uplot/uPlot.min.css
var uplotCSS string

var pageTemplate = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"blocks": groupAdjacentCharts,
		"drawn":  (*Chart).toChartData,
		"words":  (*Table).isTextColumn,
		"action": (*Table).rowAction,
		"mark":   Tone.symbol,
		"word":   Tone.label,
		"width":  (*Bars).cssWidth,
		"label":  (*Bars).formatBar,
	}).Parse(pageHTML))
})

// The bounds of a live page's waits.
const (
	defaultInterval = 2 * time.Second
	minInterval     = 100 * time.Millisecond
)

// WriteHTML writes the page as a self-contained file, whose policy forbids it to load
// anything; a live page may ask its own server. Without scripts everything is there but the charts. An error says what of the
// page is wrong, before anything is written, or is that of w.
func (p *Page) WriteHTML(w io.Writer) error { return p.writeTemplate(w, "page") }

// WriteUpdate writes what a live page puts in its own place: the page without its script
// and style.
func (p *Page) WriteUpdate(w io.Writer) error { return p.writeTemplate(w, "body") }

func (p *Page) writeTemplate(w io.Writer, name string) error {
	if err := p.validate(); err != nil {
		return err
	}
	p.assignIDs()
	v := newTemplateData(p, uplotCSS+"\n"+pageCSS, uplotJS+"\n"+themeJS+pageJS, p.Live != nil)
	if p.Live != nil {
		v.Every = max(cmp.Or(p.Live.Every, defaultInterval), minInterval).Milliseconds()
	}
	return v.executeTemplate(w, name)
}

// Application is a page that draws itself, with a script of its own, in the look of the
// others.
type Application struct {
	Title string
	// Body is HTML; Style and Script are what the elements of these names have, behind what
	// all pages have.
	Body, Style, Script string
}

// WriteHTML writes it as a self-contained file, which may ask its own server alone.
func (a Application) WriteHTML(w io.Writer) error {
	v := newTemplateData(&Page{Title: a.Title}, pageCSS+a.Style, themeJS+a.Script, true)
	v.Own = template.HTML(a.Body)
	return v.executeTemplate(w, "page")
}

// templateData is what the template shows.
type templateData struct {
	*Page
	// Own is the body of an Application.
	Own template.HTML
	// Policy is what the page may do.
	Policy string
	// Style and Script are elements, in the very bytes that Policy knows by their hash.
	Style, Script template.HTML
	// Every is in milliseconds.
	Every int64
}

func newTemplateData(p *Page, style, script string, allowSelf bool) templateData {
	return templateData{
		Page: p, Policy: contentSecurityPolicy(style, script, allowSelf),
		Style:  template.HTML("<style>" + style + "</style>"),
		Script: template.HTML("<script>" + script + "</script>"),
	}
}

func (v templateData) executeTemplate(w io.Writer, name string) error {
	out := bufio.NewWriter(w)
	if err := pageTemplate().ExecuteTemplate(out, name, v); err != nil {
		return err
	}
	return out.Flush()
}

// groupAdjacentCharts are the parts of a section, charts that follow each other in one block.
func groupAdjacentCharts(parts []Part) (all [][]Part) {
	for i, part := range parts {
		if i > 0 && part.Chart != nil && parts[i-1].Chart != nil {
			all[len(all)-1] = append(all[len(all)-1], part)
		} else {
			all = append(all, []Part{part})
		}
	}
	return all
}

// contentSecurityPolicy is the Content-Security-Policy of a page that may ask its own server, or nobody.
func contentSecurityPolicy(style, script string, allowSelf bool) string {
	connect := "'none'"
	if allowSelf {
		connect = "'self'"
	}
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; img-src data:; connect-src %s; base-uri 'none'; form-action 'none'",
		cspHash(script), cspHash(style), connect)
}

func cspHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
