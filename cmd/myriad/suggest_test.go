package main

import (
	"strings"
	"testing"
)

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"serv", "serve", 1}, {"ehco", "echo", 1}, {"pipline", "pipeline", 1}, {"kitten", "sitting", 3}} {
		if got, back := distance(c.a, c.b), distance(c.b, c.a); got != c.want || back != c.want {
			t.Errorf("%q, %q: %d, and %d the other way round; want %d", c.a, c.b, got, back, c.want)
		}
	}
}

// A name or a flag that is nearly one that there is gets that as a suggestion, one that is
// not gets none.
func TestSuggestions(t *testing.T) {
	for line, want := range map[string]string{
		"serv":                         `did you mean "serve"?`,
		"doc":                          `did you mean "doctor"?`,
		"frobnicate":                   "",
		"load --pipline 3 localhost:1": "did you mean --pipeline?",
		"load -pipeline 3 localhost:1": "did you mean --pipeline?",
		"load --frobnicate":            "",
		"serve --ap echo":              "", // too short
		"serve --max-con 1":            "did you mean --max-conns?",
		"serve --app ehco":             `did you mean "echo"?`,
		"serve --model epol":           `did you mean "epoll"?`,
		"load --model gorutine x:1":    `did you mean "goroutine"?`,
		"plain --app line":             `did you mean "lines"?`,
		"bench qick":                   `did you mean "quick"?`,
		"bench show overlod":           `did you mean "overload"?`,
	} {
		got := invoke(t, strings.Fields(line)...)
		if got.code != 2 {
			t.Errorf("%s: exit code %d, want 2; stderr %q", line, got.code, got.stderr)
		}
		if _, text, _ := strings.Cut(strings.TrimSpace(got.stderr), "; did"); strings.TrimPrefix(want, "did") != text {
			t.Errorf("%s: says %q, want %q at its end", line, got.stderr, want)
		}
	}
}
