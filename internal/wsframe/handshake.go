package wsframe

import (
	"crypto/sha1"
	"encoding/base64"
	"fmt"
	"strings"
)

// AcceptValue returns the value of Sec-WebSocket-Accept for a client's Sec-WebSocket-Key (RFC 6455, section 1.3).
func AcceptValue(key string) string {
	sum := sha1.Sum([]byte(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return base64.StdEncoding.EncodeToString(sum[:])
}

// CheckResponseHeader checks the header of a response to a WebSocket handshake. The response must have status 101. key
// is the Sec-WebSocket-Key of the request. CheckResponseHeader does not check the extensions and the subprotocol, which
// the caller must check.
func CheckResponseHeader(header map[string][]string, key string) error {
	accept := AcceptValue(key)
	upgrade, accepted := header["Upgrade"], header["Sec-Websocket-Accept"]
	switch {
	case len(upgrade) != 1 || !strings.EqualFold(upgrade[0], "websocket"):
		return UnexpectedFieldError(header, "Upgrade", "websocket")
	case !commaListsContainFold(header["Connection"], "upgrade"):
		return UnexpectedFieldError(header, "Connection", "Upgrade")
	case len(accepted) != 1 || accepted[0] != accept:
		return UnexpectedFieldError(header, "Sec-Websocket-Accept", accept+", once")
	}
	return nil
}

// UnexpectedFieldError returns an error about a response field that has an unexpected value. name is the canonical name
// of the field. expected describes the correct value.
func UnexpectedFieldError(header map[string][]string, name, expected string) error {
	value := strings.Join(header[name], ", ")
	if len(value) > 80 {
		value = value[:80] + "..."
	}
	return fmt.Errorf("the server's %s is %q; expected %s", name, value, expected)
}

func commaListsContainFold(lists []string, want string) bool {
	for element := range strings.SplitSeq(strings.Join(lists, ","), ",") {
		if strings.EqualFold(strings.TrimSpace(element), want) {
			return true
		}
	}
	return false
}
