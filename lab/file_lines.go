package lab

import (
	"regexp"
	"strconv"
	"strings"
)

var (
	headerLine = regexp.MustCompile(`^\s*(\[\[?)([^\[\]]+)\]`)
	keyLine    = regexp.MustCompile(`^\s*([A-Za-z0-9_\-."']+)\s*=(.*)`)
)

// linesOf finds on which line of a TOML file each table and each key is, from 1, by its
// path, such as "workload[2].kind". It serves for messages: of what is written on one
// line with others, and of keys with dots in quotes, it knows the line around it.
func linesOf(text []byte) map[string]int {
	l := locator{lines: make(map[string]int), tables: make(map[string]int)}
	for i, line := range strings.Split(string(text), "\n") {
		l.line(line, i+1)
	}
	return l.lines
}

// locator goes through the lines of a file.
type locator struct {
	lines  map[string]int
	tables map[string]int // how many there were of each list of tables
	table  string         // the path of the table that it is in
	open   string         // the quotes of a text of several lines that it is in
}

func (l *locator) line(line string, number int) {
	if l.open != "" {
		if strings.Contains(line, l.open) {
			l.open = ""
		}
		return
	}
	if m := headerLine.FindStringSubmatch(line); m != nil {
		l.table = l.path(bare(m[2]), m[1] == "[[")
		l.keep(l.table, number)
		return
	}
	if m := keyLine.FindStringSubmatch(line); m != nil {
		l.keep(join(l.table, bare(m[1])), number)
		for _, quotes := range []string{`"""`, `'''`} {
			if strings.Count(m[2], quotes) == 1 {
				l.open = quotes
			}
		}
	}
}

// keep keeps where a path was first seen.
func (l *locator) keep(path string, number int) {
	if _, ok := l.lines[path]; !ok {
		l.lines[path] = number
	}
}

// path is the path of a table by what its header says: the last one of a list of tables,
// or a new one.
func (l *locator) path(header string, list bool) (path string) {
	names := strings.Split(header, ".")
	for i, name := range names {
		path = join(path, name)
		last := i == len(names)-1
		if last && list {
			l.tables[path]++
		}
		if n := l.tables[path]; n > 0 {
			path += "[" + strconv.Itoa(n-1) + "]"
		}
	}
	return path
}

// bare is a key without its quotes and the spaces around its dots.
func bare(key string) string {
	return strings.NewReplacer(" ", "", "\t", "", `"`, "", "'", "").Replace(key)
}
