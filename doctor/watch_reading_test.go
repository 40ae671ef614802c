package doctor

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// at is a sample so long after noon with one wall.
func at(after time.Duration, used, limit int64) sample {
	return sample{at: noon.Add(after), levels: []level{{wall: "ports", unit: "ports", used: used, limit: limit}}}
}

// TestForecast tells when a wall is reached, from two samples and from more.
func TestForecast(t *testing.T) {
	for _, test := range []struct {
		name    string
		samples []sample
		rate    float64
		in      time.Duration
	}{
		{"one sample", []sample{at(0, 500, 1000)}, 0, 0},
		{"as before", []sample{at(0, 500, 1000), at(5*time.Second, 500, 1000)}, 0, 0},
		{"fewer", []sample{at(0, 500, 1000), at(5*time.Second, 400, 1000)}, -20, 0},
		{"more", []sample{at(0, 500, 1000), at(5*time.Second, 600, 1000)}, 20, 20 * time.Second},
		{"too short to tell", []sample{at(0, 500, 1000), at(rateLeast-1, 600, 1000)}, 100 / (rateLeast - 1).Seconds(), 0},
		{"long enough to tell", []sample{at(0, 500, 1000), at(rateLeast, 800, 1000)}, 100, 2 * time.Second},
		{"full", []sample{at(0, 500, 1000), at(5*time.Second, 1000, 1000)}, 100, 0},
		{"beyond a day", []sample{at(0, 0, 1e9), at(10*time.Second, 1, 1e9)}, 0.1, 0},
		{"within a day", []sample{at(0, 0, 1001), at(10*time.Second, 1, 1001)}, 0.1, 10_000 * time.Second},
		{"the minute before counts", []sample{at(0, 0, 10_000), at(5*time.Second, 6000, 10_000), at(65*time.Second, 6600, 10_000)}, 10, 340 * time.Second},
		{"the last minute alone", []sample{at(0, 0, 10_000), at(5*time.Second, 6000, 10_000), at(64*time.Second, 6640, 10_000)}, 6640.0 / 64, 0},
		{"another's", []sample{at(0, 500, 1000), {at: noon.Add(5 * time.Second), levels: []level{{wall: "ports", of: "other", used: 900, limit: 1000}}}}, 0, 0},
		{"a limit that was raised", []sample{at(0, 500, 1000), at(5*time.Second, 600, 2000)}, 20, 70 * time.Second},
	} {
		var o outlook
		var r Reading
		for _, s := range test.samples {
			r = o.next(s)
		}
		l := r.Levels[0]
		if test.name == "the last minute alone" { // what is a minute old is looked back to
			test.in = time.Duration(float64(10_000-6640) / test.rate * float64(time.Second))
		}
		if math.Abs(l.Rate-test.rate) > 1e-9 || (l.In-test.in).Abs() > time.Microsecond {
			t.Errorf("%s: %v a second, full in %v; want %v and %v", test.name, l.Rate, l.In, test.rate, test.in)
		}
	}
}

// TestMoments tells no future of what grows by moments.
func TestMoments(t *testing.T) {
	var o outlook
	var r Reading
	for i := range 2 {
		r = o.next(sample{at: noon.Add(time.Duration(i) * 5 * time.Second), levels: []level{{wall: "backlog", used: int64(i) * 100, limit: 512, moments: true}}})
	}
	if l := r.Levels[0]; l.Rate != 20 || l.In != 0 {
		t.Errorf("a queue grows by %v a second and is full in %v; want 20 and no time", l.Rate, l.In)
	}
}

