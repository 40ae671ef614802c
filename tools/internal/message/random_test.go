package message

import "testing"

// TestSplitmix compares with the numbers of other implementations for the same
// seed, as at https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64.
func TestSplitmix(t *testing.T) {
	r := splitMix{1234567}
	for i, want := range []uint64{6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821} {
		if got := r.next(); got != want {
			t.Errorf("number %d is %d, want %d", i, got, want)
		}
	}
}
