package proxyproto

import "net/netip"

// groups is an IPv6 address on its way: groups of 16 bits, and where "::" is
// among them.
type groups struct {
	b   [16]byte
	n   int // how many there are
	gap int // "::" is in front of this one; -1 without
}

// full says whether there can't be another. "::" stands for one at least.
func (g *groups) full() bool { return g.n == 8 || g.n == 7 && g.gap >= 0 }

// whole says whether it can end here.
func (g *groups) whole() bool { return g.n == 8 || g.gap >= 0 }

// mixed says whether the last 32 bits can be in the form of IPv4 from here:
// inet_ntop writes ::192.0.2.1 and ::ffff:192.0.2.1.
func (g *groups) mixed() bool {
	return g.gap == 0 && (g.n == 0 || g.n == 1 && g.b[0] == 0xff && g.b[1] == 0xff)
}

func (g *groups) add(v uint16) {
	g.b[2*g.n], g.b[2*g.n+1] = byte(v>>8), byte(v)
	g.n++
}

// addr moves the groups after "::" to the end.
func (g *groups) addr() netip.Addr {
	if g.gap >= 0 {
		var b [16]byte
		copy(b[:], g.b[:2*g.gap])
		copy(b[16-2*(g.n-g.gap):], g.b[2*g.gap:2*g.n])
		return netip.AddrFrom16(b)
	}
	return netip.AddrFrom16(g.b)
}

const ip6Expected = "an IPv6 address: eight groups of up to 4 hexadecimal digits, :: for one or more of zeros"

// ip6 reads an IPv6 address up to the byte after it.
func (l *line) ip6() (netip.Addr, error) {
	g := groups{gap: -1}
	if c, ok := l.peek(); ok && c == ':' {
		if err := l.word("::", ip6Expected); err != nil {
			return netip.Addr{}, err
		}
		g.gap = 0
	}
	for {
		more, err := l.group(&g)
		if err != nil {
			return netip.Addr{}, err
		}
		if !more {
			return g.addr(), nil
		}
	}
}

// group reads a group and the colons after it. It begins at the address's
// beginning, behind a single colon, or behind "::", where the address may end.
func (l *line) group(g *groups) (more bool, err error) {
	if g.full() { // "::" is in the place of the last
		return false, nil
	}
	start := l.i
	v, err := l.hex()
	switch {
	case err != nil:
		return false, err
	case l.i == start && g.gap == g.n: // nothing behind "::"
		return false, nil
	case l.i == start:
		return false, l.wrong(ip6Expected)
	}
	c := l.b[l.i]
	if c == '.' && g.mixed() {
		l.i = start
		var tail [4]byte
		err := l.ip4(tail[:])
		g.add(uint16(tail[0])<<8 | uint16(tail[1]))
		g.add(uint16(tail[2])<<8 | uint16(tail[3]))
		return false, err
	}
	g.add(v)
	if c != ':' || g.full() {
		if !g.whole() {
			return false, l.wrong(ip6Expected)
		}
		return false, nil
	}
	l.i++
	c, ok := l.peek()
	if !ok {
		return false, errMore
	}
	if c == ':' && g.gap < 0 {
		l.i++
		g.gap = g.n
	}
	return true, nil
}

// hex reads up to 4 hexadecimal digits, and looks at the byte after them.
func (l *line) hex() (v uint16, err error) {
	for start := l.i; ; l.i++ {
		c, ok := l.peek()
		if !ok {
			return 0, errMore
		}
		d, ok := digit(c)
		if !ok || l.i == start+4 {
			return v, nil
		}
		v = v<<4 | d
	}
}

func digit(c byte) (v uint16, ok bool) {
	switch {
	case '0' <= c && c <= '9':
		return uint16(c - '0'), true
	case 'a' <= c && c <= 'f':
		return uint16(c-'a') + 10, true
	case 'A' <= c && c <= 'F':
		return uint16(c-'A') + 10, true
	}
	return 0, false
}
