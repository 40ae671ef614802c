package lab

import (
	"regexp"
	"slices"
	"strings"
)

// placeholders are all that commands may have, but for {model}, and for {peers}, which stands
// for something only with OverloadChanges.Peers.
var placeholders = []string{"{self}", "{addr}", "{port}", "{app}", "{cert}", "{key}", "{heartbeat}", "{admin}", "{n}", "{room}", "{processes}", "{workers}"}

// placeholders are those that are filled in for the subject.
func (s Subject) placeholders() []string {
	switch {
	case s.Side == nil:
		return placeholders[:len(placeholders)-1]
	case s.Side.Server:
		return []string{"{self}", "{addr}", "{port}", "{workers}"}
	}
	return placeholders[:1]
}

// checkPlaceholders is the part of check that looks for placeholders which others have.
func (s Subject) checkPlaceholders() error {
	for _, p := range placeholders {
		if own := s.placeholders(); s.says(p) && !slices.Contains(own, p) {
			return wrong("subject %s: %s in its command stands for nothing; expected some of %s", s.Name, p, strings.Join(own, ", "))
		}
	}
	for _, word := range s.Command {
		for _, p := range braced.FindAllString(word, -1) {
			if meant := s.meant(p); meant != "" {
				return wrong("subject %s: %s in its command stands for nothing; did you mean %s?", s.Name, p, meant)
			}
		}
	}
	if s.says(peersMark) && !s.Optional {
		return wrong("subject %s: {peers} in its command stands for nothing; expected \"bench overload --peers FILE\", or the program's path in its place", s.Name)
	}
	return nil
}

// braced are words in braces.
var braced = regexp.MustCompile(`\{[A-Za-z_]+\}`)

// meant is the placeholder that a word in braces was meant to be, "" for one of ours, and for
// one that is not like any of the subject's: that is the program's own. It is like one of 3
// letters or more that differs in one letter, or has two in the other order.
func (s Subject) meant(word string) string {
	own := append(slices.Clone(s.placeholders()), modelMark)
	if slices.Contains(own, word) || slices.Contains(placeholders, word) || word == peersMark {
		return ""
	}
	const least = len("{key}")
	for _, p := range own {
		if len(p) >= least && (distance(word, p) == 1 || swapped(word, p)) {
			return p
		}
	}
	return ""
}

// swapped says whether two letters next to each other in a have the other order in b.
func swapped(a, b string) bool {
	if len(a) != len(b) {
		return false
	}
	i := 0
	for i < len(a) && a[i] == b[i] {
		i++
	}
	return i+1 < len(a) && a[i] == b[i+1] && a[i+1] == b[i] && a[i+2:] == b[i+2:]
}
