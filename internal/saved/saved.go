// Package saved encodes and decodes the state of a connection for another process: a sequence of strings and numbers.
package saved

import "encoding/binary"

func AppendString[T string | []byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// Reader reads a sequence of values. If a value is truncated, the method that reads it returns the zero value, and so
// do all later calls.
type Reader struct {
	remaining []byte
	truncated bool
}

func NewReader(p []byte) Reader { return Reader{remaining: p} }

// Complete reports whether no value has been truncated so far.
func (r *Reader) Complete() bool { return !r.truncated }

// Remaining returns the unread bytes, or nil after a truncated value.
func (r *Reader) Remaining() []byte { return r.remaining }

func (r *Reader) markTruncated() { r.remaining, r.truncated = nil, true }

func (r *Reader) Byte() byte {
	if len(r.remaining) == 0 {
		r.markTruncated()
		return 0
	}
	b := r.remaining[0]
	r.remaining = r.remaining[1:]
	return b
}

// Uvarint reads a number in the varint encoding of package encoding/binary.
func (r *Reader) Uvarint() uint64 {
	n, size := binary.Uvarint(r.remaining)
	if size <= 0 {
		r.markTruncated()
		return 0
	}
	r.remaining = r.remaining[size:]
	return n
}

// Bytes reads a string. The result refers to the memory of the Reader's input.
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

func (r *Reader) String() string { return string(r.Bytes()) }
