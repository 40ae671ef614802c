package lab

import (
	"strconv"
	"strings"
)

// ids are the names of sections and charts in a page: each once.
type ids map[string]bool

// newIDs has names that are used already.
func newIDs(used ...string) ids {
	all := make(ids)
	for _, id := range used {
		all[id] = true
	}
	return all
}

// id makes one of words.
func (all ids) id(words ...string) string {
	const most = 56 // leaves room for a number
	dash := func(c rune) bool { return c == '-' }
	base := strings.Join(strings.FieldsFunc(partID(strings.Join(words, "-")), dash), "-")
	base = strings.TrimSuffix(base[:min(len(base), most)], "-")
	if base == "" {
		base = "x"
	}
	id := base
	for n := 2; all[id]; n++ {
		id = base + "-" + strconv.Itoa(n)
	}
	all[id] = true
	return id
}
