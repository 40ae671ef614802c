package cluster

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/hub"
)

func TestSubjects(t *testing.T) {
	for name, want := range map[string]string{
		"a":                         "a",
		"chat:7":                    "chat:.7",
		"a b..":                     "a%20b.%.%",
		".":                         "%.%",
		"::":                        ":.:.%",
		">":                         "%3E",
		"$SYS":                      "$SYS",
		"é\r\n\x00":                 "%C3%A9%0D%0A%00",
		strings.Repeat("x.", 17):    strings.Repeat("x.", 15) + "x%2Ex%2E",
		strings.Repeat("x", 1024):   strings.Repeat("x", 1024),
		strings.Repeat(":", 20)[:3]: ":.:.:.%",
	} {
		subject, long := topicSubject(hub.Topic, name)
		if subject != topicPrefix+want || long {
			t.Errorf("%q is the subject %q, %v; expected %q", name, subject, long, topicPrefix+want)
		}
		if k, back, ok := parseTopicSubject(subject); k != hub.Topic || back != name || !ok {
			t.Errorf("%q is the name %q, %v; expected %q", subject, back, ok, name)
		}
	}
	for _, subject := range []string{"other", "myriad.x.a", topicPrefix + "a%", topicPrefix + "%2", topicPrefix + "%zz", topicPrefix + "%%" + strings.Repeat("0", 64)} {
		if _, name, ok := parseTopicSubject(subject); ok {
			t.Errorf("%q is the name %q; expected none", subject, name)
		}
	}
	if subject, _ := topicSubject(hub.Sharded, "a"); subject != "myriad.s.a" {
		t.Errorf("a sharded topic has the subject %q", subject)
	}
}

func TestPatternSubjects(t *testing.T) {
	for pattern, want := range map[string]string{
		"*":        ">",
		"news*":    ">",
		"news.*":   "news.>",
		"chat:*":   "chat:.>",
		"a.b?":     "a.>",
		"a.b[c]":   "a.>",
		`a\*b`:     "a%2Ab",
		`a.\`:      `a.\`,
		`a\.b.*`:   "a.b.>",
		"..*":      "%.%.>",
		"a":        "a",
		"*.events": ">",
	} {
		if got := subjectCoveringPattern(pattern); got != topicPrefix+want {
			t.Errorf("%q has the subject %q; expected %q", pattern, got, topicPrefix+want)
		}
	}
}

func subjectCovers(wide, subject string) bool {
	if begin, ok := strings.CutSuffix(wide, allSuffix); ok {
		return strings.HasPrefix(subject, begin) && len(subject) > len(begin)
	}
	return wide == subject
}

// TestSubjectsAtRandom checks that names have distinct bounded subjects, that subjects of short names map back, and
// that a pattern's subject covers its matches.
func TestSubjectsAtRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const bytes = "ab.:/*?[]\\^-% >\xff"
	text := func(limit int) string {
		b := make([]byte, 1+r.IntN(limit))
		for i := range b {
			b[i] = bytes[r.IntN(len(bytes))]
		}
		return string(b)
	}
	matched := 0
	bySubject := make(map[string]string)
	for range 200_000 {
		name, pattern := text(8), text(6)
		if r.IntN(100) == 0 {
			name = strings.Repeat(name, 200)
		}
		subject, long := topicSubject(hub.Topic, name)
		if other, ok := bySubject[subject]; ok && other != name {
			t.Fatalf("%q and %q have one subject, %q", name, other, subject)
		}
		bySubject[subject] = name
		if _, back, ok := parseTopicSubject(subject); !long && (back != name || !ok) {
			t.Fatalf("%q has the subject %q, which has the name %q, %v", name, subject, back, ok)
		}
		if len(subject) > len(topicPrefix)+maxSubjectBytes || strings.ContainsAny(subject, " \r\n*>") || strings.Contains(subject, "..") || strings.HasSuffix(subject, ".") {
			t.Fatalf("%q has the subject %q, which NATS does not take", name, subject)
		}
		if hub.Matcher(pattern)(name) {
			matched++
			if wide := subjectCoveringPattern(pattern); !subjectCovers(wide, subject) {
				t.Fatalf("%q matches %q, but %q does not match %q", pattern, name, wide, subject)
			}
		}
	}
	if matched < 1000 {
		t.Fatalf("only %d names were matched", matched)
	}
}
