package proxyproto

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"net/netip"
	"strings"
	"testing"
)

func newHeader(source, destination string) Header {
	return Header{Source: netip.MustParseAddrPort(source), Destination: netip.MustParseAddrPort(destination)}
}

var (
	four  = newHeader("192.0.2.1:56324", "198.51.100.7:443")
	six   = newHeader("[2001:db8::1]:1", "[2001:db8::ffff:0]:65535")
	inSix = newHeader("[::ffff:192.0.2.1]:0", "[::ffff:198.51.100.7]:443")
	local = Header{Local: true}
	other = Header{Unix: true}
)

// binaryHeader returns a version 2 header with arbitrary content.
func binaryHeader(command, family byte, block ...byte) string {
	b := append([]byte(signature), command, family)
	b = binary.BigEndian.AppendUint16(b, uint16(len(block)))
	return string(append(b, block...))
}

func tlv(kind byte, value string) string {
	return string(binary.BigEndian.AppendUint16([]byte{kind}, uint16(len(value)))) + value
}

// headerWithBlock appends TLVs to the addresses of h.
func headerWithBlock(h Header, more string) string {
	b := append(appendHeader(nil, h, 2), more...)
	binary.BigEndian.PutUint16(b[14:], uint16(len(b)-headerSize))
	return string(b)
}

// headerWithChecksum appends before, a correct checksum, and after to the addresses of h.
func headerWithChecksum(h Header, before, after string) string {
	s := headerWithBlock(h, before+tlv(typeCRC32C, "\x00\x00\x00\x00")+after)
	at := len(s) - len(after) - crc32.Size
	sum := crc32.Checksum([]byte(s), crc32.MakeTable(crc32.Castagnoli))
	return s[:at] + string(binary.BigEndian.AppendUint32(nil, sum)) + s[at+crc32.Size:]
}

var addresses4 = "\xc0\x00\x02\x01\xc6\x33\x64\x07\xdc\x04\x01\xbb"

var validHeaders = []struct {
	name, in string
	want     Header
}{
	{"text, IPv4", "PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n", four},
	{"text, least and most", "PROXY TCP4 0.0.0.0 255.255.255.255 0 65535\r\n", newHeader("0.0.0.0:0", "255.255.255.255:65535")},
	{"text, IPv6", "PROXY TCP6 2001:db8::1 2001:db8::ffff:0 1 65535\r\n", six},
	{"text, IPv4 in IPv6", "PROXY TCP6 ::ffff:192.0.2.1 ::FFFF:198.51.100.7 0 443\r\n", inSix},
	{"text, unknown", "PROXY UNKNOWN\r\n", local},
	{"text, unknown with more", "PROXY UNKNOWN ffff::1 \x00\xff  1 65536\r\n", local},
	{"text, unknown of 107 bytes", "PROXY UNKNOWN " + strings.Repeat("f", 107-16) + "\r\n", local},
	{"binary, IPv4", binaryHeader(0x21, 0x11, []byte(addresses4)...), four},
	{"binary, IPv6", string(appendHeader(nil, six, 2)), six},
	{"binary, IPv4 in IPv6", string(appendHeader(nil, inSix, 2)), inSix},
	{"binary, unix with paths", binaryHeader(0x21, 0x31, bytes.Repeat([]byte("p"), 216)...), other},
	{"binary, unix with a TLV", headerWithBlock(other, tlv(4, "")), other},
	{"binary, local with addresses", binaryHeader(0x20, 0x11, []byte(addresses4)...), local},
	{"binary, unspecified with anything", binaryHeader(0x21, 0x00, 3, 0, 4, 1), local},
	{"binary, unspecified protocol", binaryHeader(0x21, 0x10, []byte(addresses4)...), local},
	{"binary, TLVs", headerWithBlock(four, tlv(4, "")+tlv(2, "example.com")+tlv(0xee, strings.Repeat("x", 300))), four},
	{"binary, as long as can be", headerWithBlock(four, tlv(4, strings.Repeat("x", MaxSize-headerSize-addressSize[inet]-tlvHeaderSize))), four},
	{"binary, checksum between others", headerWithChecksum(six, tlv(1, "h2"), tlv(5, "unique")), six},
	{"binary, checksum with unix", headerWithChecksum(other, "", tlv(4, "\x03\x00\x04")), other},
}

