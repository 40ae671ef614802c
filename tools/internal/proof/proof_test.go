package proof

import (
	"crypto/sha256"
	"encoding/binary"
	"testing"
)

// TestSolve tries all smaller nonces: none of them is a proof.
func TestSolve(t *testing.T) {
	for _, zeros := range []int{0, 1, 8, 10} {
		line := []byte("a line")
		nonce := SmallestNonceForProof(line, zeros)
		for try := range nonce + 1 {
			sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte("a line"), try))
			is := binary.BigEndian.Uint32(sum[:])>>(32-max(zeros, 1)) == 0 || zeros == 0
			if is != (try == nonce) {
				t.Errorf("%d bits: nonce %d found, and %d is a proof: %t", zeros, nonce, try, is)
			}
		}
	}
}

func TestAppend(t *testing.T) {
	const want = "before; myriad 125 0000000000001078\n"
	if got := string(AppendLineWithProof([]byte("before; "), []byte("myriad 125"), 16)); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
