package saved

import (
	"encoding/binary"
	"testing"
)

// TestReader reads complete and truncated input.
func TestReader(t *testing.T) {
	p := binary.AppendUvarint(AppendString(AppendString([]byte{7}, "name"), []byte{}), 300)
	p = append(p, "rest"...)
	r := NewReader(p)
	if b, s, e, n, rest := r.Byte(), r.String(), r.Bytes(), r.Uvarint(), r.Remaining(); b != 7 || s != "name" || len(e) != 0 || n != 300 || string(rest) != "rest" || !r.Complete() {
		t.Errorf("read %d %q %q %d %q, %v", b, s, e, n, rest, r.Complete())
	}
	for cut := range len(p) - len("rest") {
		r := NewReader(p[:cut])
		_, _, _, _ = r.Byte(), r.String(), r.Bytes(), r.Uvarint()
		if r.Complete() || r.Remaining() != nil || r.Byte() != 0 || r.String() != "" {
			t.Errorf("%d bytes of %d are read", cut, len(p))
		}
	}
}
