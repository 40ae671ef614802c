// Package page renders measurements for people, as text and as self-contained HTML pages. All reports and the live page
// of a server consist of the same parts.
//
// A Page is plain data: sections of parts. Callers decide on the content, and this package decides on the presentation.
// All content is text and is escaped. A page with Live set updates itself: its script regularly fetches Live.URL and
// replaces what has changed. The server responds to these requests with the output of WriteUpdate.
//
// For tests and experiments, the page's script offers window.myriadPage with three members: update(html) updates the
// page as after a fetch, format(unit, value) formats a value, and charts is a Map from an ID to the drawn chart.
package page

import "time"

type Page struct {
	// Title is the heading of the page. Lead is a sentence or two below the title, colored by Tone.
	Title string
	Lead  string
	Tone  Tone
	// Remarks are notes about Lead, displayed in a list below it.
	Remarks []Remark
	// Figures are the names and values of the most important results, displayed large.
	Figures [][2]string
	// Facts are names and values of further information, such as the machine and the command.
	Facts [][2]string
	// Sections are displayed in this order. A page with several sections has a table of contents.
	Sections []Section
	// Live makes the page update itself. It is nil for a static page.
	Live *Live
}

type Live struct {
	// URL is the address from which the page fetches the output of WriteUpdate. It must be on the page's own server.
	URL string
	// Every is the pause between a response and the next request. The default is 2 s, the minimum 100 ms.
	Every time.Duration
}

// Section is a part of a page under a heading.
type Section struct {
	// ID identifies the section in links. By default it is derived from Title. Writing the page makes ID unique and
	// reduces it to lower-case letters, digits and dashes.
	ID string
	// Title is the heading; Lead is the text below it.
	Title string
	Lead  string
	Parts []Part
}

// Part is an element of a section. Set exactly one field, or Remarks and Fold.
type Part struct {
	Text    string
	Heading string
	// Remarks are sentences in a list, such as notes. If Fold is set, the HTML list is folded under the headline Fold.
	Remarks []Remark
	Fold    string
	Table   *Table
	Chart   *Chart
	Bars    *Bars
	Actions []Action
	// Links are links to other pages of the same server, displayed as a list.
	Links []Link
}

type Link struct {
	// URL is relative to the page. It is displayed, followed by Text.
	URL, Text string
}

// Action is a button of a live page. The button sends an empty POST to URL with the header "Myriad-Action: 1". The
// server must require this header, because other sites cannot make a browser send it.
//
// If Token is set, the page asks for a token before the first action and sends it in the header "Myriad-Token".
type Action struct {
	// Label is the text of the button. An Action without a label is not displayed.
	Label string
	// URL is the address for the request. It is relative to the page or on the same server.
	URL string
	// Confirm is a question that the user must confirm before the request. "" means no question.
	Confirm string
	Token   bool
	// Slow extends the time limit for the response from 10 s to 2 minutes.
	Slow bool
}

type Remark struct {
	Tone Tone
	Text string
}

// Tone is the color of a text, such as a cell or a remark. A symbol or word always accompanies the color.
type Tone string

const (
	Plain Tone = ""
	Good  Tone = "good" // such as a goal that was met
	Warn  Tone = "warn" // such as a broken rule, or a missing measurement
	Bad   Tone = "bad"  // such as a failed run, or a goal that was not met
	Faint Tone = "faint"
)

func (t Tone) symbol() string {
	switch t {
	case Good:
		return "✓"
	case Warn:
		return "!"
	case Bad:
		return "✗"
	}
	return ""
}

func (t Tone) label() string {
	switch t {
	case Good:
		return "good"
	case Warn:
		return "warning"
	case Bad:
		return "bad"
	}
	return ""
}
