package engine

import "testing"

// FuzzConn runs the simulation with choices that the fuzzer makes.
func FuzzConn(f *testing.F) {
	for seed := range uint64(8) {
		d := newSeeded(seed)
		choices := make([]byte, 600)
		for i := range choices {
			choices[i] = byte(d.roll(256))
		}
		f.Add(choices)
	}
	f.Fuzz(func(t *testing.T, choices []byte) {
		simulate(t, "FuzzConn", &script{choices[:min(len(choices), 4096)]})
	})
}

// script is dice that take their numbers from bytes. When there are none left,
// they roll the highest number: the largest pieces, and no surprises.
type script struct{ bytes []byte }

func (d *script) more() bool { return len(d.bytes) > 0 }

func (d *script) roll(n int) int {
	if len(d.bytes) == 0 {
		return n - 1
	}
	v := int(d.bytes[0])
	d.bytes = d.bytes[1:]
	if n > 256 {
		return v * n / 256
	}
	return v % n
}