// TestReadingOrder has the fullest wall first, and the nearest in the line.
func TestReadingOrder(t *testing.T) {
	walls := func(conntrack int64) []level {
		return []level{
			{wall: "nofile", of: "process 7", unit: "descriptors", used: 120, limit: 1000},
			{wall: "memory", unit: bytesUnit, used: 900 << 20, limit: 1000 << 20},
			{wall: "conntrack", unit: "connections", used: conntrack, limit: 10_000},
			{wall: "tcp_mem", unit: "pages", used: 1, limit: 1000},
		}
	}
	var o outlook
	o.next(sample{at: noon, connections: 1000, levels: walls(2000)})
	r := o.next(sample{at: noon.Add(10 * time.Second), connections: 21_000, levels: walls(7000)})
	var order []string
	for _, l := range r.Levels {
		order = append(order, l.Wall)
	}
	if want := []string{"memory", "conntrack", "nofile", "tcp_mem"}; !slices.Equal(order, want) {
		t.Errorf("walls %q, want %q", order, want)
	}
	if r.Rate != 2000 {
		t.Errorf("%v connections a second, want 2000", r.Rate)
	}
	want := "12:00:10 21,000 connected (+2,000/s); conntrack 70% (7,000 of 10,000 connections), full in 6s at 500/s; memory 90%; nofile 12%"
	if got := r.String(); got != want {
		t.Errorf("the line is\n%s\nwant\n%s", got, want)
	}
	r = Reading{At: noon, Rate: -1234.5, Levels: []Level{{Wall: "memory", Of: "the machine", Unit: bytesUnit, Used: 5 << 30, Limit: 24 << 30, Share: 5.0 / 24}}}
	if got, want := r.String(), "12:00:00 0 connected (-1,234/s); memory 20% (5,120 MiB of 24.0 GiB of the machine)"; got != want {
		t.Errorf("the line is\n%s\nwant\n%s", got, want)
	}
}

// TestRose says by how much counters rose.
func TestRose(t *testing.T) {
	var o outlook
	for i, test := range []struct {
		counters, want map[string]int64
	}{
		{map[string]int64{"ListenOverflows": 1000, "ListenDrops": 5}, nil}, // since the machine started
		{map[string]int64{"ListenOverflows": 1003, "ListenDrops": 5}, map[string]int64{"ListenOverflows": 3}},
		{map[string]int64{"ListenOverflows": 1003}, nil},
		{map[string]int64{"ListenOverflows": 2, "ListenDrops": 9}, map[string]int64{"ListenDrops": 4}}, // another process's; one wasn't read before
		{map[string]int64{"ListenOverflows": 3, "ListenDrops": 10}, map[string]int64{"ListenOverflows": 1, "ListenDrops": 1}},
	} {
		r := o.next(sample{at: noon.Add(time.Duration(i) * time.Second), counters: test.counters})
		if !maps.Equal(r.Rose, test.want) {
			t.Errorf("sample %d: rose %v, want %v", i, r.Rose, test.want)
		}
	}
}

// TestKept keeps no more samples than a minute of the shortest interval has.
func TestKept(t *testing.T) {
	var o outlook
	most := int(rateOver/MinWatchInterval) + 1
	for i := range 3 * most {
		o.next(at(time.Duration(i)*MinWatchInterval, 1, 2))
		if len(o.past) > most {
			t.Fatalf("%d samples are kept after %d, want at most %d", len(o.past), i+1, most)
		}
	}
	if len(o.past) != most {
		t.Errorf("%d samples are kept, want %d: a minute", len(o.past), most)
	}
	o.next(at(time.Hour, 1, 2))
	if len(o.past) != 2 {
		t.Errorf("%d samples are kept after an hour without any, want the last two", len(o.past))
	}
}

