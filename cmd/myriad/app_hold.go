package main

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"time"

	"github.com/myriad-go/myriad"
)

// These applications hold their loop, on purpose: they stand for a handler that
// waits for something else, such as a database, and for one that computes.

// waitLine waits, then sends the line back.
func (f appFlags) waitLine(c *myriad.Conn, text []byte) {
	time.Sleep(f.wait)
	line(c, text)
}

// prove answers a line with itself, a space, and its proof of work: the smallest
// nonce that gives SHA-256(line, nonce) enough leading zero bits, as 16
// hexadecimal digits. The nonce is hashed as 8 bytes in big-endian order.
func (f appFlags) prove(c *myriad.Conn, line []byte) {
	var nonce [8]byte
	binary.BigEndian.PutUint64(nonce[:], solve(line, f.bits))
	var proof [1 + 2*len(nonce) + 1]byte
	proof[0] = ' '
	hex.Encode(proof[1:], nonce[:])
	proof[len(proof)-1] = '\n'
	c.Write(line)
	c.Write(proof[:])
}

// solve finds the proof of work of a line.
func solve(line []byte, zeros int) (nonce uint64) {
	at := len(line)
	work := binary.BigEndian.AppendUint64(append(make([]byte, 0, at+8), line...), 0)
	for {
		sum := sha256.Sum256(work)
		if leadingZeros(sum[:]) >= zeros {
			return nonce
		}
		nonce++
		binary.BigEndian.PutUint64(work[at:], nonce)
	}
}

// leadingZeros counts the zero bits at the start of b, up to 64.
func leadingZeros(b []byte) int { return bits.LeadingZeros64(binary.BigEndian.Uint64(b)) }
