package hub

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// indexed is a patternIndex beside all of its patterns.
type indexed struct {
	patternIndex
	all map[string]*topic
}

func (x *indexed) put(pattern string) {
	t := x.all[pattern]
	if t == nil {
		t = &topic{name: pattern, kind: patternKind}
		if x.all == nil {
			x.all = make(map[string]*topic)
		}
		x.all[pattern] = t
	}
	x.add(t)
}

func (x *indexed) drop(pattern string) {
	if t := x.all[pattern]; t != nil {
		delete(x.all, pattern)
		x.remove(t)
	}
}

// check compares what the index finds for a name with what a look at all patterns does.
func (x *indexed) check(t *testing.T, name string) {
	t.Helper()
	var found, want []string
	x.match(name, func(p *topic) { found = append(found, p.name) })
	for p := range x.all {
		if globMatches(p, name) {
			want = append(want, p)
		}
	}
	slices.Sort(found)
	slices.Sort(want)
	if !slices.Equal(found, want) {
		t.Fatalf("of %d patterns %q matches %q, want %q", len(x.all), name, found, want)
	}
}

// empty says what is left of an index without patterns.
func (x *indexed) empty(t *testing.T) {
	t.Helper()
	for pattern := range maps.Clone(x.all) {
		x.drop(pattern)
	}
	for at := range places {
		if n := len(x.kept[at]); n > 0 {
			t.Errorf("%d runs at place %d are left of no pattern", n, at)
		}
		for size, n := range x.sizes[at] {
			if n != 0 {
				t.Errorf("at place %d %d runs of %d bytes are counted and none are there", at, n, size)
			}
		}
	}
}

// text is n bytes of an alphabet.
func text(r *rand.Rand, alphabet string, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = alphabet[r.IntN(len(alphabet))]
	}
	return string(b)
}

// The index finds what a look at all patterns finds, while patterns come and go.
func TestPatternIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 60 {
		var x indexed
		for range 150 {
			switch pattern := text(r, `aab.**?[]\^-`, r.IntN(8)); r.IntN(3) {
			case 0:
				x.drop(pattern)
			default:
				x.put(pattern)
			}
			x.check(t, text(r, "ab.", r.IntN(10)))
		}
		x.empty(t)
	}
}

// Long runs, of which only a part is looked up, and names with a run many times.
func TestPatternIndexLong(t *testing.T) {
	var x indexed
	long := strings.Repeat("0123456789", 10)
	for _, p := range []string{"*" + long + "*", "*x" + long + "y*", long + "*", "*" + long, "?" + long + "?", "*aa*", "*a*a*", strings.Repeat("*b", 40) + "*"} {
		x.put(p)
	}
	for _, name := range []string{long, "x" + long + "y", "-" + long + "-", long[1:], strings.Repeat("a", 50), strings.Repeat("b", 40), strings.Repeat("b", 39), ""} {
		x.check(t, name)
	}
	x.empty(t)
}

// manyPatterns are of three forms, n in all.
func manyPatterns(n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf([]string{"user.%d.*", "*.%d.log", "a*%d*b"}[i%3], i))
	}
	return all
}

// A publish tries few patterns, whatever many have in common.
func TestPatternsTried(t *testing.T) {
	var x indexed
	for _, p := range manyPatterns(30_000) {
		x.put(p)
	}
	for name, most := range map[string]int{
		"user.3000.x": 8, "user.3001.x": 8, "x.3001.log": 8, "a-3002-b": 8, "nothing": 8, strings.Repeat("user.", 200): 8,
	} {
		if tried := x.match(name, func(*topic) {}); tried > most {
			t.Errorf("%.20q: %d of 30000 patterns tried, want %d at the most", name, tried, most)
		}
	}
	x.check(t, "user.3000.x")
	x.check(t, "a-3002-b")
	x.empty(t)
}

// FuzzPatterns compares the index with a look at all patterns. Lines are patterns, those
// that begin with - go again, and the last one is the topic.
func FuzzPatterns(f *testing.F) {
	f.Add("a*\n*b\n-a*\na*b*c\nabc")
	f.Add("[a-c]x\n\\*x\n[^\nx*[\n*x")
	f.Add(strings.Repeat("abcdefghijklmnopqrstuvwxyz*", 3) + "\n" + strings.Repeat("abcdefghijklmnopqrstuvwxyz", 3))
	f.Fuzz(func(t *testing.T, script string) {
		var x indexed
		lines := strings.Split(script, "\n")
		for _, line := range lines {
			x.put(line)
		}
		for _, line := range lines {
			if gone, ok := strings.CutPrefix(line, "-"); ok {
				x.drop(gone)
			}
		}
		x.check(t, lines[len(lines)-1])
		x.empty(t)
	})
}

// BenchmarkPatterns publishes a topic that one of a million patterns matches.
func BenchmarkPatterns(b *testing.B) {
	for _, n := range []int{1000, 1_000_000} {
		var x indexed
		for _, p := range manyPatterns(n) {
			x.put(p)
		}
		for _, name := range []string{"user.300.profile", "host7.301.log", "a-302-b"} {
			b.Run(fmt.Sprintf("%d/%s", n, name), func(b *testing.B) {
				found, tried := 0, 0
				for b.Loop() {
					found = 0
					tried = x.match(name, func(*topic) { found++ })
				}
				b.ReportMetric(float64(tried), "tried")
				b.ReportMetric(float64(found), "matches")
			})
		}
	}
}
