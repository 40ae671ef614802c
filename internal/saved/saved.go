// Package saved writes and reads what is known of a connection, for another process: strings
// and numbers, one behind the other.
package saved

import "encoding/binary"

// AppendString appends a string behind its length.
func AppendString[T string | []byte](to []byte, s T) []byte {
	return append(binary.AppendUvarint(to, uint64(len(s))), s...)
}

// Reader reads what was appended. From the first thing that is cut off, it gives zero values.
type Reader struct {
	remaining []byte
	truncated bool
}

// NewReader gives a Reader of p.
func NewReader(p []byte) Reader { return Reader{remaining: p} }

// Complete says that nothing was cut off.
func (r *Reader) Complete() bool { return !r.truncated }

// Remaining is what has not been read; nil if something was cut off.
func (r *Reader) Remaining() []byte { return r.remaining }

func (r *Reader) markTruncated() { r.remaining, r.truncated = nil, true }

// Byte reads a byte.
func (r *Reader) Byte() byte {
	if len(r.remaining) == 0 {
		r.markTruncated()
		return 0
	}
	b := r.remaining[0]
	r.remaining = r.remaining[1:]
	return b
}

// Uvarint reads a number as package encoding/binary appends it.
func (r *Reader) Uvarint() uint64 {
	n, size := binary.Uvarint(r.remaining)
	if size <= 0 {
		r.markTruncated()
		return 0
	}
	r.remaining = r.remaining[size:]
	return n
}

// Bytes reads a string, which is part of what is read.
func (r *Reader) Bytes() []byte {
	n := r.Uvarint()
	if n > uint64(len(r.remaining)) {
		r.markTruncated()
		return nil
	}
	p := r.remaining[:n:n]
	r.remaining = r.remaining[n:]
	return p
}

// String reads a string.
func (r *Reader) String() string { return string(r.Bytes()) }
