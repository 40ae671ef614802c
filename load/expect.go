package load

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxExpectation is the length of the longest expectation, in bytes.
const maxExpectation = 128

// Expectation is what a run has to reach, such as "p99<5ms". The zero value is
// none; ParseExpectation makes one.
type Expectation struct {
	text     string
	metric   metric
	operator string
	bound    float64
}

// metric is a figure of a result: nanoseconds if it is a time.
type metric struct {
	time bool
	of   func(*Result) (value float64, ok bool)
}

// String is the expectation as it can be parsed again.
func (e Expectation) String() string { return e.text }

// operators are what a figure is compared with its bound by. One that begins
// with another stands before it.
var operators = []string{"<=", ">=", "==", "!=", "<", ">"}

// ParseExpectation reads "NAME OPERATOR BOUND", at most 128 bytes. The operator
// is one of < <= > >= == and !=. Bounds of times are durations as Go writes
// them, such as 1.5ms; others are numbers of 0 or more, such as 0.9, 1e6, 10k,
// 2M or 1G.
//
// The names of times:
//
//	p50 … p99.99, p100     percentiles of Result.Latency, any of more than 0
//	min, mean, max         the rest of it; a prefix "latency." changes nothing
//	service.p99            Result.Service, as are late., connect.,
//	                       first_byte., check. (of roll calls, the worst) and
//	                       broadcast. (Broadcast.After): min, mean, max, p50,
//	                       p75, p90, p95, p99, p99.9 and p99.99
//	connect_time, window   Result.ConnectTime, Result.Window
//
// The names of numbers:
//
//	rate         answered messages a second in the window, sent ones where no
//	             answers were awaited
//	errors       failed + lost + mismatched + unanswered + unsent + strange +
//	             heard_missing + heard_again
//	failed       failed attempts to connect, lost connections that ended
//	lost         early, mismatched ones whose answer was wrong, unanswered
//	mismatched   messages without an answer, unsent those of an open loop
//	unanswered   that could not be sent
//	unsent
//	connected    established connections
//	sent, answered, intended, cut_off, closed, bytes_sent, bytes_received
//	             as in Result
//	checked, check_asked, check_wrong, check_lost, check_unanswered
//	             of all roll calls together; check_rate is the rate of the
//	             slowest, in lines a second
//	heard, heard_again, heard_missing
//	             as in Broadcast, heartbeats and strange as in Result
//	cpu          the share of its processors that the generator used, 0 to 1;
//	             not measured in a window of less than 100 ms
func ParseExpectation(text string) (Expectation, error) {
	if len(text) > maxExpectation {
		return Expectation{}, fmt.Errorf("load: an expectation of %d bytes; expected at most %d", len(text), maxExpectation)
	}
	at := strings.IndexAny(text, "<>=!")
	if at < 0 {
		return Expectation{}, fmt.Errorf("load: expectation %q; expected a name, one of %s and a bound, such as p99<5ms", text, strings.Join(operators, " "))
	}
	name, rest := strings.TrimSpace(text[:at]), text[at:]
	which := slices.IndexFunc(operators, func(o string) bool { return strings.HasPrefix(rest, o) })
	if which < 0 {
		return Expectation{}, fmt.Errorf("load: expectation %q: %q; expected one of %s", text, rest, strings.Join(operators, " "))
	}
	e := Expectation{operator: operators[which]}
	bound := strings.TrimSpace(strings.TrimPrefix(rest, e.operator))
	e.text = name + e.operator + bound
	var ok bool
	if e.metric, ok = metricNamed(name); !ok {
		return Expectation{}, fmt.Errorf("load: expectation %q: name %q; expected one of %s", text, name, metricNames())
	}
	var err error
	if e.bound, err = parseBound(bound, e.metric.time); err != nil {
		return Expectation{}, fmt.Errorf("load: expectation %q: %w", text, err)
	}
	return e, nil
}

func parseBound(text string, isTime bool) (float64, error) {
	if isTime {
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%q; expected a time such as 5ms or 1.5s", text)
		}
		return float64(d), nil
	}
	digits, scale := text, 1.0
	for suffix, factor := range map[string]float64{"k": 1e3, "M": 1e6, "G": 1e9} {
		if cut, ok := strings.CutSuffix(text, suffix); ok {
			digits, scale = cut, factor
		}
	}
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil || strings.Trim(digits, "0123456789.eE+-") != "" || n < 0 {
		return 0, fmt.Errorf("%q; expected a number of 0 or more, such as 0.9, 1e6, 10k or 2M", text)
	}
	return n * scale, nil
}

