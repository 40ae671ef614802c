// Package saved encodes and decodes the state of a connection for another process: a sequence of strings and numbers.
package saved

import "encoding/binary"

func AppendString[T string | []byte](dst []byte, s T) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// Reader reads a sequence of values. After a truncated value, it returns zero values.
type Reader struct {
	remaining []byte
	truncated bool
}

func NewReader(p []byte) Reader { return Reader{remaining: p} }

// Complete reports whether all values read so far were complete.
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

// Bytes reads a string and returns it without copying.
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
