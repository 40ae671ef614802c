package secure

import "encoding/binary"

// Of TLS records, see RFC 8446, section 5.
const (
	headerLen     = 5
	maxPlain      = 16 << 10
	maxCiphertext = maxPlain + 2048 // of TLS 1.2, which allows the most
	maxRecord     = headerLen + maxCiphertext

	typeHandshake   = 22
	typeClientHello = 1
)

// recordLen is how many bytes of b make its first record, or as much of it as is
// needed to know more. A length that cannot be makes the header alone a record:
// crypto/tls says what is wrong with it.
func recordLen(b []byte) int {
	if len(b) < headerLen {
		return headerLen
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	if n > maxCiphertext {
		return headerLen
	}
	return headerLen + n
}

// isWhole says whether b begins with a whole record.
func isWhole(b []byte) bool { return len(b) >= recordLen(b) }
