package websocket

import (
	"bytes"
	"fmt"
)

// CheckResponse looks at the server's answer to a request with the key k, which
// in begins with. If it agrees to the upgrade, n is the size of the answer in
// bytes; frames may follow at once. While the answer is not complete, n is 0 and
// err nil: call it again with more behind it. What is wrong is an error as soon
// as its line is complete, and so are 16 KiB without an end. The error names the
// status line if that is not 101.
//
// Lines end in \r\n and are not folded. It does not keep in, and allocates for
// errors alone.
func CheckResponse(in []byte, k Key) (n int, err error) {
	a := answer{accept: k.accept()}
	for {
		end := bytes.IndexByte(in[n:min(len(in), maxHead)], '\n')
		if end < 0 {
			return 0, checkBeginning(in)
		}
		line, whole := bytes.CutSuffix(in[n:n+end], []byte("\r"))
		if !whole {
			return 0, fmt.Errorf("websocket: the server's line %q ends in \\n; expected \\r\\n", shorten(line))
		}
		first := n == 0
		n += end + 1
		switch {
		case first:
			err = checkStatus(line)
		case len(line) == 0:
			err = a.complete()
		default:
			err = a.field(line)
		}
		if err != nil {
			return 0, err
		}
		if len(line) == 0 {
			return n, nil
		}
	}
}

// checkBeginning says what is wrong with an answer that isn't complete.
func checkBeginning(in []byte) error {
	const begin = "HTTP/"
	if n := min(len(in), len(begin)); string(in[:n]) != begin[:n] {
		return errStatus(in) // not HTTP: nobody waits for the end of the line
	}
	if len(in) >= maxHead {
		return fmt.Errorf("websocket: the server's answer does not end within %d bytes; expected an empty line", maxHead)
	}
	return nil
}

const switching = "HTTP/1.1 101"

func checkStatus(line []byte) error {
	after, ok := bytes.CutPrefix(line, []byte(switching))
	if !ok || len(after) > 0 && after[0] != ' ' {
		return errStatus(line)
	}
	return nil
}

func errStatus(line []byte) error {
	return fmt.Errorf("websocket: the server answers %q; expected %q", shorten(line), switching+" Switching Protocols")
}

// answer is what the lines of an answer have said so far.
type answer struct {
	accept                        [28]byte // what Sec-WebSocket-Accept must be
	upgraded, connected, accepted bool
}

// field takes the next line behind the status.
func (a *answer) field(line []byte) error {
	name, value, ok := bytes.Cut(line, []byte(":"))
	if !ok || !isToken(name) || !isValue(value) {
		return fmt.Errorf("websocket: the server's line %q; expected a name, a colon and a value", shorten(line))
	}
	value = bytes.Trim(value, " \t")
	switch {
	case is(name, "Upgrade"):
		a.upgraded = is(value, "websocket")
		if !a.upgraded {
			return errField(name, value, "websocket")
		}
	case is(name, "Connection"):
		a.connected = a.connected || lists(value, "Upgrade")
	case is(name, "Sec-WebSocket-Accept"):
		if a.accepted || !bytes.Equal(value, a.accept[:]) {
			return errField(name, value, string(a.accept[:])+", once")
		}
		a.accepted = true
	case is(name, "Sec-WebSocket-Extensions") && len(value) > 0:
		return errField(name, value, "none, as none was offered")
	}
	return nil
}

// complete says what is missing when the last line is there.
func (a *answer) complete() error {
	const missing = "websocket: the server's answer has no %q; expected one with status 101"
	switch {
	case !a.upgraded:
		return fmt.Errorf(missing, "Upgrade: websocket")
	case !a.connected:
		return fmt.Errorf(missing, "Connection: Upgrade")
	case !a.accepted:
		return fmt.Errorf(missing, "Sec-WebSocket-Accept")
	}
	return nil
}

func errField(name, value []byte, expected string) error {
	return fmt.Errorf("websocket: the server's %s is %q; expected %s", shorten(name), shorten(value), expected)
}

// is compares without regard to the case of ASCII letters. Other letters, that
// EqualFold takes for the same as k or s, make it longer.
func is(got []byte, want string) bool {
	return len(got) == len(want) && bytes.EqualFold(got, []byte(want))
}

// lists says whether an element of a comma-separated list is want.
func lists(list []byte, want string) bool {
	for more := true; more; {
		var element []byte
		element, list, more = bytes.Cut(list, []byte(","))
		if is(bytes.Trim(element, " \t"), want) {
			return true
		}
	}
	return false
}
