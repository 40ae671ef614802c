package testkit

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
)

// FIN is the bit in the first byte of a WebSocket frame that marks the last frame of a message.
const FIN = 0x80

const maxFrame = 64 << 20

// HandshakeWebSocket performs the WebSocket handshake and returns the response header. extraHeaderLines are added to
// the request. Each of these lines must end with "\r\n".
func (c *Conn) HandshakeWebSocket(path, extraHeaderLines string) http.Header {
	c.t.Helper()
	c.Send("GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" + extraHeaderLines + "\r\n")
	res, err := http.ReadResponse(c.R, nil)
	RequireNoError(c.t, err)
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" {
		c.t.Fatalf("the WebSocket handshake was answered with %s %v", res.Status, res.Header)
	}
	return res.Header
}

// MaskedFrame returns a WebSocket frame as a client sends it. firstByte is the first byte of the frame, with FIN and
// the opcode.
func MaskedFrame(firstByte byte, payload string) string {
	b := []byte{firstByte}
	switch n := len(payload); {
	case n <= 125:
		b = append(b, 0x80|byte(n))
	case n <= 0xffff:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	mask := [4]byte{0x37, 0xfa, 0x21, 0x3d}
	b = append(b, mask[:]...)
	for i := range len(payload) {
		b = append(b, payload[i]^mask[i&3])
	}
	return string(b)
}

// ReadFrame reads a WebSocket frame that a server has sent. firstByte is the first byte of the frame, with FIN and the
// opcode. The payload may have at most 64 MiB.
func ReadFrame(r *bufio.Reader) (firstByte byte, payload string, err error) {
	var head [2]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, "", err
	}
	size := uint64(head[1])
	switch size {
	case 126:
		var b [2]byte
		_, err = io.ReadFull(r, b[:])
		size = uint64(binary.BigEndian.Uint16(b[:]))
	case 127:
		var b [8]byte
		_, err = io.ReadFull(r, b[:])
		size = binary.BigEndian.Uint64(b[:])
	}
	if err != nil || size > maxFrame {
		return 0, "", fmt.Errorf("a frame of %d bytes: %v", size, err)
	}
	p := make([]byte, size)
	_, err = io.ReadFull(r, p)
	return head[0], string(p), err
}
