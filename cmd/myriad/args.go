package main

import (
	"cmp"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// isAddress says whether a text is a host and a port to listen on.
func isAddress(text string) bool {
	_, ok := portOf(text)
	return ok
}

// portOf is the port of HOST:PORT, which can have the name of a service.
func portOf(text string) (port int, ok bool) {
	_, service, err := net.SplitHostPort(text)
	if err != nil {
		return 0, false
	}
	port, err = net.LookupPort("tcp", service)
	return port, err == nil
}

// checkAddress says what is wrong with what a flag says to listen on.
func checkAddress(flag, text string) error {
	if !isAddress(text) {
		return usagef("--%s is %q; expected HOST:PORT, with a port of 0 to 65535", flag, text)
	}
	return nil
}

// sameAddress says whether nobody can listen on both of two addresses.
func sameAddress(a, b string) bool {
	port, ok := portOf(a)
	other, otherOK := portOf(b)
	if !ok || !otherOK || port != other || port == 0 {
		return false
	}
	host, otherHost := hostOf(a), hostOf(b)
	return host == otherHost || host == "" || otherHost == ""
}

// hostOf is the host of HOST:PORT, "" for all of this machine's.
func hostOf(text string) string {
	host, _, _ := net.SplitHostPort(text)
	switch ip := net.ParseIP(host); {
	case host == "localhost":
		return "127.0.0.1"
	case ip == nil:
		return host
	case ip.IsUnspecified():
		return ""
	default:
		return ip.String()
	}
}

// nameAndList is how errors end that list what there is: `... "NAME"; expected one of A, B`,
// or `; expected A, B or C`.
var (
	nameAndList = regexp.MustCompile(`"([^"]*)"[^"]*; expected (?:one of )?([^";]*)`)
	betweenList = regexp.MustCompile(`,? or |, `)
)

// suggestion is the name that was meant, of those that an error lists; "" if none is near.
func suggestion(text string) string {
	found := nameAndList.FindStringSubmatch(text)
	if found == nil {
		return ""
	}
	var names []string
	for _, name := range betweenList.Split(found[2], -1) {
		if !strings.Contains(name, " ") { // as "or a file such as ./mine.toml" has
			names = append(names, name)
		}
	}
	if name := nearest(found[1], names); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	return ""
}

// meantFlag is the flag that was meant by one that there isn't: "" if none is near.
func meantFlag(cmd *cobra.Command, e *pflag.NotExistError) string {
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	})
	// "-pipeline" is a row of short flags.
	if name := nearest(cmp.Or(e.GetSpecifiedShortnames(), e.GetSpecifiedName()), names); name != "" {
		return fmt.Sprintf("; did you mean --%s?", name)
	}
	return ""
}

// Words of these lengths get suggestions.
const shortest, longest = 3, 64

// nearest is the name at the least edit distance from a word, or "" if that is more than a
// third of the word: then the name that alone begins with it.
func nearest(word string, names []string) string {
	if len(word) < shortest || len(word) > longest || len(names) == 0 {
		return ""
	}
	byDistance := func(a, b string) int { return cmp.Compare(distance(word, a), distance(word, b)) }
	if name := slices.MinFunc(names, byDistance); distance(word, name) <= max(1, len(word)/3) {
		return name
	}
	begin := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, word) })
	if len(begin) != 1 {
		return ""
	}
	return begin[0]
}

// distance is the edit distance of two words, in bytes: insertions, deletions,
// substitutions and swaps of neighbours.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		for j := range rows[i] {
			if i == 0 || j == 0 {
				rows[i][j] = i + j
				continue
			}
			changed := 1
			if a[i-1] == b[j-1] {
				changed = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+changed)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
