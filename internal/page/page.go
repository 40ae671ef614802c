// Package page writes what has been measured for people to read: as text and
// as a self-contained HTML page. All reports and the live page of a
// server are made of the same parts.
//
// A Page is plain data: sections of parts. Who makes one decides what it says; this
// package decides how it looks. Everything in it is text, and is escaped.
//
// A page of something that goes on has a Live. Its script then fetches Live.URL again
// and again, where the server answers with what WriteUpdate writes: the same page,
// made anew, without its script and style. What has changed is changed in place;
// charts keep their zoom, and what was opened or scrolled stays so. So there is one
// renderer, this one, and who serves a live page writes no script. Buttons are Actions.
//
// The page's script offers to tests and to tinkerers, as window.myriadPage: update(html)
// for what a fetch does, format(unit, value) for how values are written, and charts, a
// Map from an ID to what was drawn.
package page

import "time"

// Page is what is written.
type Page struct {
	// Title stands at the top, Lead below it: a sentence or two, of Tone.
	Title string
	Lead  string
	Tone  Tone
	// Remarks are what is to be known of the Lead, in a list below it.
	Remarks []Remark
	// Figures are the few that matter most, by name: they are large.
	Figures [][2]string
	// Facts are names and what they are, such as the machine and the command.
	Facts [][2]string
	// Sections are in order. A page with more than one has a list of them.
	Sections []Section
	// Live has the page follow what it shows, nil for a page that stays as it is.
	Live *Live
}

// Live says where a page finds itself anew.
type Live struct {
	// URL answers a GET with what WriteUpdate writes. It is relative to the page or on
	// the same server: the page may ask no other.
	URL string
	// Every is how long the page waits after an answer: 2 s if it is 0, and 100 ms at
	// the least. Without an answer it waits twice as long each time, 30 s at the most,
	// and says so.
	Every time.Duration
}

// Section is a part of a page under a heading.
type Section struct {
	// ID names it in links. Writing the page makes it of small letters, digits and dashes, and
	// unique; "" is made of the title.
	ID string
	// Title is the heading, Lead the text below it.
	Title string
	Lead  string
	Parts []Part
}

// Part is one of the things that a section has: exactly one field is set, but for Fold.
type Part struct {
	// Text is a paragraph.
	Text string
	// Heading is a smaller heading.
	Heading string
	// Remarks are sentences in a list: rules that were broken, notes. Fold has them folded
	// below it in HTML, "" has them open.
	Remarks []Remark
	Fold    string
	Table   *Table
	Chart   *Chart
	Bars    *Bars
	// Actions are buttons in a row.
	Actions []Action
	// Links are other pages of the same server, in a list.
	Links []Link
}

// Link is a page of the same server.
type Link struct {
	// URL is relative to the page; it is shown as it is, and Text after it.
	URL, Text string
}

// Action is a button of a live page. It sends a POST without a body to URL, with the
// header "Myriad-Action: 1", which no other site can have a browser send unasked; the
// server must insist on it. With Token the page asks
// for one before the first, sends it with all of them in the header "Myriad-Token", keeps
// it nowhere else, and asks again when the answer is 401. The text of the answer, 300 characters of it at the most,
// is shown, and then the page is fetched again.
type Action struct {
	// Label is what the button says; one without a label is none.
	Label string
	// URL is relative to the page or on the same server.
	URL string
	// Confirm is asked before, "" for nothing to ask.
	Confirm string
	// Token says that the server expects a token.
	Token bool
	// Slow says that the answer may take two minutes, instead of 10 s.
	Slow bool
}

// Remark is a sentence of a list.
type Remark struct {
	// Tone is how serious it is.
	Tone Tone
	Text string
}

// Tone colours a cell or a remark. The colour never says anything alone.
type Tone string

// The tones.
const (
	Plain Tone = ""
	Good  Tone = "good" // met, ahead
	Warn  Tone = "warn" // a rule was broken, not measured
	Bad   Tone = "bad"  // failed, behind
	Faint Tone = "faint"
)

// symbol is the sign of a tone, which says the same as its colour.
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

// label is what a tone says where it has neither colour nor sign.
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
