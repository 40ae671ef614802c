package secure

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// maxHello is the maximum size in bytes of a ClientHello that crypto/tls accepts.
const maxHello = 64 << 10

// helloScanner finds the end of a ClientHello message, which may extend over several TLS records.
type helloScanner struct {
	offset     int     // where the next record begins
	scanned    int     // bytes of the message in previous records
	messageLen int     // bytes of the whole message, 0 until known
	header     [4]byte // the first bytes of the message: type and length
}

// scanHello reports whether the input contains a complete ClientHello. The input must begin with the whole input of the
// previous call and may continue with further bytes.
func (h *helloScanner) scanHello(in []byte) (complete bool, _ error) {
	if err := checkTLSPrefix(in); err != nil {
		return false, err
	}
	for len(in)-h.offset >= headerLen {
		n := int(binary.BigEndian.Uint16(in[h.offset+3:]))
		switch {
		case in[h.offset] != typeHandshake:
			return false, &helloError{alertUnexpectedMessage, fmt.Errorf("secure: record of type %d within the ClientHello; expected handshake (22)", in[h.offset])}
		case n == 0:
			return false, &helloError{alertUnexpectedMessage, errors.New("secure: record of 0 bytes within the ClientHello; expected 1 or more")}
		case n > maxPlain:
			return false, &helloError{alertRecordOverflow, fmt.Errorf("secure: record of %d bytes within the ClientHello; expected at most %d", n, maxPlain)}
		}
		body := in[h.offset+headerLen:]
		isPart := len(body) < n
		if !isPart {
			body = body[:n]
		}
		if err := h.parseHelloTypeAndLength(body); err != nil {
			return false, err
		}
		if isPart {
			return false, nil
		}
		h.offset += headerLen + n
		h.scanned += n
		if h.messageLen > 0 && h.scanned >= h.messageLen {
			return true, nil
		}
	}
	return false, nil
}

func (h *helloScanner) parseHelloTypeAndLength(body []byte) error {
	if h.scanned >= len(h.header) {
		return nil
	}
	known := h.scanned + copy(h.header[h.scanned:], body)
	if known > 0 && h.header[0] != typeClientHello {
		return &helloError{alertUnexpectedMessage, fmt.Errorf("secure: the first handshake message has type %d; expected a ClientHello (1)", h.header[0])}
	}
	if known < len(h.header) {
		return nil
	}
	n := int(h.header[1])<<16 | int(h.header[2])<<8 | int(h.header[3])
	if n > maxHello {
		return fmt.Errorf("secure: ClientHello has %d bytes; expected at most %d", n, maxHello)
	}
	h.messageLen = len(h.header) + n
	return nil
}

// helloError is an error in a ClientHello that must be answered with an alert (RFC 8446).
type helloError struct {
	alert byte
	error
}

const (
	alertUnexpectedMessage = 10
	alertRecordOverflow    = 22
	alertProtocolVersion   = 70
)

func (e *helloError) alertRecord() []byte {
	const typeAlert, fatal = 21, 2
	return []byte{typeAlert, 3, 3, 0, 2, fatal, e.alert}
}

// plainHTTPAnswer is the answer of net/http to an unencrypted HTTP request on a TLS port.
const plainHTTPAnswer = "HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n"

// looksLikeHTTP reports whether the input begins like an unencrypted HTTP request. It makes the same test as net/http.
func looksLikeHTTP(in []byte) bool {
	switch string(in[:min(len(in), headerLen)]) {
	case "GET /", "HEAD ", "POST ", "PUT /", "OPTIO":
		return true
	}
	return false
}

func checkTLSPrefix(in []byte) error {
	if len(in) == 0 || in[0] == typeHandshake && (len(in) == 1 || in[1] == 3) {
		return nil
	}
	err := fmt.Errorf("secure: the client began with %q; expected a TLS handshake record", in[:min(len(in), 8)])
	if in[0] == 0x80 { // SSL 2.0: crypto/tls sends the same alert
		return &helloError{alertProtocolVersion, err}
	}
	return err
}

// maxSmallBody is the maximum record body, in bytes, that fits into the initial buffer of crypto/tls.
const maxSmallBody = 576 - headerLen

// splitHelloIntoSmallRecords splits the ClientHello at the beginning of the input into small records, because
// crypto/tls needs less memory for small records. If the last record of the ClientHello also contains the start of
// another message, it returns the input unchanged.
func (h *helloScanner) splitHelloIntoSmallRecords(in []byte) []byte {
	if h.scanned != h.messageLen {
		return in // another message starts in the last record
	}
	// A power of two suits another buffer of crypto/tls, which grows by doubling.
	count := 1
	for (h.messageLen+count-1)/count > maxSmallBody {
		count *= 2
	}
	each := (h.messageLen + count - 1) / count
	out := make([]byte, 0, h.messageLen+count*headerLen+len(in)-h.offset)
	version := binary.BigEndian.Uint16(in[1:])
	room := 0 // space in the current record
	left := h.messageLen
	for at := 0; at < h.offset; {
		n := int(binary.BigEndian.Uint16(in[at+3:]))
		body := in[at+headerLen:][:n]
		at += headerLen + n
		for len(body) > 0 {
			if room == 0 {
				room = min(each, left)
				out = append(out, typeHandshake)
				out = binary.BigEndian.AppendUint16(out, version)
				out = binary.BigEndian.AppendUint16(out, uint16(room))
			}
			k := min(room, len(body))
			out = append(out, body[:k]...)
			body = body[k:]
			room -= k
			left -= k
		}
	}
	return append(out, in[h.offset:]...)
}
