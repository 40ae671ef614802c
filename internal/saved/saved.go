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
	rest   []byte
	failed bool
}

// Read gives a Reader of p.
func Read(p []byte) Reader { return Reader{rest: p} }

// OK says that nothing was cut off.
func (r *Reader) OK() bool { return !r.failed }

// Rest is what has not been read; nil if something was cut off.
func (r *Reader) Rest() []byte { return r.rest }

func (r *Reader) fail() { r.rest, r.failed = nil, true }

// Byte reads a byte.
func (r *Reader) Byte() byte {
	if len(r.rest) == 0 {
		r.fail()
		return 0
	}
	b := r.rest[0]
	r.rest = r.rest[1:]
	return b
}

// Uvarint reads a number as package encoding/binary appends it.
func (r *Reader) Uvarint() uint64 {
	n, size := binary.Uvarint(r.rest)
	if size <= 0 {
		r.fail()
		return 0
	}
	r.rest = r.rest[size:]
	return n
}

// Bytes reads a string, which is part of what is read.
func (r *Reader) Bytes() []byte {
	n := r.Uvarint()
	if n > uint64(len(r.rest)) {
		r.fail()
		return nil
	}
	p := r.rest[:n:n]
	r.rest = r.rest[n:]
	return p
}

// String reads a string.
func (r *Reader) String() string { return string(r.Bytes()) }
