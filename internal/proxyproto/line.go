package proxyproto

import (
	"net/netip"
	"strconv"
)

// hello begins version 1.
const hello = "PROXY "

// line reads version 1 byte by byte, so that the first wrong one is found. Its
// methods return errMore when the bytes end.
type line struct {
	b []byte
	i int // the next byte
}

// parseLine parses version 1. A line with addresses has 104 bytes at most, since
// none of its fields can be longer than it should be; the others are bounded in
// unknown.
func parseLine(b []byte) (h Header, n int, err error) {
	l := line{b: b}
	if err = l.word(hello, `"PROXY "`); err != nil {
		return h, 0, err
	}
	if c, ok := l.peek(); ok && c == 'U' {
		h.Local = true
		err = l.unknown()
		return h, l.i, err
	}
	if err = l.word("TCP", "TCP4, TCP6 or UNKNOWN"); err != nil {
		return h, 0, err
	}
	c, ok := l.peek()
	switch {
	case !ok:
		return h, 0, errMore
	case c != '4' && c != '6':
		return h, 0, l.wrong("TCP4, TCP6 or UNKNOWN")
	}
	l.i++
	err = l.addresses(&h, c == '6')
	return h, l.i, err
}

// unknown reads what comes after "PROXY ", and skips what may come after
// UNKNOWN.
func (l *line) unknown() error {
	if err := l.word("UNKNOWN", "TCP4, TCP6 or UNKNOWN"); err != nil {
		return err
	}
	if c, ok := l.peek(); ok && c != ' ' && c != '\r' {
		return l.wrong(`a space or \r\n`)
	}
	for ; l.i < len(l.b) && l.b[l.i] != '\r'; l.i++ {
		if l.b[l.i] == '\n' {
			return l.wrong(`\r before it`)
		}
		if l.i == maxLine-2 {
			return l.wrong(`\r, because a line has at most 107 bytes`)
		}
	}
	return l.word("\r\n", `\r\n`)
}

// addresses reads what comes after "PROXY TCP4" or "PROXY TCP6".
func (l *line) addresses(h *Header, six bool) error {
	var ips [2]netip.Addr
	var ports [2]int
	var err error
	for i := range ips {
		if err = l.word(" ", "a space"); err != nil {
			return err
		}
		if ips[i], err = l.ip(six); err != nil {
			return err
		}
	}
	for i := range ports {
		if err = l.word(" ", "a space"); err != nil {
			return err
		}
		if ports[i], err = l.number(65535, `a port of 0 to 65535, without zeros in front`); err != nil {
			return err
		}
	}
	h.Source = netip.AddrPortFrom(ips[0], uint16(ports[0]))
	h.Destination = netip.AddrPortFrom(ips[1], uint16(ports[1]))
	return l.word("\r\n", `\r\n`)
}

func (l *line) ip(six bool) (netip.Addr, error) {
	if six {
		return l.ip6()
	}
	var a [4]byte
	err := l.ip4(a[:])
	return netip.AddrFrom4(a), err
}

// ip4 reads an IPv4 address.
func (l *line) ip4(into []byte) error {
	for i := range into {
		if i > 0 {
			if err := l.word(".", "a dot"); err != nil {
				return err
			}
		}
		n, err := l.number(255, "an IPv4 address: 0 to 255 four times, without zeros in front")
		if err != nil {
			return err
		}
		into[i] = byte(n)
	}
	return nil
}

// number reads a decimal number up to the byte after it.
func (l *line) number(most int, expected string) (n int, err error) {
	for start := l.i; ; l.i++ {
		c, ok := l.peek()
		switch {
		case !ok:
			return 0, errMore
		case c < '0' || c > '9':
			if l.i == start {
				return 0, l.wrong(expected)
			}
			return n, nil
		case l.i > start && n == 0:
			return 0, l.wrong(expected)
		}
		if n = 10*n + int(c-'0'); n > most {
			return 0, l.wrong(expected)
		}
	}
}

// word reads what can be nothing else.
func (l *line) word(want, expected string) error {
	for i := range len(want) {
		c, ok := l.peek()
		if !ok {
			return errMore
		}
		if c != want[i] {
			return l.wrong(expected)
		}
		l.i++
	}
	return nil
}

// peek is the next byte, if it is there.
func (l *line) peek() (c byte, ok bool) {
	if l.i == len(l.b) {
		return 0, false
	}
	return l.b[l.i], true
}

// wrong is the error that the next byte is not what it should be.
func (l *line) wrong(expected string) error { return wrong(l.b, l.i, expected) }

func appendLine(b []byte, h Header) []byte {
	if h.Local || h.Unix {
		return append(b, "PROXY UNKNOWN\r\n"...)
	}
	from, to := h.Source.Addr(), h.Destination.Addr()
	family := "TCP4 "
	if !from.Is4() || !to.Is4() {
		from, to, family = sixteen(from), sixteen(to), "TCP6 "
	}
	b = append(append(b, hello...), family...)
	b = append(from.AppendTo(b), ' ')
	b = append(to.AppendTo(b), ' ')
	b = append(strconv.AppendUint(b, uint64(h.Source.Port()), 10), ' ')
	b = strconv.AppendUint(b, uint64(h.Destination.Port()), 10)
	return append(b, '\r', '\n')
}

// sixteen is an address in the form of IPv6, without its zone.
func sixteen(a netip.Addr) netip.Addr { return netip.AddrFrom16(a.As16()) }
