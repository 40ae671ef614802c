package load

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/format"
)

const maxExpectation = 128

// Expectation is a condition for a run's result, such as "p99<5ms". The zero Expectation is never met.
type Expectation struct {
	text     string
	figure   resultFigure
	operator string
	bound    float64
}

type resultFigure struct {
	isTime bool
	value  func(*Result) (value float64, ok bool)
}

// String returns the expectation in the syntax of ParseExpectation.
func (e Expectation) String() string { return e.text }

// operators lists the comparison operators. Longer operators come first, because the parser takes the first match.
var operators = []string{"<=", ">=", "==", "!=", "<", ">"}

// ParseExpectation parses "NAME OPERATOR BOUND", at most 128 bytes. OPERATOR is one of < <= > >= == and !=. BOUND is a
// Go duration such as 1.5ms if NAME is a time; otherwise it is a number of 0 or more, such as 0.9, 1e6, 10k, 2M or 1G.
//
// The names of times:
//
//	p50 … p99.99, p100     percentiles of Result.Latency, any above 0
//	min, mean, max         of Result.Latency; a prefix "latency." is optional
//	service.p99            Result.Service; the prefixes late., connect. and
//	                       first_byte. work the same way. So do check. (the worst
//	                       verification) and broadcast. (Broadcast.After). All
//	                       have min, mean, max, p50, p75, p90, p95, p99, p99.9
//	                       and p99.99
//	connect_time, window   Result.ConnectTime, Result.Window
//
// The names of numbers are the names of Counters that a Result has, and:
//
//	rate           answered messages per second in the window, or sent messages if no answers
//	               were expected
//	delivery_rate  deliveries to subscribers per second
//	errors         all failures: failed, lost, heard_missing, heard_again, lost agents,
//	               and every counter with Fault
//	failed, lost   connection attempts that failed, and connections that ended early
//	connected      established connections
//	checked, check_asked, check_wrong, check_lost, check_unanswered
//	               of all verifications together
//	check_rate     lines per second of the slowest verification
//	heard, heard_again, heard_missing
//	               as in Broadcast
//	cpu            the share of its processors that the generator used, 0 to 1; unknown
//	               for a window of less than 100 ms
func ParseExpectation(text string) (Expectation, error) {
	if len(text) > maxExpectation {
		return Expectation{}, fmt.Errorf("load: expectation has %d bytes; expected at most %d", len(text), maxExpectation)
	}
	at := strings.IndexAny(text, "<>=!")
	if at < 0 {
		return Expectation{}, fmt.Errorf("load: expectation %q; expected a name, one of %s and a bound, such as p99<5ms", text, strings.Join(operators, " "))
	}
	name, rest := strings.TrimSpace(text[:at]), text[at:]
	which := slices.IndexFunc(operators, func(o string) bool { return strings.HasPrefix(rest, o) })
	if which < 0 {
		return Expectation{}, fmt.Errorf("load: expectation %q: unknown operator in %q; expected one of %s", text, rest, strings.Join(operators, " "))
	}
	e := Expectation{operator: operators[which]}
	bound := strings.TrimSpace(strings.TrimPrefix(rest, e.operator))
	e.text = name + e.operator + bound
	var ok bool
	if e.figure, ok = findFigure(name); !ok {
		return Expectation{}, fmt.Errorf("load: expectation %q: unknown name %q; expected one of %s", text, name, listFigureNames())
	}
	var err error
	if e.bound, err = parseBound(bound, e.figure.isTime); err != nil {
		return Expectation{}, fmt.Errorf("load: expectation %q: %w", text, err)
	}
	return e, nil
}

