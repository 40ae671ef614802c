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
		"drawn":  (*Chart).toDownsampledChartData,
		"words":  (*Table).isTextColumn,
		"action": (*Table).rowAction,
		"mark":   Tone.symbol,
		"word":   Tone.label,
		"width":  (*Bars).cssWidth,
		"label":  (*Bars).barTextOrValue,
	}).Parse(pageHTML))
})

const (
	defaultInterval = 2 * time.Second
	minInterval     = 100 * time.Millisecond
)

// WriteHTML writes the page as a self-contained HTML file. If the rows of a table differ in length, or X and Y of a
// series differ in length, WriteHTML writes nothing and returns an error. Other errors come from w.
func (p *Page) WriteHTML(w io.Writer) error { return p.validateAndWriteTemplate(w, "page") }

// WriteUpdate writes the content of the page as HTML, without script and style. A live page fetches this output.
func (p *Page) WriteUpdate(w io.Writer) error { return p.validateAndWriteTemplate(w, "body") }

func (p *Page) validateAndWriteTemplate(w io.Writer, templateName string) error {
	if err := p.checkRowAndSeriesLengths(); err != nil {
		return err
	}
	p.assignUniqueIDs()
	v := newTemplateData(p, uplotCSS+"\n"+pageCSS, uplotJS+"\n"+themeJS+pageJS, p.Live != nil)
	if p.Live != nil {
		v.Every = max(cmp.Or(p.Live.Every, defaultInterval), minInterval).Milliseconds()
	}
	return v.executeTemplate(w, templateName)
}

// Application is an HTML page with its own content and script, in the style of this package.
type Application struct {
	Title string
	// Body is HTML. Style and Script follow the style and script that all pages share.
	Body, Style, Script string
}

// WriteHTML writes the Application as a self-contained HTML file. The page may connect only to its own server.
func (a Application) WriteHTML(w io.Writer) error {
	v := newTemplateData(&Page{Title: a.Title}, pageCSS+a.Style, themeJS+a.Script, true)
	v.Own = template.HTML(a.Body)
	return v.executeTemplate(w, "page")
}

type templateData struct {
	*Page
	Own    template.HTML
	Policy string
	// Style and Script are HTML elements. Policy allows their content by hash.
	Style, Script template.HTML
	// Every is the polling interval in milliseconds.
	Every int64
}

func newTemplateData(p *Page, style, script string, allowConnectSelf bool) templateData {
	return templateData{
		Page: p, Policy: contentSecurityPolicy(style, script, allowConnectSelf),
		Style:  template.HTML("<style>" + style + "</style>"),
		Script: template.HTML("<script>" + script + "</script>"),
	}
}

func (v templateData) executeTemplate(w io.Writer, templateName string) error {
	out := bufio.NewWriter(w)
	if err := pageTemplate().ExecuteTemplate(out, templateName, v); err != nil {
		return err
	}
	return out.Flush()
}

func groupAdjacentCharts(parts []Part) (groups [][]Part) {
	for i, part := range parts {
		if i > 0 && part.Chart != nil && parts[i-1].Chart != nil {
			groups[len(groups)-1] = append(groups[len(groups)-1], part)
		} else {
			groups = append(groups, []Part{part})
		}
	}
	return groups
}

// contentSecurityPolicy returns a Content-Security-Policy that allows the given inlineStyle and inlineScript and no
// others. If allowConnectSelf is true, the page may also connect to its own server.
func contentSecurityPolicy(inlineStyle, inlineScript string, allowConnectSelf bool) string {
	connect := "'none'"
	if allowConnectSelf {
		connect = "'self'"
	}
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; img-src data:; connect-src %s; base-uri 'none'; form-action 'none'",
		cspHash(inlineScript), cspHash(inlineStyle), connect)
}

func cspHash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
