package message

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

const (
	// printable are the characters of a dot.
	printable = "!\"#$%&'()*+,-./0123456789:;<=>?@ABCDEFGHIJKLMNOPQRSTUVWXYZ[\\]^_`abcdefghijklmnopqrstuvwxyz{|}~"
	digit     = "0123456789"
	word      = digit + "ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"
	// most is where * and + stop.
	most = 16
)

// tooLong is the error for a regular expression that makes too much.
func tooLong[T int | int64](n T) error {
	return fmt.Errorf("text of up to %d bytes; expected at most %d", n, MaxLen)
}

// parsePattern reads a regular expression.
func parsePattern(text string) (*node, error) {
	if text == "" {
		return nil, errors.New("no regular expression; expected one such as [a-z]{5,10}")
	}
	p := patternParser{text: text}
	n, err := p.choice()
	if err == nil && p.at < len(text) {
		err = p.wrong("no ) without a (")
	}
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// patternParser reads a regular expression from left to right.
type patternParser struct {
	text  string
	at    int
	depth int
}

// peek says whether one of the characters comes next.
func (p *patternParser) peek(of string) bool {
	return p.at < len(p.text) && strings.IndexByte(of, p.text[p.at]) >= 0
}

// wrong is the error that something else is expected where the parser stands.
func (p *patternParser) wrong(expected string) error {
	if p.at >= len(p.text) {
		return fmt.Errorf("nothing behind %q; expected %s", shorten(p.text), expected)
	}
	return fmt.Errorf("%q at byte %d of the regular expression; expected %s", shorten(p.text[p.at:]), p.at, expected)
}

// choice reads alternatives, up to a ) or the end.
func (p *patternParser) choice() (node, error) {
	var branches []node
	for {
		n, err := p.sequence()
		if err != nil {
			return node{}, err
		}
		branches = append(branches, n)
		if !p.peek("|") {
			return choice(branches), nil
		}
		p.at++
	}
}

// sequence reads one alternative.
func (p *patternParser) sequence() (node, error) {
	var s sequence
	for p.at < len(p.text) && !p.peek("|)") {
		n, err := p.atom()
		if err == nil && p.peek("?*+{") {
			n, err = p.repeated(n)
		}
		if err == nil {
			err = s.add(n)
		}
		if err != nil {
			return node{}, err
		}
	}
	return s.node(), nil
}

// atom reads what a repetition would repeat.
func (p *patternParser) atom() (node, error) {
	switch p.text[p.at] {
	case '(':
		return p.group()
	case '[':
		return p.class()
	case '.':
		p.at++
		return classNode(printable), nil
	case '\\':
		set, err := p.escape()
		return classNode(set), err
	case '?', '*', '+', '{':
		return node{}, p.wrong("something to repeat before it, or a \\ for the character")
	case '^', '$', ']', '}':
		return node{}, p.wrong("a \\ before it")
	}
	_, size := utf8.DecodeRuneInString(p.text[p.at:])
	n := textNode(p.text[p.at : p.at+size])
	p.at += size
	return n, nil
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

// group reads what is in parentheses.
func (p *patternParser) group() (node, error) {
	if p.depth++; p.depth > MaxDepth {
		return node{}, fmt.Errorf("more than %d groups in each other; expected at most that many", MaxDepth)
	}
	p.at++
	n, err := p.choice()
	if err != nil {
		return node{}, err
	}
	if !p.peek(")") {
		return node{}, p.wrong(")")
	}
	p.at++
	p.depth--
	return n, nil
}

// repeated reads a repetition of what.
func (p *patternParser) repeated(what node) (node, error) {
	low, high, err := p.times()
	if err != nil {
		return node{}, err
	}
	if p.peek("?*+{") {
		return node{}, p.wrong("no repetition of a repetition, but with a group")
	}
	n, err := repeat(&what, low, high)
	if err != nil {
		return node{}, err
	}
	return *n, nil
}

// times reads how often to repeat: ?, *, +, {n} or {m,n}.
func (p *patternParser) times() (low, high int, err error) {
	p.at++
	switch p.text[p.at-1] {
	case '?':
		return 0, 1, nil
	case '*':
		return 0, most, nil
	case '+':
		return 1, most, nil
	}
	p.at--
	return p.braces()
}

// braces reads {n} or {m,n}.
func (p *patternParser) braces() (low, high int, err error) {
	size := strings.IndexByte(p.text[p.at:], '}')
	if size < 0 {
		return 0, 0, p.wrong("{n} or {m,n}")
	}
	from, to, both := strings.Cut(p.text[p.at+1:p.at+size], ",")
	if !both {
		to = from
	}
	l, err1 := strconv.ParseUint(from, 10, 32)
	h, err2 := strconv.ParseUint(to, 10, 32)
	// What begins with a needless 0 other dialects take for literal text.
	padded := len(from) > 1 && from[0] == '0' || len(to) > 1 && to[0] == '0'
	if err1 != nil || err2 != nil || padded || l > h || h > MaxLen {
		return 0, 0, p.wrong(fmt.Sprintf("{n} or {m,n} with numbers from 0 to %d, m not above n", MaxLen))
	}
	p.at += size + 1
	return int(l), int(h), nil
}

// class reads a class: [a-z_], [^a-z].
func (p *patternParser) class() (node, error) {
	begin := p.at
	p.at++
	not := p.peek("^")
	if not {
		p.at++
	}
	var in [256]bool
	for !p.peek("]") {
		if err := p.member(&in); err != nil {
			return node{}, err
		}
	}
	p.at++
	var set []byte
	for c := range in {
		if in[c] && !not || not && !in[c] && strings.IndexByte(printable, byte(c)) >= 0 {
			set = append(set, byte(c))
		}
	}
	if len(set) == 0 {
		return node{}, fmt.Errorf("class %s without characters; expected at least one", shorten(p.text[begin:p.at]))
	}
	return classNode(string(set)), nil
}

// member reads a character or a range of a class.
func (p *patternParser) member(in *[256]bool) error {
	first, err := p.character()
	if err != nil {
		return err
	}
	if !p.peek("-") || strings.HasPrefix(p.text[p.at:], "-]") {
		for i := range len(first) {
			in[first[i]] = true
		}
		return nil
	}
	p.at++
	last, err := p.character()
	if err != nil {
		return err
	}
	if len(first) != 1 || len(last) != 1 || first > last {
		return fmt.Errorf("range from %q to %q; expected two characters, the first not behind the last", first, last)
	}
	for c := int(first[0]); c <= int(last[0]); c++ {
		in[c] = true
	}
	return nil
}

// character reads a character of a class, or an escape.
func (p *patternParser) character() (string, error) {
	switch {
	case p.at == len(p.text):
		return "", p.wrong("a ] at the end of the class")
	case p.peek(`\`):
		return p.escape()
	case strings.HasPrefix(p.text[p.at:], "[:"):
		return "", p.wrong("no named class, or a \\ before the [")
	case p.text[p.at] >= utf8.RuneSelf:
		return "", p.wrong("ASCII in a class")
	}
	p.at++
	return p.text[p.at-1 : p.at], nil
}

// escape reads an escape and returns the characters that it can be.
func (p *patternParser) escape() (string, error) {
	rest := p.text[p.at+1:]
	if rest == "" {
		return "", p.wrong("something behind it")
	}
	c := rest[0]
	switch c {
	case 'd':
		p.at += 2
		return digit, nil
	case 'w':
		p.at += 2
		return word, nil
	case 'x':
		b, err := hexByte(rest[1:])
		p.at += 4
		return string([]byte{b}), err
	case 'n', 'r', 't':
		p.at += 2
		return string([]byte{escapes[c]}), nil
	}
	if c >= utf8.RuneSelf || c != '_' && strings.IndexByte(word, c) >= 0 {
		return "", p.wrong(`\d \w \n \r \t \xHH, or a \ before a character that is neither a letter nor a digit`)
	}
	p.at += 2
	return rest[:1], nil
}
