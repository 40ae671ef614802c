// Package page renders measurements for people, as text and as self-contained HTML pages. All reports and the live page
// of a server consist of the same parts.
//
// A Page is plain data: sections of parts. Callers decide on the content, this package on the presentation. All content
// is text and is escaped. A page with Live set updates itself: its script regularly fetches Live.URL, where the server
// responds with the output of WriteUpdate, and replaces what has changed.
//
// For tests and experiments, the page's script offers window.myriadPage with three members: update(html) does what a
// fetch does, format(unit, value) formats a value, and charts is a Map from an ID to the drawn chart.
package page

import "time"

type Page struct {
	// Title is at the top. Lead is a sentence or two below it, coloured by Tone.
	Title string
	Lead  string
	Tone  Tone
	// Remarks qualify the Lead, in a list below it.
	Remarks []Remark
	// Figures are the names and values of the most important results, displayed large.
	Figures [][2]string
	// Facts are names and values, such as the machine and the command.
	Facts [][2]string
	// Sections are displayed in this order. A page with several sections has a table of contents.
	Sections []Section
	// Live makes the page update itself. It is nil for a static page.
	Live *Live
}

type Live struct {
	// URL responds to GET with the output of WriteUpdate. It must be on the same server as the page.
	URL string
	// Every is the pause after a response, at least 100 ms. The default, 0, is 2 s. While the server does not respond,
	// the page says so, and the pause doubles each time, up to 30 s.
	Every time.Duration
}

// Section is a part of a page under a heading.
type Section struct {
	// ID identifies the section in links. Writing the page normalizes the ID to lower-case letters, digits and dashes,
	// and makes it unique. If ID is empty, the title is used.
	ID string
	// Title is the heading; Lead is the text below it.
	Title string
	Lead  string
	Parts []Part
}

// Part is an element of a section. Exactly one field is set, except that Fold may be set together with Remarks.
type Part struct {
	Text    string
	Heading string
	// Remarks are sentences in a list, such as notes. Fold, if set, is a headline that opens the list in HTML.
	Remarks []Remark
	Fold    string
	Table   *Table
	Chart   *Chart
	Bars    *Bars
	Actions []Action
	// Links are links to other pages of the same server, in a list.
	Links []Link
}

type Link struct {
	// URL is relative to the page. It is displayed, followed by Text.
	URL, Text string
}

// Action is a button of a live page. It sends an empty POST to URL with the header "Myriad-Action: 1". The server must
// require the header, because no other site can make a browser send it. If Token is set, the page asks for a token
// before the first action and sends it in the header "Myriad-Token". The page keeps the token in memory only, and asks
// again after a response with status 401. The page shows up to 300 characters of the response and then updates itself.
type Action struct {
	// Label is the button's text. Without a label there is no button.
	Label string
	// URL is relative to the page or on the same server.
	URL string
	// Confirm is a question that the user must confirm first, or "" for none.
	Confirm string
	Token   bool
	// Slow extends the time limit for the response from 10 s to 2 minutes.
	Slow bool
}

type Remark struct {
	Tone Tone
	Text string
}

// Tone colours a cell or a remark. A symbol or word always accompanies the colour.
type Tone string

const (
	Plain Tone = ""
	Good  Tone = "good" // met, ahead
	Warn  Tone = "warn" // a rule was broken, not measured
	Bad   Tone = "bad"  // failed, behind
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

// label returns the tone as a word, for output with neither colour nor symbol.
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
