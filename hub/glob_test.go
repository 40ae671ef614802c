package hub

import (
	"math/rand/v2"
	"strings"
	"testing"
)

// TestGlob compares compiled patterns, with segments of one and several words, with naiveGlobMatch.
func TestGlob(t *testing.T) {
	check := func(pattern, name string) {
		t.Helper()
		if have, want := compileGlob(pattern).matches(name), naiveGlobMatch(pattern, name); have != want {
			t.Fatalf("%q matches %q: %v, want %v", pattern, name, have, want)
		}
	}
	r := rand.New(rand.NewPCG(5, 6))
	for range 20_000 {
		check(randomText(r, `aab**?[]\^-`, r.IntN(12)), randomText(r, "ab-", r.IntN(12)))
	}
	parts := []string{"a", "b", "?", "[ab]", "[^c]", "[b-a]", `\*`, "*"}
	for range 5_000 {
		var pattern strings.Builder
		for range r.IntN(300) {
			pattern.WriteString(parts[min(r.IntN(40)/5, len(parts)-1)])
		}
		name := randomText(r, "aaaaab", r.IntN(400))
		check(pattern.String(), name)
		check("*"+strings.ReplaceAll(pattern.String(), "*", "")+"*", name)
	}
	// Each byte has a class of its own, none has, or all share one.
	var all [256]byte
	var sets strings.Builder
	for b := range all {
		all[b] = byte(b)
		sets.WriteString("[\\" + string(all[b:b+1]) + "\\x]")
	}
	for _, pattern := range []string{sets.String(), "*" + sets.String() + "*", "*[]*", "[^]", "*" + strings.Repeat("?", 1030) + "*"} {
		for _, name := range []string{string(all[:]), "-" + string(all[:]) + "-", strings.Repeat("x", 256), strings.Repeat("x", 1030), "x", ""} {
			check(pattern, name)
		}
	}
}

// slowPatterns returns n patterns that are expensive to match and share no distinguishing literal part. They vary
// with the seed.
func slowPatterns(seed uint64, n int) (all []string) {
	r := rand.New(rand.NewPCG(7, seed))
	for range n {
		pattern := "*"
		for range 240 {
			pattern += []string{"[ab]", "[ba]"}[r.IntN(2)]
		}
		all = append(all, pattern+"[c]*")
	}
	return all
}

// naiveGlobMatch is the reference implementation of glob. It takes time proportional to the product of the
// lengths.
func naiveGlobMatch(pattern, name string) bool {
	star, retry := -1, 0 // where to continue after a mismatch
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				p++
				star, retry = p, n
				continue
			}
			if ok, next := naiveMatchByte(pattern, p, name[n]); ok {
				p, n = next, n+1
				continue
			}
		}
		if star < 0 {
			return false
		}
		retry++
		p, n = star, retry
	}
	for p < len(pattern) && pattern[p] == '*' {
		p++
	}
	return p == len(pattern)
}

func naiveMatchByte(pattern string, pos int, b byte) (ok bool, next int) {
	switch pattern[pos] {
	case '?':
		return true, pos + 1
	case '\\':
		if pos+1 < len(pattern) {
			pos++
		}
	case '[':
		return naiveMatchSet(pattern, pos+1, b)
	}
	return pattern[pos] == b, pos + 1
}

func naiveMatchSet(pattern string, pos int, b byte) (ok bool, next int) {
	not := pos < len(pattern) && pattern[pos] == '^'
	if not {
		pos++
	}
	for ; pos < len(pattern) && pattern[pos] != ']'; pos++ {
		switch {
		case pattern[pos] == '\\' && pos+1 < len(pattern):
			pos++
			ok = ok || pattern[pos] == b
		case pos+2 < len(pattern) && pattern[pos+1] == '-':
			from, to := pattern[pos], pattern[pos+2]
			ok = ok || min(from, to) <= b && b <= max(from, to)
			pos += 2
		default:
			ok = ok || pattern[pos] == b
		}
	}
	return ok != not, min(pos+1, len(pattern))
}
