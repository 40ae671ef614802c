package cgroup

import (
	"testing"
	"time"
)

func TestParsePressureTotal(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"some avg10=0.12 avg60=0.00 avg300=0.00 total=123\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n": 123 * time.Microsecond,
		"": -1, "some avg10=0.12": -1, "some total=x\n": -1,
	} {
		if got, ok := parsePressureTotal(text); ok != (want >= 0) || ok && got != want {
			t.Errorf("%q: %v, %v; expected %v", text, got, ok, want)
		}
	}
}
