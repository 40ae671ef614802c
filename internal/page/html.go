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
		"blocks": blocks,
		"drawn":  (*Chart).drawn,
		"words":  (*Table).words,
		"action": (*Table).action,
		"mark":   Tone.mark,
		"word":   Tone.word,
		"width":  (*Bars).width,
		"label":  (*Bars).label,
	}).Parse(pageHTML))
})

// The bounds of a live page's waits.
const (
	usualEvery = 2 * time.Second
	leastEvery = 100 * time.Millisecond
)

// WriteHTML writes the page as a self-contained file, whose policy forbids it to load
// anything; a live page may ask its own server. Without scripts everything is there but the charts. An error says what of the
// page is wrong, before anything is written, or is that of w.
func (p *Page) WriteHTML(w io.Writer) error { return p.write(w, "page") }

// WriteUpdate writes what a live page puts in its own place: the page without its script
// and style.
func (p *Page) WriteUpdate(w io.Writer) error { return p.write(w, "body") }

func (p *Page) write(w io.Writer, name string) error {
	if err := p.check(); err != nil {
		return err
	}
	p.identify()
	v := newView(p, uplotCSS+"\n"+pageCSS, uplotJS+"\n"+themeJS+pageJS, p.Live != nil)
	if p.Live != nil {
		v.Every = max(cmp.Or(p.Live.Every, usualEvery), leastEvery).Milliseconds()
	}
	return v.write(w, name)
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
	v := newView(&Page{Title: a.Title}, pageCSS+a.Style, themeJS+a.Script, true)
	v.Own = template.HTML(a.Body)
	return v.write(w, "page")
}

// view is what the template shows.
type view struct {
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

func newView(p *Page, style, script string, asks bool) view {
	return view{
		Page: p, Policy: policy(style, script, asks),
		Style:  template.HTML("<style>" + style + "</style>"),
		Script: template.HTML("<script>" + script + "</script>"),
	}
}

func (v view) write(w io.Writer, name string) error {
	out := bufio.NewWriter(w)
	if err := pageTemplate().ExecuteTemplate(out, name, v); err != nil {
		return err
	}
	return out.Flush()
}

// blocks are the parts of a section, charts that follow each other in one block.
func blocks(parts []Part) (all [][]Part) {
	for i, part := range parts {
		if i > 0 && part.Chart != nil && parts[i-1].Chart != nil {
			all[len(all)-1] = append(all[len(all)-1], part)
		} else {
			all = append(all, []Part{part})
		}
	}
	return all
}

// policy is the Content-Security-Policy of a page that may ask its own server, or nobody.
func policy(style, script string, asks bool) string {
	connect := "'none'"
	if asks {
		connect = "'self'"
	}
	return fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; img-src data:; connect-src %s; base-uri 'none'; form-action 'none'",
		hash(script), hash(style), connect)
}

func hash(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
