package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

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
	names := slices.DeleteFunc(betweenList.Split(found[2], -1), func(name string) bool {
		return strings.Contains(name, " ") // as "or a file such as ./mine.toml" has
	})
	if name := nearest(found[1], names); name != "" {
		return fmt.Sprintf("; did you mean %q?", name)
	}
	return ""
}

// suggestFlag is the flag that was meant by one that there isn't: "" if none is near.
func suggestFlag(cmd *cobra.Command, e *pflag.NotExistError) string {
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

// nearest is the name that alone begins with a word, or else that at the least edit
// distance, "" if that is more than a third of the word and one.
func nearest(word string, names []string) string {
	if len(word) < shortest || len(word) > longest || len(names) == 0 {
		return ""
	}
	begin := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !strings.HasPrefix(name, word) })
	if len(begin) == 1 {
		return begin[0]
	}
	name := slices.MinFunc(names, func(a, b string) int { return cmp.Compare(distance(word, a), distance(word, b)) })
	if distance(word, name) > len(word)/3+1 {
		return ""
	}
	return name
}

// distance is the edit distance of two words, in bytes (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // distances of what of a was looked at to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			substituted := diagonal
			if a[i] != b[j] {
				substituted++
			}
			diagonal = row[j+1]
			row[j+1] = min(substituted, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
