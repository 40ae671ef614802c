package proxyproto

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
)

func told(source, destination string) Header {
	return Header{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination)}
}

var (
	four  = told("192.0.2.1:56324", "198.51.100.7:443")
	six   = told("[2001:db8::1]:1", "[2001:db8::ffff:0]:65535")
	inSix = told("[::ffff:192.0.2.1]:0", "[::ffff:198.51.100.7]:443")
	local = Header{Local: true}
	other = Header{Unix: true}
)

// binaryHeader makes version 2 with any bytes in it.
func binaryHeader(command, family byte, block ...byte) string {
	b := append([]byte(signature), command, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(block)))
	return string(append(b, block...))
}

func tlv(kind byte, value string) string {
	return string(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(value)))) + value
}

// withBlock puts more behind the addresses of h.
func withBlock(h Header, more string) string {
	b := append(Append(nil, h, 2), more...)
	binary.BigEndian.PutUint16(b[sizeAt:], uint16(len(b)-blockAt))
	return string(b)
}

// withSum puts before, a right checksum and after behind the addresses of h.
func withSum(h Header, before, after string) string {
	s := withBlock(h, before+tlv(typeCRC32C, "\x00\x00\x00\x00")+after)
	at := len(s) - len(after) - crc32.Size
	sum := crc32.Checksum([]byte(s), crc32.MakeTable(crc32.Castagnoli))
	return s[:at] + string(binary.BigEndian.AppendUint32(nil, sum)) + s[at+crc32.Size:]
}

var addresses4 = "\xc0\x00\x02\x01\xc6\x33\x64\x07\xdc\x04\x01\xbb"

// good are headers with what they mean.
var good = []struct {
	name, in string
	want     Header
}{
	{"text, IPv4", "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n", four},
	{"text, least and most", "PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", told("0.0.0.0:0", "255.255.255.255:65535")},
	{"text, IPv6", "PROXY TCP6 2001:db8::1 2001:db8::ffff:0 1 65535\r\n", six},
	{"text, IPv6 in full", "PROXY TCP6 2001:0db8:0000:0000:0000:0000:0000:0001 2001:DB8:0:0:0:0:FFFF:0 1 65535\r\n", six},
	{"text, IPv6 with its gap at an end", "PROXY TCP6 :: 1:2:3:4:5:6:7:: 1 2\r\n", told("[::]:1", "[1:2:3:4:5:6:7:0]:2")},
	{"text, IPv6 with its gap in front", "PROXY TCP6 ::2:3:4:5:6:7:8 ::1 1 2\r\n", told("[0:2:3:4:5:6:7:8]:1", "[::1]:2")},
	{"text, IPv4 in IPv6", "PROXY TCP6 ::ffff:192.0.2.1 ::FFFF:198.51.100.7 0 443\r\n", inSix},
	{"text, IPv4 in IPv6, the old way", "PROXY TCP6 ::192.0.2.1 ::ffff:c633:6407 0 443\r\n", told("[::c000:201]:0", "[::ffff:198.51.100.7]:443")},
	{"text, unknown", "PROXY UNKNOWN\r\n", local},
	{"text, unknown with more", "PROXY UNKNOWN ffff::1 \x00\xff  1 65536\r\n", local},
	{"text, unknown of 107 bytes", "PROXY UNKNOWN " + strings.Repeat("f", 107-16) + "\r\n", local},
	{"binary, IPv4", binaryHeader(0x21, 0x11, []byte(addresses4)...), four},
	{"binary, IPv6", string(Append(nil, six, 2)), six},
	{"binary, IPv4 in IPv6", string(Append(nil, inSix, 2)), inSix},
	{"binary, unix", binaryHeader(0x21, 0x31, make([]byte, 216)...), other},
	{"binary, unix with paths", binaryHeader(0x21, 0x31, bytes.Repeat([]byte("p"), 216)...), other},
	{"binary, unix with a TLV", withBlock(other, tlv(4, "")), other},
	{"binary, local", binaryHeader(0x20, 0x00), local},
	{"binary, local with addresses", binaryHeader(0x20, 0x11, []byte(addresses4)...), local},
	{"binary, local of a family that nobody knows", binaryHeader(0x20, 0xff, 1, 2), local},
	{"binary, unspecified", binaryHeader(0x21, 0x00), local},
	{"binary, unspecified with anything", binaryHeader(0x21, 0x00, 3, 0, 4, 1), local},
	{"binary, unspecified protocol", binaryHeader(0x21, 0x10, []byte(addresses4)...), local},
	{"binary, unspecified family", binaryHeader(0x21, 0x01), local},
	{"binary, TLVs", withBlock(four, tlv(4, "")+tlv(2, "example.com")+tlv(0xee, strings.Repeat("x", 300))), four},
	{"binary, as long as can be", withBlock(four, tlv(4, strings.Repeat("x", MaxSize-blockAt-inetSize-tlvHead))), four},
	{"binary, checksum", withSum(four, "", ""), four},
	{"binary, checksum between others", withSum(six, tlv(1, "h2"), tlv(5, "unique")), six},
	{"binary, checksum with unix", withSum(other, "", tlv(4, "\x03\x00\x04")), other},
}

