package message

// node is a part of a regular expression from which text is made.
type node struct {
	kind           nodeKind
	text           []byte // nodeText: itself; nodeClass: its characters, up to 256
	parts          []node // nodeSequence, nodeChoice: all; nodeRepeat: one
	low, high      int    // nodeRepeat: how often
	minLen, maxLen int    // of the text that it makes, in bytes
}

type nodeKind uint8

const (
	nodeText nodeKind = iota
	nodeClass
	nodeSequence
	nodeChoice
	nodeRepeat
)

// append appends a text. It takes time in proportion to the depth and to maxLen,
// not to repetitions of nothing: see sequence and repeat.
func (n *node) append(dst []byte, r *random) []byte {
	switch n.kind {
	case nodeText:
		return append(dst, n.text...)
	case nodeClass:
		return r.fill(dst, 1, n.text)
	case nodeSequence:
		for i := range n.parts {
			dst = n.parts[i].append(dst, r)
		}
		return dst
	case nodeChoice:
		return n.parts[r.below(uint64(len(n.parts)))].append(dst, r)
	}
	times := n.low
	if n.high > n.low {
		times += int(r.below(uint64(n.high - n.low + 1)))
	}
	what := &n.parts[0]
	if what.kind == nodeClass {
		return r.fill(dst, times, what.text)
	}
	for range times {
		dst = what.append(dst, r)
	}
	return dst
}

// sequence makes a node of parts that follow each other, with texts that do so in
// one, and without parts that are always empty.
type sequence struct{ whole node }

func (s *sequence) add(part node) error {
	n := &s.whole
	n.minLen += part.minLen
	if n.maxLen += part.maxLen; n.maxLen > MaxLen {
		return tooLong(n.maxLen)
	}
	last := len(n.parts) - 1
	switch {
	case part.maxLen == 0:
	case part.kind == nodeText && last >= 0 && n.parts[last].kind == nodeText:
		text := &n.parts[last]
		text.text = append(text.text, part.text...)
		text.minLen, text.maxLen = len(text.text), len(text.text)
	default:
		n.parts = append(n.parts, part)
	}
	return nil
}

func (s *sequence) node() node {
	if len(s.whole.parts) == 1 {
		return s.whole.parts[0]
	}
	s.whole.kind = nodeSequence
	return s.whole
}

// choice makes a node of branches, of which one is taken.
func choice(branches []node) node {
	if len(branches) == 1 {
		return branches[0]
	}
	n := node{kind: nodeChoice, parts: branches, minLen: branches[0].minLen}
	for i := range branches {
		n.minLen = min(n.minLen, branches[i].minLen)
		n.maxLen = max(n.maxLen, branches[i].maxLen)
	}
	return n
}

// repeat makes a node that repeats what low to high times, both at most MaxLen.
// What is always empty is not repeated.
func repeat(what *node, low, high int) (*node, error) {
	if what.maxLen == 0 || high == 0 {
		return &node{}, nil
	}
	n := &node{kind: nodeRepeat, parts: []node{*what}, low: low, high: high, minLen: what.minLen * low}
	// no overflow on 32 bits: what.maxLen and high are at most 2^20
	if maxLen := int64(what.maxLen) * int64(high); maxLen > MaxLen {
		return nil, tooLong(maxLen)
	}
	n.maxLen = what.maxLen * high
	return n, nil
}
