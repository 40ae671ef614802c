package testkit

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// RESPWords returns the strings of a value that ReadRESP has returned, and its other simple values as lines.
func RESPWords(raw string) (words []string) {
	for raw != "" {
		line, rest, _ := strings.Cut(raw, "\r\n")
		switch n, _ := strconv.Atoi(line[1:]); {
		case line[0] == '$' && n >= 0:
			words, rest = append(words, rest[:n]), rest[n+2:]
		case !strings.Contains("*>%", line[:1]):
			words = append(words, line)
		}
		raw = rest
	}
	return words
}

// WantEqual fails the test if have and want differ. The message says what they are in the words of format and args.
func WantEqual[T comparable](t testing.TB, have, want T, format string, args ...any) {
	t.Helper()
	if have == want {
		return
	}
	verb := "%+v"
	if _, isString := any(have).(string); isString {
		verb = "%.300q"
	}
	t.Errorf("%s: "+verb+"; want "+verb, fmt.Sprintf(format, args...), have, want)
}