func parseBound(text string, isTime bool) (nanosecondsOrNumber float64, _ error) {
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

// Check returns the actual value as text, and reports whether the result meets the expectation. If r is nil, or if the
// value is unknown, the expectation is not met. For example, a percentile is unknown if there are no latencies.
func (e Expectation) Check(r *Result) (got string, ok bool) {
	if r == nil || e.figure.value == nil {
		return "no result", false
	}
	value, known := e.figure.value(r)
	if !known {
		return "not measured", false
	}
	ok = e.isMetBy(value)
	if e.figure.isTime {
		d := time.Duration(value)
		if short := format.RoundToThreeDigits(d); e.isMetBy(float64(short)) == ok {
			return short.String(), ok
		}
		return d.String(), ok // unrounded, because rounding would hide the difference
	}
	if short, err := strconv.ParseFloat(strconv.FormatFloat(value, 'g', 3, 64), 64); value < 100 && err == nil && e.isMetBy(short) == ok {
		return strconv.FormatFloat(short, 'f', -1, 64), ok
	}
	if whole := float64(int64(value)); value >= 100 && e.isMetBy(whole) == ok {
		return format.Count(int64(value)), ok
	}
	return strconv.FormatFloat(value, 'f', -1, 64), ok
}

func (e Expectation) isMetBy(value float64) bool {
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

func (r *Result) latenciesByName() map[string]*Latency {
	all := map[string]*Latency{
		"latency": &r.Latency, "service": r.Service, "late": r.Late, "connect": &r.Connect, "first_byte": &r.FirstByte, "check": nil, "broadcast": nil,
	}
	if len(r.Verifications) > 0 {
		sum, _ := r.sumVerificationsAndSlowestRate()
		all["check"] = &sum.Latency
	}
	if r.Broadcast != nil {
		all["broadcast"] = &r.Broadcast.After
	}
	return all
}

func (r *Result) sumVerificationsAndSlowestRate() (sum Verification, slowestOrNaN float64) {
	slowestOrNaN = math.NaN()
	for i := range r.Verifications {
		v := &r.Verifications[i]
		mergeFieldsByTag(&sum, v, true)
		if !(slowestOrNaN <= v.CheckedPerSecond()) {
			slowestOrNaN = v.CheckedPerSecond()
		}
	}
	return sum, slowestOrNaN
}

// nonTimeFiguresByName returns all figures of a result that are not times. Unknown figures are NaN.
func (r *Result) nonTimeFiguresByName() map[string]float64 {
	all := map[string]float64{
		"errors": float64(r.countAllFailures()), "failed": float64(sumCountsByCause(r.ConnectErrors)), "lost": float64(sumCountsByCause(r.Lost)),
		"connected": float64(r.Connected), "rate": math.NaN(), "delivery_rate": math.NaN(), "cpu": math.NaN(),
		"heard": math.NaN(), "heard_again": math.NaN(), "heard_missing": math.NaN(),
	}
	for _, c := range Counters {
		if n, ok := c.resultValue(r); ok {
			all[c.Name] = float64(n)
		}
	}
	if r.Window > 0 {
		all["rate"] = r.Rate()
		if r.PubSub != nil {
			all["delivery_rate"] = r.DeliveriesPerSecond()
		}
	}
	if r.hasMeaningfulCPUUsage() {
		all["cpu"] = r.GeneratorCPUUtilization()
	}
	sum, slowest := r.sumVerificationsAndSlowestRate()
	all["checked"], all["check_asked"], all["check_wrong"] = float64(sum.Checked), float64(sum.Asked), float64(sum.Wrong)
	all["check_lost"], all["check_unanswered"], all["check_rate"] = float64(sum.Lost), float64(sum.Unanswered), slowest
	if b := r.Broadcast; b != nil {
		all["heard"], all["heard_again"], all["heard_missing"] = float64(b.Heard), float64(b.Again), float64(b.Missing())
	}
	return all
}

var emptyResult Result

func findFigure(name string) (figure resultFigure, known bool) {
	if _, ok := emptyResult.nonTimeFiguresByName()[name]; ok {
		return resultFigure{value: func(r *Result) (float64, bool) { n := r.nonTimeFiguresByName()[name]; return n, !math.IsNaN(n) }}, true
	}
	switch name {
	case "connect_time":
		return resultFigure{true, func(r *Result) (float64, bool) { return float64(r.ConnectTime), r.Connected > 0 }}, true
	case "window":
		return resultFigure{true, func(r *Result) (float64, bool) { return float64(r.Window), r.Window > 0 }}, true
	}
	which, point, found := strings.Cut(name, ".")
	if _, ok := emptyResult.latenciesByName()[which]; !ok || !found {
		which, point = "latency", name
	}
	if p := findLatencyPoint(point); p != nil {
		return resultFigure{true, func(r *Result) (float64, bool) {
			l := r.latenciesByName()[which]
			if l == nil || l.Count == 0 {
				return 0, false
			}
			return float64(p.Of(l)), true
		}}, true
	}
	percent, err := ParsePercentileNumber(strings.TrimPrefix(point, "p"))
	if which != "latency" || !strings.HasPrefix(point, "p") || err != nil {
		return resultFigure{}, false // other distributions have no histogram
	}
	return resultFigure{true, func(r *Result) (float64, bool) {
		h, err := decodeHistogramOrNil(r.Histogram)
		if err != nil || h == nil || h.TotalCount() == 0 {
			return 0, false
		}
		return float64(h.ValueAtPercentile(percent)), true
	}}, true
}

func listFigureNames() string {
	var names []string
	for _, p := range LatencyPoints {
		names = append(names, p.Name)
	}
	names = append(names, "another percentile such as p99.5", "min to max after the prefix broadcast., check., connect., first_byte., late. or service.")
	names = append(names, slices.Sorted(maps.Keys(emptyResult.nonTimeFiguresByName()))...)
	return strings.Join(append(names, "connect_time", "window"), ", ")
}
