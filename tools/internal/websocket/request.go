package websocket

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// maxHead is the maximum size of a handshake request or response in bytes.
const maxHead = 16 << 10

// HandshakeKey is the nonce of a handshake. RFC 6455 requires a random nonce for each connection.
type HandshakeKey [16]byte

func (k HandshakeKey) encodeBase64() (text [24]byte) {
	base64.StdEncoding.Encode(text[:], k[:])
	return text
}

// AppendRequest appends the request of a handshake. host must not contain the default port. An empty path means "/".
// The caller must have checked path and header with CheckPathAndHeader.
func AppendRequest(dst []byte, host, path string, header http.Header, k HandshakeKey) []byte {
	if path == "" {
		path = "/"
	}
	text := k.encodeBase64()
	dst = append(append(dst, "GET "...), path...)
	dst = append(append(dst, " HTTP/1.1\r\nHost: "...), host...)
	dst = append(dst, "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: "...)
	dst = append(dst, text[:]...)
	dst = append(dst, "\r\nSec-WebSocket-Version: 13\r\n"...)
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, value := range header[name] {
			dst = append(append(dst, name...), ": "...)
			dst = append(append(dst, value...), "\r\n"...)
		}
	}
	return append(dst, "\r\n"...)
}

// CheckPathAndHeader returns an error if the path or the header of a request is invalid. A path must be empty or begin
// with "/". It must have valid percent-encoding, and consist of printable ASCII characters other than the space and
// "#". A header must not contain the lines in reservedHeaders, which AppendRequest writes itself or which announce a
// body or WebSocket extensions. Path and header together must have less than 16 KiB.
func CheckPathAndHeader(path string, header http.Header) error {
	if err := checkOptionalPath(path); err != nil {
		return err
	}
	size := len(path)
	for name, values := range header {
		if reason, ours := reservedHeaders[strings.ToLower(name)]; ours {
			return fmt.Errorf("websocket: header %s is given; expected none, because %s", name, reason)
		}
		for _, value := range values {
			control := func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f }
			if strings.ContainsFunc(value, control) {
				return fmt.Errorf("websocket: header %s is %q; expected no control characters", name, truncateForError(value))
			}
			size += len(name) + len(value) + len(": \r\n")
		}
		if name == "" || strings.Trim(name, tokenChars) != "" {
			return fmt.Errorf("websocket: header name is %q; expected an HTTP token, such as letters, digits and -", truncateForError(name))
		}
	}
	if size >= maxHead {
		return fmt.Errorf("websocket: path and header have %d bytes; expected fewer than %d", size, maxHead)
	}
	return nil
}

func checkOptionalPath(path string) error {
	if path == "" {
		return nil
	}
	strange := func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '#' }
	if path[0] != '/' || strings.ContainsFunc(path, strange) {
		return fmt.Errorf("websocket: path is %q; expected a slash, then printable ASCII without spaces and #", truncateForError(path))
	}
	if _, err := url.ParseRequestURI(path); err != nil {
		return fmt.Errorf("websocket: path is %q; expected valid percent-encoding", truncateForError(path))
	}
	return nil
}

const tokenChars = "!#$%&'*+-.^_`|~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// reservedHeaders contains the names of header lines that callers must not set. The value is the reason, for error
// messages.
var reservedHeaders = map[string]string{
	"host":                     "the target sets it",
	"upgrade":                  "it is always sent",
	"connection":               "it is always sent",
	"sec-websocket-key":        "each connection has its own",
	"sec-websocket-version":    "its value is always 13",
	"sec-websocket-extensions": "no extensions are supported",
	"sec-websocket-accept":     "only a server sends it",
	"content-length":           "the request has no body",
	"transfer-encoding":        "the request has no body",
}

func truncateForError[T string | []byte](s T) string {
	const most = 80
	if len(s) > most {
		return string(s[:most]) + "..."
	}
	return string(s)
}