func TestParse(t *testing.T) {
	for _, c := range validHeaders {
		h, n, err := Parse([]byte(c.in))
		if h != c.want || n != len(c.in) || err != nil {
			t.Errorf("%s: %q gives %+v, %d of %d bytes, %v; want %+v", c.name, c.in, h, n, len(c.in), err, c.want)
		}
		checkParsePrefixes(t, []byte(c.in))
	}
}

// invalidHeaders are invalid headers and their errors.
var invalidHeaders = []struct{ name, in, says string }{
	{"nothing like it", "G", `byte 1 is "G", after ""; expected "PROXY "`},
	{"TLS", "\x16", `"\x16"`},
	{"another protocol", "PROXY UDP4 1.2.3.4 5.6.7.8 1 2\r\n", "TCP4, TCP6 or UNKNOWN"},
	{"two spaces before the address", "PROXY TCP4  1.2.3.4 5.6.7.8 1 2\r\n", "each preceded by one space"},
	{"a zero in front", "PROXY TCP4 192.00.2.1 5.6.7.8 1 2\r\n", `"192.00.2.1"; expected an IPv4`},
	{"IPv6 instead of IPv4", "PROXY TCP4 1.2.3.4 ::1 1 2\r\n", "expected an IPv4"},
	{"a zone", "PROXY TCP6 fe80::1%eth0 ::1 1 2\r\n", "without a zone"},
	{"a port of 65536", "PROXY TCP4 1.2.3.4 5.6.7.8 65536 2\r\n", `port is "65536"`},
	{"a zero in front of a port", "PROXY TCP4 1.2.3.4 5.6.7.8 1 02\r\n", `port is "02"`},
	{"something behind the ports", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2 \r\n", "two ports"},
	{"the end of a unix line", "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\n", `to end with \r\n`},
	{"unknown, end of a unix line", "PROXY UNKNOWN \n", `to end with \r\n`},
	{"107 bytes without an end", "PROXY UNKNOWN " + strings.Repeat("f", 107-14), "within 107 bytes"},

	{"half a signature", signature[:7] + "q", "signature of version 2"},
	{"version 1 in binary", binaryHeader(0x11, 0x11), "version 2"},
	{"command 2", binaryHeader(0x22, 0x11), "version 2, PROXY"},
	{"datagrams", binaryHeader(0x21, 0x12), "not datagrams"},
	{"family 4", binaryHeader(0x21, 0x41), "streams"},
	{"too long", signature + "\x21\x11\x0f\xf1", "has 4097 bytes; expected at most 4096"},
	{"short of IPv4", binaryHeader(0x21, 0x11, make([]byte, 11)...), "length is 11; expected at least 12"},
	{"short of unix", binaryHeader(0x21, 0x31, make([]byte, 215)...), "length is 215; expected at least 216"},
	{"two bytes over", headerWithBlock(four, "xy"), "after the last TLV is 2; expected 0"},
	{"a TLV beyond the end", headerWithBlock(four, "\x04\x00\x02x"), "has 2 bytes; expected at most 1"},
	{"a TLV and a byte", headerWithBlock(four, tlv(4, "")+"x"), "after the last TLV is 1; expected 0"},
	{"a short checksum", headerWithBlock(four, tlv(3, "abc")), "CRC32C has 3 bytes; expected 4"},
	{"a second checksum", headerWithChecksum(four, "", tlv(3, "abcd")), "found two CRC32C"},
	{"a wrong checksum", headerWithBlock(four, tlv(3, "abcd")), "CRC32C is 61626364; expected"},
}

func TestParseRefuses(t *testing.T) {
	for _, c := range invalidHeaders {
		in := []byte(c.in)
		h, n, err := Parse(in)
		if err == nil || h != (Header{}) || n != 0 {
			t.Errorf("%s: %q gives %+v, %d, %v; want an error alone", c.name, in, h, n, err)
			continue
		}
		if !strings.Contains(err.Error(), c.says) || len(err.Error()) > 500 {
			t.Errorf("%s: %q gives %q; want it to say %s", c.name, in, err, c.says)
		}
		checkParsePrefixes(t, in)
	}
}

// TestIncompleteAllocatesNothing checks that parsing an incomplete header does not allocate.
func TestIncompleteAllocatesNothing(t *testing.T) {
	for _, c := range validHeaders {
		in := []byte(c.in)
		if n := testing.AllocsPerRun(100, func() { Parse(in[:len(in)-1]) }); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}
