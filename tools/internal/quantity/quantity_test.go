package quantity

import (
	"math"
	"testing"
	"time"
)

func TestCount(t *testing.T) {
	for text, want := range map[string]int{
		"0": 0, "7": 7, "500": 500, "20k": 20_000, "20K": 20_000, "1.5M": 1_500_000, "2m": 2_000_000, "1G": 1_000_000_000,
		"64ki": 65_536, "64Ki": 65_536, "1Mi": 1 << 20, "0.5k": 500, ".5k": 500, "5.": 5,
	} {
		if got, err := ParseCount(text); got != want || err != nil {
			t.Errorf("%q: got %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{
		"", "k", "-1", "+1", "1.5", "1e3", "0x10", "1_000", "inf", "NaN", "1 k", "1kk", "1kb", "1..2", ".", "9007199254740993k", "ten",
	} {
		if got, err := ParseCount(text); err != WantCount {
			t.Errorf("%q: got %d, %v; want the error %q", text, got, err, WantCount)
		}
	}
	for _, text := range []string{"0", "0k", "-1", ""} {
		if got, err := ParsePositive(text); err != WantPositive {
			t.Errorf("more than %q: got %d, %v; want the error %q", text, got, err, WantPositive)
		}
		if got, err := ParsePositive64(text); err != WantPositive {
			t.Errorf("long %q: got %d, %v; want the error %q", text, got, err, WantPositive)
		}
	}
	if got, err := ParsePositive64("9007199254740992"); got != Max || err != nil {
		t.Errorf("the largest number: got %d, %v", got, err)
	}
	if got, err := ParsePositive64("9007199254741k"); err != WantPositive {
		t.Errorf("more than the largest number: got %d, %v", got, err)
	}
	if got, err := ParseDecimalSeed("18446744073709551615"); got != math.MaxUint64 || err != nil {
		t.Errorf("the largest seed: got %d, %v", got, err)
	}
	if got, err := ParseDecimalSeed("18446744073709551616"); err == nil {
		t.Errorf("a seed of 65 bits: got %d", got)
	}
}

func TestTime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0": 0, "0s": 0, "10": 10 * time.Second, "0.1": 100 * time.Millisecond, "1.5s": 1500 * time.Millisecond,
		"100ms": 100 * time.Millisecond, "2m": 2 * time.Minute, "1h30m": 90 * time.Minute, "2d": 48 * time.Hour, "10us": 10 * time.Microsecond,
	} {
		if got, err := ParseDurationOrSeconds(text); got != want || err != nil {
			t.Errorf("%q: got %v, %v; want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "d", "-1", "-1s", "soon", "1 s", "1e3", "1dd", "9999999999", "1000000d", "2562048h"} {
		if got, err := ParseDurationOrSeconds(text); err != WantDuration {
			t.Errorf("%q: got %v, %v; want the error %q", text, got, err, WantDuration)
		}
	}
	if got, err := ParsePositiveDurationOrSeconds("0s"); err == nil {
		t.Errorf("a period of 0s: got %v", got)
	}
}