// Check compares the result with what was expected, and says what it has. What
// was not measured, such as a percentile of no latencies at all, meets nothing.
func (e Expectation) Check(r *Result) (got string, ok bool) {
	if r == nil || e.metric.of == nil {
		return "no result", false
	}
	value, known := e.metric.of(r)
	if !known {
		return "not measured", false
	}
	ok = e.met(value)
	if e.metric.time {
		d := time.Duration(value)
		if short := round(d); e.met(float64(short)) == ok {
			return short.String(), ok
		}
		return d.String(), ok // three digits would hide the difference
	}
	if short, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 3, 64), 64); value < 100 && err == nil && e.met(short) == ok {
		return strconv.FormatFloat(short, 'f', -1, 64), ok
	}
	if whole := float64(int64(value)); value >= 100 && e.met(whole) == ok {
		return group(int64(value)), ok
	}
	return strconv.FormatFloat(value, 'f', -1, 64), ok
}

func (e Expectation) met(value float64) bool {
	switch e.operator {
	case "<":
		return value < e.bound
	case "<=":
		return value <= e.bound
	case ">":
		return value > e.bound
	case ">=":
		return value >= e.bound
	case "!=":
		return value != e.bound
	}
	return value == e.bound
}

// resultLatencies are the distributions of a result by name, nil where there is none.
var resultLatencies = map[string]func(*Result) *Latency{
	"latency":    func(r *Result) *Latency { return &r.Latency },
	"service":    func(r *Result) *Latency { return r.Service },
	"late":       func(r *Result) *Latency { return r.Late },
	"connect":    func(r *Result) *Latency { return &r.Connect },
	"first_byte": func(r *Result) *Latency { return &r.FirstByte },
	"check":      func(r *Result) *Latency { return r.checkLatency() },
	"broadcast": func(r *Result) *Latency {
		if r.Broadcast == nil {
			return nil
		}
		return &r.Broadcast.After
	},
}

// latencyPoints are the figures of a distribution by name.
var latencyPoints = map[string]func(*Latency) time.Duration{
	"min":    func(l *Latency) time.Duration { return l.Min },
	"mean":   func(l *Latency) time.Duration { return l.Mean },
	"p50":    func(l *Latency) time.Duration { return l.P50 },
	"p75":    func(l *Latency) time.Duration { return l.P75 },
	"p90":    func(l *Latency) time.Duration { return l.P90 },
	"p95":    func(l *Latency) time.Duration { return l.P95 },
	"p99":    func(l *Latency) time.Duration { return l.P99 },
	"p99.9":  func(l *Latency) time.Duration { return l.P999 },
	"p99.99": func(l *Latency) time.Duration { return l.P9999 },
	"max":    func(l *Latency) time.Duration { return l.Max },
}

