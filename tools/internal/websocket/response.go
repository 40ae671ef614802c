package websocket

import (
	"bufio"
	"bytes"
	"fmt"
	"net/textproto"
	"strings"

	"github.com/myriad-go/myriad/internal/wsframe"
)

// CheckHandshakeResponse checks the server's response to the handshake request with the key k. The input must begin
// with the response, and may contain frames after it. If the server accepts, n is the size of the response in bytes.
//
// If the response is incomplete, n is 0 and err is nil. The caller must then call again with more input. If the server
// refuses or the response is invalid, err is set. A response of more than 16 KiB is invalid. CheckHandshakeResponse
// does not keep a reference to the input.
func CheckHandshakeResponse(in []byte, k HandshakeKey) (n int, err error) {
	const begin = "HTTP/"
	if n := min(len(in), len(begin)); string(in[:n]) != begin[:n] {
		line, _, _ := bytes.Cut(in, []byte("\n"))
		return 0, errUnexpectedStatus(strings.TrimSuffix(truncateForError(line), "\r"))
	}
	const end = "\r\n\r\n"
	at := bytes.Index(in[:min(len(in), maxHead)], []byte(end))
	switch {
	case at < 0 && len(in) >= maxHead:
		return 0, fmt.Errorf("websocket: the server's response header is longer than %d bytes; expected an empty line at its end", maxHead)
	case at < 0:
		return 0, nil
	}
	n = at + len(end)
	head := textproto.NewReader(bufio.NewReader(bytes.NewReader(in[:n])))
	status, _ := head.ReadLine()
	if after, ok := strings.CutPrefix(status, "HTTP/1.1 101"); !ok || after != "" && after[0] != ' ' {
		return 0, errUnexpectedStatus(status)
	}
	header, err := head.ReadMIMEHeader()
	if err != nil {
		return 0, fmt.Errorf("websocket: the server's response: %w", err)
	}
	text := k.encodeBase64()
	err = wsframe.CheckResponseHeader(header, string(text[:]))
	if err == nil && header.Get("Sec-Websocket-Extensions") != "" {
		err = wsframe.UnexpectedFieldError(header, "Sec-Websocket-Extensions", "none, as none was offered")
	}
	if err != nil {
		return 0, fmt.Errorf("websocket: %w", err)
	}
	return n, nil
}

func errUnexpectedStatus(line string) error {
	return fmt.Errorf("websocket: the server's response is %q; expected %q", truncateForError(line), "HTTP/1.1 101 Switching Protocols")
}
