package main

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
	"time"
)

// waitLines waits before it sends back each line: a handler that waits for
// something else, such as a database.
func waitLines(conn net.Conn, s settings) {
	answerLines(conn, func(out *bufio.Writer, line []byte) {
		time.Sleep(s.wait)
		out.Write(line)
	})
}

// proveLines answers every line with itself, a space, and its proof of work: the
// smallest nonce that gives SHA-256(line, nonce) enough leading zero bits, as 16
// hexadecimal digits. The nonce is hashed as 8 bytes in big-endian order, the
// line without its end.
func proveLines(conn net.Conn, s settings) {
	answerLines(conn, func(out *bufio.Writer, line []byte) {
		line = bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r"))
		fmt.Fprintf(out, "%s %016x\n", line, solve(line, s.bits))
	})
}

// solve finds the proof of work of a line.
func solve(line []byte, zeros int) (nonce uint64) {
	work := append(bytes.Clone(line), make([]byte, 8)...)
	for ; ; nonce++ {
		binary.BigEndian.PutUint64(work[len(line):], nonce)
		sum := sha256.Sum256(work)
		if bits.LeadingZeros64(binary.BigEndian.Uint64(sum[:])) >= zeros {
			return nonce
		}
	}
}