// TestWarnings warns of each mark once until it is over, and not too often.
func TestWarnings(t *testing.T) {
	share := func(after time.Duration, percent int64) sample {
		s := at(after, percent, 100)
		s.levels[0].moments = true // no forecast
		return s
	}
	for _, test := range []struct {
		name    string
		samples []sample
		warned  []int // samples with a warning
	}{
		{"below", []sample{share(0, 79)}, nil},
		{"80 %", []sample{share(0, 80), share(1*time.Second, 81), share(2*time.Second, 94)}, []int{0}},
		{"both", []sample{share(0, 80), share(1*time.Second, 95), share(2*time.Second, 100)}, []int{0, 1}},
		{"both at once are one", []sample{share(0, 99), share(1*time.Second, 99)}, []int{0}},
		{"not over", []sample{share(0, 80), share(2*time.Minute, 75), share(3*time.Minute, 80)}, []int{0}},
		{"over", []sample{share(0, 80), share(2*time.Minute, 74), share(3*time.Minute, 80)}, []int{0, 2}},
		{"over, and soon again", []sample{share(0, 80), share(1*time.Second, 50), share(again-1, 80), share(again, 80), share(again+1, 80)}, []int{0, 3}},
		{"95 % is over, 80 % not", []sample{share(0, 95), share(2*time.Minute, 85), share(3*time.Minute, 96)}, []int{0, 2}},
	} {
		if got := warned(test.samples); !slices.Equal(got, test.warned) {
			t.Errorf("%s: warnings at samples %v, want %v", test.name, got, test.warned)
		}
	}
}

// warned are the samples whose readings warn.
func warned(samples []sample) (at []int) {
	var o outlook
	for i, s := range samples {
		if r := o.next(s); len(r.Warnings) > 0 {
			at = append(at, i)
		}
	}
	return at
}

// TestForecastWarning warns a minute before, once until that is over.
func TestForecastWarning(t *testing.T) {
	// 1 % of the limit in 10 s: below 80 % throughout.
	for _, test := range []struct {
		name   string
		used   []int64 // each 10 s
		warned []int
	}{
		{"slow", []int64{0, 10, 20, 30}, nil},
		{"fast", []int64{0, 200, 400, 600, 650}, []int{1}},
		{"stands still", []int64{0, 200, 200, 200, 200, 200, 200, 200, 200, 400, 600}, []int{1, 10}},
	} {
		var samples []sample
		for i, used := range test.used {
			samples = append(samples, at(time.Duration(i)*10*time.Second, used, 1000))
		}
		if got := warned(samples); !slices.Equal(got, test.warned) {
			t.Errorf("%s: warnings at samples %v, want %v", test.name, got, test.warned)
		}
	}
}

// TestCounterWarnings tells of all that rose, at most once a minute.
func TestCounterWarnings(t *testing.T) {
	var o outlook
	var got []string
	for i, n := range []int64{5, 6, 8, 8, 11, 12, 12, 12} {
		r := o.next(sample{at: noon.Add(time.Duration(i) * 20 * time.Second), counters: map[string]int64{"ListenOverflows": n}})
		for _, w := range r.Warnings {
			got = append(got, fmt.Sprintf("%d %s", i, strings.Split(w.Text, ":")[0]))
		}
	}
	// The rise at sample 2 is told with that at 4, one minute after the first, and that
	// at 5 a minute later, though none follows.
	if want := []string{"1 ListenOverflows rose by 1", "4 ListenOverflows rose by 5", "7 ListenOverflows rose by 1"}; !slices.Equal(got, want) {
		t.Errorf("warnings %q, want %q", got, want)
	}
}

// TestEventWarnings hands on what is no level.
func TestEventWarnings(t *testing.T) {
	var o outlook
	ended := Warning{Wall: "process", Text: "process 7 has ended"}
	if r := o.next(sample{at: noon, events: []Warning{ended}}); !slices.Equal(r.Warnings, []Warning{ended}) {
		t.Errorf("warnings %v, want %v", r.Warnings, ended)
	}
}

// TestWatchConfig names what is wrong.
func TestWatchConfig(t *testing.T) {
	for _, test := range []struct {
		cfg  WatchConfig
		want string
	}{
		{WatchConfig{PID: -1}, "PID is -1"},
		{WatchConfig{Interval: MinWatchInterval - 1}, "expected 100ms to 1h0m0s"},
		{WatchConfig{Interval: MaxWatchInterval + 1}, "expected 100ms to 1h0m0s"},
		{WatchConfig{Interval: -1}, "Interval is -1ns"},
	} {
		err := Watch(t.Context(), test.cfg, func(Reading) { t.Errorf("%+v: a reading", test.cfg) })
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%+v: error %v, want one that says %q", test.cfg, err, test.want)
		}
	}
}
