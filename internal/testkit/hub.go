package testkit

import (
	"strconv"
	"strings"
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
