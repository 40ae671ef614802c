package testkit

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
)

// RESPWords splits a RESP value, as read by ReadRESP, into words. For a bulk string, the word is the string itself. For
// any other simple value, such as a number, the word is the line of the value, including its type character. The lines
// that begin an array, a map or a push message are omitted.
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

// WantEqual fails the test if have and want differ. format and args describe what is compared, and are the beginning of
// the message.
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
