package hub

// globMatches reports whether a pattern, by the rules of the Redis PSUBSCRIBE command,
// matches a name: * and ? for any bytes and any byte, [abc], [a-c] and [^a] for one of a set,
// and \ before a byte that stands for itself. It takes time in proportion to the product of
// the lengths at the most.
func globMatches(pattern, name string) bool {
	star, retry := -1, 0 // where to go on when what is behind the last * fails
	p, n := 0, 0
	for n < len(name) {
		if p < len(pattern) {
			if pattern[p] == '*' {
				p++
				star, retry = p, n
				continue
			}
			if ok, next := globByte(pattern, p, name[n]); ok {
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

// globByte matches one byte against what stands at p, which is no *, and says where the
// pattern goes on.
func globByte(pattern string, p int, b byte) (ok bool, next int) {
	switch pattern[p] {
	case '?':
		return true, p + 1
	case '\\':
		if p+1 < len(pattern) {
			p++
		}
	case '[':
		return globSet(pattern, p+1, b)
	}
	return pattern[p] == b, p + 1
}

// globSet matches a byte against a set whose first byte stands at p. A set without an end
// goes to the end of the pattern.
func globSet(pattern string, p int, b byte) (ok bool, next int) {
	not := p < len(pattern) && pattern[p] == '^'
	if not {
		p++
	}
	for ; p < len(pattern) && pattern[p] != ']'; p++ {
		switch {
		case pattern[p] == '\\' && p+1 < len(pattern):
			p++
			ok = ok || pattern[p] == b
		case p+2 < len(pattern) && pattern[p+1] == '-':
			from, to := pattern[p], pattern[p+2]
			ok = ok || min(from, to) <= b && b <= max(from, to)
			p += 2
		default:
			ok = ok || pattern[p] == b
		}
	}
	return ok != not, min(p+1, len(pattern))
}
