package procfs

import "testing"

// TestSoftnetDrops adds up the second column.
func TestSoftnetDrops(t *testing.T) {
	for _, test := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"00000001 0000000a 00000000\n00000001 00000006 00000000\n", 16, true},
		{"00000001 ffffffff\n", 0xffffffff, true},
		{"", 0, false},
		{"00000001\n", 0, false},
		{"00000001 x\n", 0, false},
		{"00000001 00000001\n\n", 0, false},
	} {
		got, err := parseSoftnetDrops([]byte(test.text))
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%q: %d, %v; want %d, error %v", test.text, got, err, test.want, !test.ok)
		}
	}
}

// FuzzSoftnetDrops parses anything without failing but by an error.
func FuzzSoftnetDrops(f *testing.F) {
	f.Add([]byte("00000001 0000000a 00000000\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n, err := parseSoftnetDrops(b); err != nil && n != 0 {
			t.Errorf("%d with error %v", n, err)
		}
	})
}
