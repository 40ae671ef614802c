package hub

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strings"
)

// glob is a compiled PSUBSCRIBE pattern. globProgram is nil if the pattern has no special characters except stars.
type glob struct {
	pattern string
	*globProgram
}

type globProgram struct {
	segments []segment // one more than there are stars
	size     int       // of all segments together: the minimum length of a name
}

type segment struct {
	size    int
	literal string // text that matches if masks is nil
	// class maps each byte to a class. The segment treats all bytes of a class alike. For each class, masks contains
	// maskWords words: a bit mask of the positions that accept the bytes of the class.
	class *[256]uint8
	masks []uint64
}

// compileGlob compiles a pattern. Any string is a valid pattern.
func compileGlob(pattern string) glob {
	if !strings.ContainsAny(pattern, `?[\`) {
		return glob{pattern: pattern}
	}
	g := glob{pattern, new(globProgram)}
	var elements []element
	for p := 0; p < len(pattern); {
		var e element
		if e, p = parseElement(pattern, p); e.kind == anyBytes {
			g.addSegment(elements)
			elements = elements[:0]
		} else {
			elements = append(elements, e)
		}
	}
	g.addSegment(elements)
	return g
}

func (p *globProgram) addSegment(elements []element) {
	p.segments = append(p.segments, compileSegment(elements))
	p.size += len(elements)
}

func (g glob) matches(name string) bool {
	if g.globProgram != nil {
		return g.globProgram.matches(name)
	}
	head, rest, starred := strings.Cut(g.pattern, "*")
	if !starred {
		return name == head
	}
	star := strings.LastIndexByte(rest, '*')
	tail := rest[star+1:]
	if len(name) < len(head)+len(tail) || !strings.HasPrefix(name, head) || !strings.HasSuffix(name, tail) {
		return false
	}
	name = name[len(head) : len(name)-len(tail)]
	for rest = rest[:max(star, 0)]; rest != ""; {
		var middle string
		middle, rest, _ = strings.Cut(rest, "*")
		i := strings.Index(name, middle)
		if i < 0 {
			return false
		}
		name = name[i+len(middle):]
	}
	return true
}

func (p *globProgram) matches(name string) bool {
	head, tail := &p.segments[0], &p.segments[len(p.segments)-1]
	switch {
	case len(name) < p.size || head == tail && len(name) > p.size || !head.matchesExactly(name[:head.size]):
		return false
	case head == tail:
		return true
	case !tail.matchesExactly(name[len(name)-tail.size:]):
		return false
	}
	name = name[head.size : len(name)-tail.size]
	for i := 1; i < len(p.segments)-1; i++ {
		end := p.segments[i].findFirstEnd(name)
		if end < 0 {
			return false
		}
		name = name[end:]
	}
	return true
}

func compileSegment(elements []element) segment {
	s := segment{size: len(elements)}
	literal := make([]byte, 0, len(elements))
	for i := range elements {
		if elements[i].kind == literalByte {
			literal = append(literal, elements[i].literal)
		}
	}
	if len(literal) == len(elements) {
		s.literal = string(literal)
		return s
	}
	s.compileMasks(elements)
	return s
}

func (s *segment) compileMasks(elements []element) {
	words := s.maskWords()
	usual := make([]uint64, words)
	var differs [256][]uint64 // positions at which a byte differs from usual
	for i := range elements {
		word, bit := i/64, uint64(1)<<(i%64)
		set := elements[i].set
		if elements[i].kind == literalByte {
			set.addRange(elements[i].literal, elements[i].literal)
		} else if set.len() > 128 {
			usual[word] |= bit
			set = set.complement()
		}
		for b := range set.all {
			if differs[b] == nil {
				differs[b] = make([]uint64, words)
			}
			differs[b][word] |= bit
		}
	}
	s.class = new([256]uint8)
	if slices.ContainsFunc(differs[:], func(mask []uint64) bool { return mask == nil }) {
		s.masks = usual // otherwise there may be 256 other classes
	}
	known := make(map[string]uint8)
	var key []byte
	for b, mask := range differs {
		if mask == nil {
			continue
		}
		key = key[:0]
		for i := range mask {
			mask[i] ^= usual[i]
			key = binary.LittleEndian.AppendUint64(key, mask[i])
		}
		class, ok := known[string(key)]
		if !ok {
			class = uint8(len(s.masks) / words)
			s.masks = append(s.masks, mask...)
			known[string(key)] = class
		}
		s.class[b] = class
	}
}

func (s *segment) maskWords() int { return (s.size + 63) / 64 }

func (s *segment) matchesExactly(sameSizeText string) bool {
	if s.masks == nil {
		return sameSizeText == s.literal
	}
	words := s.maskWords()
	for i := range len(sameSizeText) {
		if s.masks[int(s.class[sameSizeText[i]])*words+i/64]>>(i%64)&1 == 0 {
			return false
		}
	}
	return true
}

// findFirstEnd returns the offset at which the segment's first occurrence in name ends, or -1.
func (s *segment) findFirstEnd(name string) (end int) {
	if s.masks == nil {
		if end = strings.Index(name, s.literal); end >= 0 {
			end += len(s.literal)
		}
		return end
	}
	words, last := s.maskWords(), uint64(1)<<((s.size-1)%64)
	if words == 1 {
		state := uint64(0)
		for i := range len(name) {
			if state = (state<<1 | 1) & s.masks[s.class[name[i]]]; state&last != 0 {
				return i + 1
			}
		}
		return -1
	}
	var room [16]uint64
	state := room[:min(words, len(room))]
	if words > len(room) {
		state = make([]uint64, words)
	}
	for i := range len(name) {
		mask := s.masks[int(s.class[name[i]])*words:][:words]
		carry := uint64(1)
		for w, now := range state {
			state[w] = (now<<1 | carry) & mask[w]
			carry = now >> 63
		}
		if state[words-1]&last != 0 {
			return i + 1
		}
	}
	return -1
}

// element is a part of a pattern: a byte, a set, or a star.
type element struct {
	kind    elementKind
	literal byte    // for literalByte
	set     byteSet // for byteFromSet
}

type elementKind uint8

const (
	literalByte elementKind = iota
	byteFromSet             // a set, or ?
	anyBytes                // *
)

func parseElement(pattern string, pos int) (e element, nextPos int) {
	switch pattern[pos] {
	case '*':
		return element{kind: anyBytes}, pos + 1
	case '?':
		return element{kind: byteFromSet, set: byteSet{}.complement()}, pos + 1
	case '[':
		return parseSet(pattern, pos+1)
	case '\\':
		if pos+1 < len(pattern) {
			pos++
		}
	}
	return element{literal: pattern[pos]}, pos + 1
}

func parseSet(pattern string, pos int) (e element, nextPos int) {
	e.kind = byteFromSet
	not := pos < len(pattern) && pattern[pos] == '^'
	if not {
		pos++
	}
	for ; pos < len(pattern) && pattern[pos] != ']'; pos++ {
		from, to := pattern[pos], pattern[pos]
		switch {
		case from == '\\' && pos+1 < len(pattern):
			pos++
			from, to = pattern[pos], pattern[pos]
		case pos+2 < len(pattern) && pattern[pos+1] == '-':
			pos += 2
			to = pattern[pos]
		}
		e.set.addRange(min(from, to), max(from, to))
	}
	if not {
		e.set = e.set.complement()
	}
	return e, min(pos+1, len(pattern))
}

type byteSet [4]uint64

func (s *byteSet) addRange(lowest, highest byte) {
	for b := int(lowest); b <= int(highest); b++ {
		s[b/64] |= 1 << (b % 64)
	}
}

func (s byteSet) complement() byteSet { return byteSet{^s[0], ^s[1], ^s[2], ^s[3]} }

func (s byteSet) len() (n int) {
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

func (s byteSet) all(yield func(byte) bool) {
	for i, w := range s {
		for ; w != 0; w &= w - 1 {
			if !yield(byte(64*i + bits.TrailingZeros64(w))) {
				return
			}
		}
	}
}
