// Package proof computes proofs of work, which stand for the work of a handler that needs processor time.
package proof

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
)

// MaxZeros is the maximum number of leading zero bits in a proof of work. Each zero bit doubles the work.
const MaxZeros = 32

// AppendLineWithProof appends a line, a space, the proof of work for the line as 16 hexadecimal digits, and a line end.
// The argument line must not contain a line end.
func AppendLineWithProof(out, line []byte, leadingZeroBits int) []byte {
	nonce := binary.BigEndian.AppendUint64(nil, SmallestNonceForProof(line, leadingZeroBits))
	out = append(append(out, line...), ' ')
	return append(hex.AppendEncode(out, nonce), '\n')
}

// SmallestNonceForProof returns the smallest nonce for which the SHA-256 hash of the line and the nonce begins with at
// least leadingZeroBits zero bits. The nonce is hashed as 8 bytes, big-endian. leadingZeroBits must be from 0 to
// MaxZeros.
func SmallestNonceForProof(line []byte, leadingZeroBits int) (nonce uint64) {
	at := len(line)
	work := binary.BigEndian.AppendUint64(append(make([]byte, 0, at+8), line...), 0)
	for {
		sum := sha256.Sum256(work)
		if bits.LeadingZeros64(binary.BigEndian.Uint64(sum[:])) >= leadingZeroBits {
			return nonce
		}
		nonce++
		binary.BigEndian.PutUint64(work[at:], nonce)
	}
}