// resultNumbers are the figures of a result that aren't times.
var resultNumbers = map[string]func(*Result) (float64, bool){
	"rate":           func(r *Result) (float64, bool) { return r.Rate(), r.Window > 0 },
	"cpu":            func(r *Result) (float64, bool) { return r.CPUShare(), r.knowsCPU() },
	"errors":         counted(func(r *Result) int64 { return r.errors() }),
	"failed":         counted(func(r *Result) int64 { return sumCauses(r.ConnectErrors) }),
	"lost":           counted(func(r *Result) int64 { return sumCauses(r.Lost) }),
	"mismatched":     counted(func(r *Result) int64 { return r.Mismatched }),
	"unanswered":     counted(func(r *Result) int64 { return r.Unanswered }),
	"unsent":         counted(func(r *Result) int64 { return r.Unsent }),
	"connected":      counted(func(r *Result) int64 { return int64(r.Connected) }),
	"sent":           counted(func(r *Result) int64 { return r.Sent }),
	"answered":       counted(func(r *Result) int64 { return r.Answered }),
	"intended":       counted(func(r *Result) int64 { return r.Intended }),
	"cut_off":        counted(func(r *Result) int64 { return r.CutOff }),
	"closed":         counted(func(r *Result) int64 { return r.Closed }),
	"bytes_sent":     counted(func(r *Result) int64 { return r.BytesSent }),
	"bytes_received": counted(func(r *Result) int64 { return r.BytesReceived }),

	"checked":          counted(func(r *Result) int64 { return r.checks(func(c *RollCall) int64 { return c.Checked }) }),
	"check_asked":      counted(func(r *Result) int64 { return r.checks(func(c *RollCall) int64 { return c.Asked }) }),
	"check_wrong":      counted(func(r *Result) int64 { return r.checks(func(c *RollCall) int64 { return c.Wrong }) }),
	"check_lost":       counted(func(r *Result) int64 { return r.checks(func(c *RollCall) int64 { return c.Lost }) }),
	"check_unanswered": counted(func(r *Result) int64 { return r.checks(func(c *RollCall) int64 { return c.Unanswered }) }),
	"check_rate":       func(r *Result) (float64, bool) { return r.checkRate() },
	"heartbeats":       counted(func(r *Result) int64 { return r.Heartbeats }),
	"strange":          counted(func(r *Result) int64 { return r.Strange }),
	"heard":            ofBroadcast(func(b *Broadcast) int64 { return b.Heard }),
	"heard_again":      ofBroadcast(func(b *Broadcast) int64 { return b.Again }),
	"heard_missing":    ofBroadcast(func(b *Broadcast) int64 { return b.Missing() }),
}

func counted(of func(*Result) int64) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) { return float64(of(r)), true }
}

// ofBroadcast is a figure of the broadcast.
func ofBroadcast(of func(*Broadcast) int64) func(*Result) (float64, bool) {
	return func(r *Result) (float64, bool) {
		if r.Broadcast == nil {
			return 0, false
		}
		return float64(of(r.Broadcast)), true
	}
}

// errors counts everything that went wrong in the run.
func (r *Result) errors() int64 {
	return sumCauses(r.ConnectErrors) + sumCauses(r.Lost) + r.Mismatched + r.Unanswered + r.Unsent + r.heldErrors()
}

// sumCauses adds up causes.
func sumCauses(causes map[string]int64) int64 {
	var sum int64
	for _, n := range causes {
		sum += n
	}
	return sum
}

// metricNamed is a figure by its name.
func metricNamed(name string) (metric, bool) {
	if of, ok := resultNumbers[name]; ok {
		return metric{of: of}, true
	}
	switch name {
	case "connect_time":
		return metric{true, func(r *Result) (float64, bool) { return float64(r.ConnectTime), r.Connected > 0 }}, true
	case "window":
		return metric{true, func(r *Result) (float64, bool) { return float64(r.Window), r.Window > 0 }}, true
	}
	which, point, found := strings.Cut(name, ".")
	if resultLatencies[which] == nil || !found {
		which, point = "latency", name
	}
	if of, ok := latencyPoints[point]; ok {
		return metric{true, func(r *Result) (float64, bool) {
			l := resultLatencies[which](r)
			if l == nil || l.Count == 0 {
				return 0, false
			}
			return float64(of(l)), true
		}}, true
	}
	percent, ok := parsePercentile(point)
	if which != "latency" || !ok {
		return metric{}, false // the others have no histogram
	}
	return metric{true, func(r *Result) (float64, bool) {
		h, err := decodeHistogram(r.Histogram)
		if err != nil || h == nil || h.TotalCount() == 0 {
			return 0, false
		}
		return float64(h.ValueAtPercentile(percent)), true
	}}, true
}

// parsePercentile reads p99.5: more than 0, at most 100.
func parsePercentile(text string) (float64, bool) {
	digits, ok := strings.CutPrefix(text, "p")
	if !ok || strings.Trim(digits, "0123456789.") != "" {
		return 0, false
	}
	percent, err := strconv.ParseFloat(digits, 64)
	return percent, err == nil && percent > 0 && percent <= 100
}

// metricNames lists all names.
func metricNames() string {
	names := slices.Sorted(maps.Keys(latencyPoints))
	names = append(names, "another percentile such as p99.5", "those after broadcast. check. connect. first_byte. late. service. (p99.5 not)")
	names = append(names, slices.Sorted(maps.Keys(resultNumbers))...)
	return strings.Join(append(names, "connect_time", "window"), ", ")
}
