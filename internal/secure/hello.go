package secure

import (
	"encoding/binary"
	"fmt"
)

// maxHello is the largest ClientHello that crypto/tls takes, in bytes.
const maxHello = 64 << 10

// A hello is the search for the end of a ClientHello: a handshake message in one
// record or more.
type hello struct {
	at    int     // where the next record begins
	got   int     // bytes of the message in the records before
	need  int     // bytes of the whole message, 0 until known
	front [4]byte // the first bytes of the message: its type and length
}

// scan looks at the input, which begins where it always began and has grown. It
// says whether the ClientHello is whole. The error says that this is none.
func (h *hello) scan(in []byte) (bool, error) {
	if err := plausible(in); err != nil {
		return false, err
	}
	for len(in)-h.at >= headerLen {
		n := int(binary.BigEndian.Uint16(in[h.at+3:]))
		switch {
		case in[h.at] != typeHandshake:
			return false, fmt.Errorf("secure: a record of type %d within the ClientHello, expected handshake (22)", in[h.at])
		case n == 0 || n > maxPlain:
			return false, fmt.Errorf("secure: a record of %d bytes within the ClientHello, expected 1 to %d", n, maxPlain)
		}
		body := in[h.at+headerLen:]
		isPart := len(body) < n
		if !isPart {
			body = body[:n]
		}
		if err := h.look(body); err != nil {
			return false, err
		}
		if isPart {
			return false, nil
		}
		h.at += headerLen + n
		h.got += n
		if h.need > 0 && h.got >= h.need {
			return true, nil
		}
	}
	return false, nil
}

// look learns the message's type and length from the bytes behind those got.
func (h *hello) look(body []byte) error {
	if h.got >= len(h.front) {
		return nil
	}
	known := h.got + copy(h.front[h.got:], body)
	if known > 0 && h.front[0] != typeClientHello {
		return fmt.Errorf("secure: the first handshake message has type %d, expected a ClientHello (1)", h.front[0])
	}
	if known < len(h.front) {
		return nil
	}
	n := int(h.front[1])<<16 | int(h.front[2])<<8 | int(h.front[3])
	if n > maxHello {
		return fmt.Errorf("secure: a ClientHello of %d bytes, the most is %d", n, maxHello)
	}
	h.need = len(h.front) + n
	return nil
}

// plausible is an error if no TLS connection begins like this.
func plausible(in []byte) error {
	if len(in) == 0 || in[0] == typeHandshake && (len(in) == 1 || in[1] == 3) {
		return nil
	}
	return fmt.Errorf("secure: the client began with %q, expected a TLS handshake record", in[:min(len(in), 8)])
}

// smallBody is the most that a record may carry that crypto/tls takes without
// growing its first buffer of 576 bytes.
const smallBody = 576 - headerLen

// cut is the input with its ClientHello, found whole by scan, in records that
// are small: crypto/tls keeps a buffer as large as the largest record it saw.
// Nothing protects the bounds of these records, only the message in them, so
// they may be moved. Their number is a power of two, which suits the other buffer
// that crypto/tls keeps, for the message: it grows by doubling.
func (h *hello) cut(in []byte) []byte {
	if h.got != h.need {
		return in // another message begins in the last record: leave that alone
	}
	count := 1
	for (h.need+count-1)/count > smallBody {
		count *= 2
	}
	each := (h.need + count - 1) / count
	out := make([]byte, 0, h.need+count*headerLen+len(in)-h.at)
	version := binary.BigEndian.Uint16(in[1:])
	room := 0 // left in the record that is being written
	left := h.need
	for at := 0; at < h.at; {
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
	return append(out, in[h.at:]...)
}
