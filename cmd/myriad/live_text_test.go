package main

import (
	"testing"
	"time"
)

func TestSparkline(t *testing.T) {
	for _, c := range []struct {
		values []float64
		width  int
		want   string
	}{
		{nil, 5, ""}, {[]float64{0, 0}, 5, "▁▁"}, {[]float64{7}, 5, "█"}, {[]float64{9, 0, 1, 2, 3, 4, 5, 6, 7}, 8, "▁▂▃▄▅▆▇█"},
		{[]float64{1}, 0, ""}, {[]float64{1}, -3, ""},
	} {
		if got := sparkline(c.values, c.width); got != c.want {
			t.Errorf("%v in %d columns: got %q, want %q", c.values, c.width, got, c.want)
		}
	}
}

func TestLiveFigures(t *testing.T) {
	for got, want := range map[string]string{
		liveTime(0):                            "0ns",
		liveTime(999):                          "999ns",
		liveTime(1234):                         "1.23µs",
		liveTime(123456):                       "123µs",
		liveTime(12345678):                     "12.3ms",
		liveTime(90 * time.Second):             "90.0s",
		liveSpan(-1):                           "0s",
		liveSpan(59 * time.Second):             "59s",
		liveSpan(65 * time.Second):             "1m05s",
		liveSpan(2*time.Hour + 3*time.Hour/60): "2h03m",
		liveBytes(0):                           "0 B",
		liveBytes(999):                         "999 B",
		liveBytes(1 << 10):                     "1.00 KiB",
		liveBytes(1000 << 10):                  "0.98 MiB",
		liveBytes(3 << 50):                     "3072 TiB",
		liveCount(-1234567):                    "-1,234,567",
		liveCount(123):                         "123",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestFit(t *testing.T) {
	l := liveLine{{bold, "abc"}, {"", "def"}}
	for width, want := range map[int]string{0: "", 1: "…", 3: "ab…", 4: "abc…", 5: "abcd…", 6: "abcdef", 9: "abcdef"} {
		if got := l.fit(width, false); got != want {
			t.Errorf("%d columns: got %q, want %q", width, got, want)
		}
	}
	if got, want := l.fit(4, true), "\x1b[1mabc\x1b[0m…"; got != want {
		t.Errorf("with colours: got %q, want %q", got, want)
	}
}

func TestLiveBar(t *testing.T) {
	for share, want := range map[float64]string{0: "░░░░", 0.5: "██░░", 0.99: "███░", 1: "████"} {
		if full, rest := liveBar(share, 4); full+rest != want {
			t.Errorf("%v: got %q, want %q", share, full+rest, want)
		}
	}
	for _, c := range [][3]float64{{1, 0, 0}, {1, 4, 0.25}, {5, 4, 1}, {-1, 4, 0}} {
		if got := shareOf(c[0], c[1]); got != c[2] {
			t.Errorf("%v of %v: got %v, want %v", c[0], c[1], got, c[2])
		}
	}
}