func TestParse(t *testing.T) {
	for _, c := range good {
		h, n, err := Parse([]byte(c.in))
		if h != c.want || n != len(c.in) || err != nil {
			t.Errorf("%s: %q gives %+v, %d of %d bytes, %v; want %+v", c.name, c.in, h, n, len(c.in), err, c.want)
		}
		checkPieces(t, []byte(c.in))
	}
}

// bad are headers that are wrong at their last byte, with what the error says.
var bad = []struct{ name, in, says string }{
	{"nothing like it", "G", `byte 1 is "G", after ""; expected "PROXY "`},
	{"HTTP in capitals", "PO", `byte 2 is "O", after "P"`},
	{"TLS", "\x16", `"\x16"`},
	{"no space", "PROXY\r", `"\r"`},
	{"two spaces", "PROXY  ", "TCP4, TCP6 or UNKNOWN"},
	{"another protocol", "PROXY UD", "TCP4, TCP6 or UNKNOWN"},
	{"another family", "PROXY TCP5", "TCP4, TCP6 or UNKNOWN"},
	{"lower case", "PROXY t", "TCP4, TCP6 or UNKNOWN"},
	{"two spaces before the address", "PROXY TCP4  ", "IPv4 address"},
	{"a zero in front", "PROXY TCP4 192.00", "IPv4 address"},
	{"a number beyond 255", "PROXY TCP4 256", "IPv4 address"},
	{"a number of many digits", "PROXY TCP4 1234", "IPv4 address"},
	{"a sign", "PROXY TCP4 +", "IPv4 address"},
	{"three numbers", "PROXY TCP4 1.2.3 ", "a dot"},
	{"five numbers", "PROXY TCP4 1.2.3.4.", "a space"},
	{"an empty number", "PROXY TCP4 1..", "IPv4 address"},
	{"IPv6 instead of IPv4", "PROXY TCP4 :", "IPv4 address"},
	{"IPv6 second", "PROXY TCP4 1.2.3.4 2001", "IPv4 address"},
	{"IPv4 instead of IPv6", "PROXY TCP6 192.", "IPv6 address"},
	{"an empty IPv6 address", "PROXY TCP6  ", "IPv6 address"},
	{"a lone colon", "PROXY TCP6 :1", "IPv6 address"},
	{"a colon at the end", "PROXY TCP6 1:2: ", "IPv6 address"},
	{"three colons", "PROXY TCP6 1:::", "a space"},
	{"three colons in front", "PROXY TCP6 :::", "a space"},
	{"two gaps", "PROXY TCP6 1::2::", "IPv6 address"},
	{"five digits", "PROXY TCP6 12345", "IPv6 address"},
	{"five digits behind a gap", "PROXY TCP6 ::12345", "a space"},
	{"too few groups", "PROXY TCP6 1:2:3:4:5:6:7 ", "IPv6 address"},
	{"too many groups", "PROXY TCP6 1:2:3:4:5:6:7:8:", "a space"},
	{"a gap for nothing", "PROXY TCP6 1:2:3:4:5:6:7::8", "a space"},
	{"a gap for nothing in front", "PROXY TCP6 ::1:2:3:4:5:6:7:", "a space"},
	{"no digit", "PROXY TCP6 g", "IPv6 address"},
	{"a zone", "PROXY TCP6 fe80::1%", "a space"},
	{"brackets", "PROXY TCP6 [", "IPv6 address"},
	{"dots where inet_ntop has none", "PROXY TCP6 64:ff9b::192.", "a space"},
	{"dots behind another group", "PROXY TCP6 ::fffe:192.", "a space"},
	{"dots in full", "PROXY TCP6 0:0:0:0:0:ffff:192.", "IPv6 address"},
	{"dots behind hexadecimal digits", "PROXY TCP6 ::ffff:1a.", "a dot"},
	{"a port of 65536", "PROXY TCP4 1.2.3.4 5.6.7.8 65536", "a port"},
	{"a zero in front of a port", "PROXY TCP4 1.2.3.4 5.6.7.8 00", "a port"},
	{"a port with a sign", "PROXY TCP4 1.2.3.4 5.6.7.8 -", "a port"},
	{"no second port", "PROXY TCP4 1.2.3.4 5.6.7.8 1\r", "a space"},
	{"something behind the ports", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 ", `expected \r\n`},
	{"a tab", "PROXY TCP4\t", "a space"},
	{"the end of a unix line", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n", `expected \r\n`},
	{"a lone return", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\r", `expected \r\n`},
	{"unknown and more", "PROXY UNKNOWNS", `a space or \r\n`},
	{"unknown, end of a unix line", "PROXY UNKNOWN \n", `\r before it`},
	{"unknown, a lone return", "PROXY UNKNOWN \r ", `expected \r\n`},
	{"unknown, 107 bytes without an end", "PROXY UNKNOWN " + strings.Repeat("f", 107-15), "107 bytes"},

	{"half a signature", signature[:7] + "q", "signature of version 2"},
	{"version 1 in binary", signature + "\x11", "version 2"},
	{"version 3", signature + "\x31", "version 2"},
	{"command 2", signature + "\x22", "version 2, PROXY"},
	{"datagrams", signature + "\x21\x12", "not datagrams"},
	{"datagrams over unix", signature + "\x21\x32", "not datagrams"},
	{"datagrams of no family", signature + "\x21\x02", "not datagrams"},
	{"protocol 3", signature + "\x21\x13", "streams"},
	{"family 4", signature + "\x21\x41", "streams"},
	{"much too long", signature + "\x21\x11\x10", "has 4112 bytes or more; expected at most 4096"},
	{"too long", signature + "\x21\x11\x0f\xf1", "has 4097 bytes; expected at most 4096"},
	{"local, too long", signature + "\x20\x00\xff", "at most 4096"},
	{"short of IPv4", signature + "\x21\x11\x00\x0b", "length is 11; expected at least 12"},
	{"short of IPv6", signature + "\x21\x21\x00\x23", "length is 35; expected at least 36"},
	{"short of unix", signature + "\x21\x31\x00\xd7", "length is 215; expected at least 216"},
	{"two bytes over", signature + "\x21\x11\x00\x0e", "room for a TLV"},
	{"a TLV beyond the end", cut(withBlock(four, "\x04\x00\x02x"), 1), "has 2 bytes; expected at most 1"},
	{"a TLV far beyond the end", cut(withBlock(four, "\x04\x01\x02x"), 2), "has 256 bytes or more; expected at most 1"},
	{"a TLV and a byte", cut(withBlock(four, tlv(4, "")+"x"), 1), "1 are left"},
	{"a TLV and two bytes", cut(withBlock(four, tlv(4, "x")+"xy"), 3), "2 are left"},
	{"a short checksum", cut(withBlock(four, tlv(3, "abc")), 3), "CRC32C has 3 bytes; expected 4"},
	{"a long checksum", cut(withBlock(four, tlv(3, "abcde")), 5), "CRC32C has 5 bytes; expected 4"},
	{"a second checksum", cut(withSum(four, "", tlv(3, "abcd")), 4), "second CRC32C"},
	{"a wrong checksum", withBlock(four, tlv(3, "abcd")), "CRC32C is 61626364; expected"},
	{"a byte changed under the checksum", strings.Replace(withSum(four, "", ""), "\xc0", "\xc1", 1), "CRC32C is"},
	{"a byte changed behind the checksum", strings.Replace(withSum(four, "", tlv(4, "x")), "x", "y", 1), "CRC32C is"},
}

// cut takes the last n bytes away.
func cut(s string, n int) string { return s[:len(s)-n] }

func TestParseRefuses(t *testing.T) {
	for _, c := range bad {
		in := []byte(c.in)
		h, n, err := Parse(in)
		if err == nil || h != (Header{}) || n != 0 {
			t.Errorf("%s: %q gives %+v, %d, %v; want an error alone", c.name, in, h, n, err)
			continue
		}
		if !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %q gives %q; want it to say %s", c.name, in, err, c.says)
		}
		if len(err.Error()) > 500 {
			t.Errorf("%s: an error of %d bytes", c.name, len(err.Error()))
		}
		if _, n, err := Parse(in[:len(in)-1]); n != 0 || err != nil {
			t.Errorf("%s: %q, without the wrong byte, gives %d, %v; want that more is needed", c.name, in[:len(in)-1], n, err)
		}
		checkPieces(t, in)
	}
}

func TestErrorIsShort(t *testing.T) {
	_, _, err := Parse([]byte("PROXY UNKNOWN " + strings.Repeat("\x01", 80) + "\n"))
	want := `byte 95 is "\n", after ..."` + strings.Repeat(`\x01`, 63) + `"; expected \r before it`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	for _, c := range good {
		in := []byte(c.in)
		if n := testing.AllocsPerRun(100, func() { Parse(in) }); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
		if n := testing.AllocsPerRun(100, func() { Parse(in[:len(in)-1]) }); n != 0 {
			t.Errorf("%s, without its last byte: %v allocations", c.name, n)
		}
	}
}

func TestAppend(t *testing.T) {
	zone := told("[fe80::1%eth0]:1", "[fe80::2%eth0]:2")
	for _, c := range []struct {
		name         string
		h, one, both Header // what version 1 and 2 can say of h
	}{
		{"IPv4", four, four, four},
		{"IPv6", six, six, six},
		{"IPv4 in IPv6", inSix, inSix, inSix},
		{"local", local, local, local},
		{"unix", other, local, other},
		{"nothing", Header{}, local, local},
		{"no destination", Header{Source: four.Source}, local, local},
		{"no source", Header{Destination: four.Source}, local, local},
		{"both kinds", Header{Source: four.Source, Destination: six.Source},
			told("[::ffff:192.0.2.1]:56324", "[2001:db8::1]:1"), told("[::ffff:192.0.2.1]:56324", "[2001:db8::1]:1")},
		{"zones", zone, told("[fe80::1]:1", "[fe80::2]:2"), told("[fe80::1]:1", "[fe80::2]:2")},
	} {
		for version, want := range map[int]Header{1: c.one, 2: c.both} {
			b := Append([]byte("before"), c.h, version)
			h, n, err := Parse(b[len("before"):])
			if string(b[:6]) != "before" || h != want || n != len(b)-6 || err != nil {
				t.Errorf("%s in version %d is %q: %+v, %d bytes, %v; want %+v", c.name, version, b, h, n, err, want)
			}
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("version 3 was written")
		}
	}()
	Append(nil, four, 3)
}

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		name string
		in   string
	}{
		{"text4", good[0].in}, {"text6", good[3].in},
		{"binary4", string(Append(nil, four, 2))}, {"checksum", withSum(six, tlv(1, "h2"), tlv(5, "unique"))},
	} {
		in := []byte(c.in)
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				if _, n, err := Parse(in); n != len(in) || err != nil {
					b.Fatal(n, err)
				}
			}
		})
	}
}
