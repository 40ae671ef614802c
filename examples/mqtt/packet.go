package main

import (
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"unicode/utf8"
)

// Types of MQTT packets.
const (
	typeConnect     = 1
	typeConnack     = 2
	typePublish     = 3
	typePuback      = 4
	typeSubscribe   = 8
	typeSuback      = 9
	typeUnsubscribe = 10
	typeUnsuback    = 11
	typePingreq     = 12
	typePingresp    = 13
	typeDisconnect  = 14
)

// maxPacket is the maximum size of a packet in bytes, header included.
const maxPacket = 64 << 10

var (
	errMalformed = errors.New("mqtt: malformed packet")
	errTooLarge  = errors.New("mqtt: packet larger than 64 KiB")
)

// splitPackets is a bufio.SplitFunc. A token is a whole packet.
func splitPackets(data []byte, atEOF bool) (advance int, packet []byte, err error) {
	header, size, err := parseHeader(data)
	switch {
	case err != nil:
		return 0, nil, err
	case header > 0 && header+size > maxPacket:
		return 0, nil, errTooLarge
	case header > 0 && header+size <= len(data):
		return header + size, data[:header+size], nil
	case atEOF && len(data) > 0:
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// parseHeader returns the size of the fixed header and of the rest of the packet. If the header is incomplete, header
// is 0.
func parseHeader(data []byte) (header, size int, err error) {
	for i := 1; i < len(data); i++ {
		size |= int(data[i]&0x7f) << (7 * (i - 1))
		if data[i] < 0x80 {
			return i + 1, size, nil
		}
		if i == 4 {
			return 0, 0, errMalformed
		}
	}
	return 0, 0, nil
}

// appendHeader appends the fixed header of a packet.
func appendHeader(b []byte, first byte, size int) []byte {
	for b = append(b, first); size >= 0x80; size >>= 7 {
		b = append(b, byte(size)|0x80)
	}
	return append(b, byte(size))
}

// publication is a message to a topic.
type publication struct {
	topic    string
	payload  []byte
	retained bool
}

// encode encodes p as a packet with QoS 0.
func (p *publication) encode(retained bool) []byte {
	first := byte(typePublish << 4)
	if retained {
		first |= 1
	}
	b := appendHeader(make([]byte, 0, 7+len(p.topic)+len(p.payload)), first, 2+len(p.topic)+len(p.payload))
	b = append(binary.BigEndian.AppendUint16(b, uint16(len(p.topic))), p.topic...)
	return append(b, p.payload...)
}

// fieldReader reads the fields of a packet. If a field is missing or invalid, it sets bad, and all further fields are
// zero.
type fieldReader struct {
	rest []byte
	bad  bool
}

func (r *fieldReader) take(n int) []byte {
	if r.bad = r.bad || n > len(r.rest); r.bad {
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *fieldReader) uint8() (n uint8) {
	if b := r.take(1); !r.bad {
		n = b[0]
	}
	return n
}

func (r *fieldReader) uint16() (n uint16) {
	if b := r.take(2); !r.bad {
		n = binary.BigEndian.Uint16(b)
	}
	return n
}

func (r *fieldReader) bytes() []byte { return r.take(int(r.uint16())) }

// string reads UTF-8 text without NUL.
func (r *fieldReader) string() string {
	s := string(r.bytes())
	r.bad = r.bad || !utf8.ValidString(s) || strings.ContainsRune(s, 0)
	return s
}

// topic reads a topic or, if wildcards is set, a filter, which may contain + and #.
func (r *fieldReader) topic(wildcards bool) string {
	s := r.string()
	levels := strings.Split(s, "/")
	r.bad = r.bad || s == "" || len(s) > maxTopic || len(levels) > maxLevels
	for i, level := range levels {
		special := strings.ContainsAny(level, "+#")
		r.bad = r.bad || special && (!wildcards || len(level) > 1 || level == "#" && i < len(levels)-1)
	}
	return s
}

// filters reads at least one filter, each with a requested QoS if qos is set.
func (r *fieldReader) filters(qos bool) (filters []string) {
	for len(r.rest) > 0 && !r.bad {
		filters = append(filters, r.topic(true))
		if qos && r.uint8() > 2 {
			r.bad = true
		}
	}
	r.bad = r.bad || len(filters) == 0
	return filters
}
