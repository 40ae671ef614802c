package message

import (
	"errors"
	"fmt"
	"regexp/syntax"
)

// node is a part of a regular expression from which text is made.
type node struct {
	kind           nodeKind
	text           []byte   // nodeText: itself; nodeClass: its characters, up to 256
	parts          []node   // nodeSequence, nodeChoice: all; nodeRepeat: one
	weights        []uint64 // nodeChoice: how likely the parts are, as sums
	low, high      int      // nodeRepeat: how often
	minLen, maxLen int      // of the text that it makes, in bytes
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
		i, at := 0, r.below(n.weights[len(n.weights)-1])
		for n.weights[i] <= at {
			i++
		}
		return n.parts[i].append(dst, r)
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

const (
	// printable are the characters of a dot, and what [^...] takes from.
	printable = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	// unbounded is where * and + stop.
	unbounded = 16
	maxASCII  = 0x7f
)

// parsePattern reads a regular expression.
func parsePattern(text string) (node, error) {
	if text == "" {
		return node{}, errors.New("no regular expression; expected one such as [a-z]{5,10}")
	}
	re, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return node{}, fmt.Errorf("%w; expected a regular expression such as [a-z]{5,10}", err)
	}
	return nodeOf(re)
}

func nodeOf(re *syntax.Regexp) (node, error) {
	switch re.Op {
	case syntax.OpEmptyMatch:
		return node{}, nil
	case syntax.OpLiteral:
		return textNode(string(re.Rune)), nil
	case syntax.OpCharClass:
		return class(re.Rune)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return classNode(printable), nil
	case syntax.OpCapture:
		return nodeOf(re.Sub[0])
	case syntax.OpStar:
		return repeated(re.Sub[0], 0, unbounded)
	case syntax.OpPlus:
		return repeated(re.Sub[0], 1, unbounded)
	case syntax.OpQuest:
		return repeated(re.Sub[0], 0, 1)
	case syntax.OpRepeat:
		if re.Max < 0 {
			re.Max = max(re.Min, unbounded)
		}
		return repeated(re.Sub[0], re.Min, re.Max)
	case syntax.OpConcat:
		return sequence(re.Sub)
	case syntax.OpAlternate:
		return choice(re.Sub)
	}
	return node{}, fmt.Errorf("%q in a regular expression, which makes no text; expected a \\ before ^ and $", re)
}

func textNode(text string) node {
	return node{kind: nodeText, text: []byte(text), minLen: len(text), maxLen: len(text)}
}

// classNode is one of some characters.
func classNode(set string) node {
	if len(set) == 1 {
		return textNode(set)
	}
	return node{kind: nodeClass, text: []byte(set), minLen: 1, maxLen: 1}
}

// class is one character of some ranges. Ranges without an end are those of a class such
// as [^a], of which the printable characters are taken.
func class(ranges []rune) (node, error) {
	low, high := rune(0), rune(maxASCII)
	switch last := len(ranges) - 1; {
	case last > 0 && ranges[last] == 0x10ffff:
		low, high = rune(printable[0]), rune(printable[len(printable)-1])
	case last > 0 && ranges[last] > maxASCII:
		return node{}, fmt.Errorf("a class with %q; expected ASCII", ranges[last])
	}
	var set []byte
	for i := 0; i+1 < len(ranges); i += 2 {
		for c := max(ranges[i], low); c <= min(ranges[i+1], high); c++ {
			set = append(set, byte(c))
		}
	}
	if len(set) == 0 {
		return node{}, errors.New("a class without printable characters; expected at least one")
	}
	return classNode(string(set)), nil
}

// sequence makes a node of parts that follow each other, with texts that do so in
// one, and without parts that are always empty.
func sequence(subs []*syntax.Regexp) (node, error) {
	n := node{kind: nodeSequence}
	for _, sub := range subs {
		part, err := nodeOf(sub)
		if err != nil {
			return n, err
		}
		n.minLen += part.minLen
		if n.maxLen += part.maxLen; n.maxLen > MaxLen {
			return n, tooLong(int64(n.maxLen))
		}
		last := len(n.parts) - 1
		switch {
		case part.maxLen == 0:
		case part.kind == nodeText && last >= 0 && n.parts[last].kind == nodeText:
			n.parts[last] = textNode(string(n.parts[last].text) + string(part.text))
		default:
			n.parts = append(n.parts, part)
		}
	}
	if len(n.parts) == 1 {
		return n.parts[0], nil
	}
	return n, nil
}

// choice makes a node of alternatives, of which one is taken.
func choice(subs []*syntax.Regexp) (node, error) {
	n := node{kind: nodeChoice, minLen: MaxLen}
	sum := uint64(0)
	for _, sub := range subs {
		part, err := nodeOf(sub)
		if err != nil {
			return n, err
		}
		sum += alternatives(sub)
		n.parts, n.weights = append(n.parts, part), append(n.weights, sum)
		n.minLen, n.maxLen = min(n.minLen, part.minLen), max(n.maxLen, part.maxLen)
	}
	return n, nil
}

// alternatives is how many of the alternatives that were written a part has: the parser
// makes P(?:UT|OST) of PUT|POST, and [ab] of a|b.
func alternatives(re *syntax.Regexp) (n uint64) {
	switch re.Op {
	case syntax.OpAlternate:
		for _, sub := range re.Sub {
			n += alternatives(sub)
		}
		return n
	case syntax.OpConcat:
		return alternatives(re.Sub[len(re.Sub)-1])
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			n += uint64(re.Rune[i+1]-re.Rune[i]) + 1
		}
		return min(n, uint64(len(printable)))
	}
	return 1
}

func repeated(re *syntax.Regexp, low, high int) (node, error) {
	what, err := nodeOf(re)
	if err != nil {
		return node{}, err
	}
	return repeat(what, low, high)
}

// repeat makes a node that repeats what low to high times, both at most MaxLen.
// What is always empty is not repeated.
func repeat(what node, low, high int) (node, error) {
	if what.maxLen == 0 || high == 0 {
		return node{}, nil
	}
	// no overflow on 32 bits: what.maxLen and high are at most 2^20
	if maxLen := int64(what.maxLen) * int64(high); maxLen > MaxLen {
		return node{}, tooLong(maxLen)
	}
	return node{kind: nodeRepeat, parts: []node{what}, low: low, high: high, minLen: what.minLen * low, maxLen: what.maxLen * high}, nil
}

// tooLong is the error for a regular expression that makes too much.
func tooLong(n int64) error {
	return fmt.Errorf("text of up to %d bytes; expected at most %d", n, MaxLen)
}
