package load

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"
)

// measuredResult is a result with a figure for everything.
func measuredResult(t testing.TB) *Result {
	t.Helper()
	h := newHistogram()
	for n := range int64(1000) {
		h.RecordValue((n + 1) * int64(time.Microsecond))
	}
	r := example()
	r.Latency, r.Histogram = readLatency(h), encode(h)
	r.Service, r.Late = &Latency{Count: 1, P99: time.Millisecond}, &Latency{Count: 1, P99: 20 * time.Microsecond}
	r.Connect, r.FirstByte = Latency{Count: 2, P99: 5 * time.Millisecond}, Latency{Count: 1, P50: time.Second, Max: 3 * time.Second}
	r.Unanswered, r.Mismatched, r.Unsent, r.Intended, r.CutOff, r.Closed = 7, 2, 4, 1_300_000, 11, 12
	return r
}

func TestExpectations(t *testing.T) {
	r := measuredResult(t)
	for _, test := range []struct {
		text, got string
		ok        bool
	}{
		{"p50<501us", "500µs", true},
		{"p50<500us", "500µs", false},
		{"p99.9 <= 10ms", "999µs", true},
		{"p99.5<=995us", "995.327µs", false}, // three digits would say that it is met
		{"p99.5<2ms", "995µs", true},
		{"p100>=1ms", "1ms", true},
		{"latency.max<50ms", "1ms", true},
		{"mean>1s", "501µs", false},
		{"min==1us", "1µs", true},
		{"service.p99<=1ms", "1ms", true},
		{"late.p99<1ms", "20µs", true},
		{"connect.p99<100ms", "5ms", true},
		{"first_byte.p50<10ms", "1s", false},
		{"connect_time<1s", "499ms", true},
		{"window==10s", "10s", true},
		{"rate>=100k", "123,456", true},
		{"rate>=0.2M", "123,456", false},
		{"errors==0", "18", false}, // 2 failed, 3 lost, 2 wrong, 7 unanswered, 4 unsent
		{"failed<=2", "2", true},
		{"lost!=3", "3", false},
		{"mismatched<3", "2", true},
		{"unanswered==0", "7", false},
		{"unsent>4", "4", false},
		{"connected==998", "998", true},
		{"sent>1e6", "1,234,567", true},
		{"answered>=1.234560M", "1,234,560", true},
		{"answered>1234560", "1,234,560", false},
		{"intended==1300k", "1,300,000", true},
		{"cut_off==11", "11", true},
		{"closed==12", "12", true},
		{"bytes_sent>79M", "79,012,288", true},
		{"bytes_received<1G", "79,011,840", true},
		{"cpu<0.9", "0.96", false},
		{"cpu<0.961", "0.96", true},
	} {
		e, err := ParseExpectation(test.text)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		if got, ok := e.Check(r); got != test.got || ok != test.ok {
			t.Errorf("%s: got %s, %v; want %s, %v", test.text, got, ok, test.got, test.ok)
		}
		if again, err := ParseExpectation(e.String()); err != nil || again.String() != e.String() {
			t.Errorf("%s: its text %q is not read again: %v", test.text, e, err)
		}
	}
}

// What wasn't measured meets nothing, neither an upper bound nor a lower one. A histogram that can't be read is none.
func TestExpectationOfNothing(t *testing.T) {
	got := func(text string, r *Result) string {
		e, err := ParseExpectation(text)
		if err != nil {
			t.Fatal(err)
		}
		got, ok := e.Check(r)
		return fmt.Sprint(got, ", ", ok)
	}
	times := []string{"p99", "p99.5", "mean", "service.p99", "late.max", "connect.p50", "first_byte.p99", "window", "connect_time"}
	for _, operator := range operators {
		for _, name := range times {
			if got := got(name+operator+"1s", &Result{}) + "; " + got(name+operator+"1s", nil); got != "not measured, false; no result, false" {
				t.Errorf("%s%s1s of an empty result, and of none: got %s", name, operator, got)
			}
		}
	}
	for _, text := range []string{"rate<1", "cpu<0.9"} {
		if got := got(text, &Result{}); got != "not measured, false" {
			t.Errorf("%s of an empty result: got %s", text, got)
		}
	}
	for _, text := range []string{"?", "AAAA", base64.StdEncoding.EncodeToString([]byte("not a histogram at all"))} {
		if got := got("p99.5<1h", &Result{Histogram: text}); got != "not measured, false" {
			t.Errorf("histogram %q: got %s", text, got)
		}
	}
	if got, ok := (Expectation{}).Check(&Result{}); ok || got != "no result" {
		t.Errorf("the zero expectation: got %s, %v", got, ok)
	}
}

func TestWrongExpectations(t *testing.T) {
	for text, says := range map[string]string{
		"":                       "expected a name",
		"p99":                    "expected a name",
		"p99=5ms":                `"=5ms"; expected one of <= >= == != < >`,
		"p99!5ms":                `"!5ms"; expected one of`,
		"p99<<5ms":               `"<5ms"; expected a time`,
		"p99<5":                  `"5"; expected a time such as 5ms`,
		"p99<-5ms":               "expected a time",
		"p99<":                   `""; expected a time`,
		"errors==0ms":            `"0ms"; expected a number`,
		"errors==":               "expected a number",
		"errors<-1":              "expected a number of 0 or more",
		"rate>NaN":               "expected a number",
		"rate>Inf":               "expected a number",
		"rate>0x10p1":            "expected a number",
		"rate>1e999":             "expected a number",
		"speed>1":                `name "speed"; expected one of`,
		"<1":                     `name ""`,
		"p0<1s":                  `name "p0"`,
		"p101<1s":                `name "p101"`,
		"p1e1<1s":                `name "p1e1"`,
		"p<1s":                   `name "p"`,
		"connect.p99.5<1s":       `name "connect.p99.5"`,
		"latency.rate<1s":        `name "latency.rate"`,
		strings.Repeat("p", 129): "129 bytes; expected at most 128",
	} {
		_, err := ParseExpectation(text)
		if err == nil || !strings.HasPrefix(err.Error(), "load: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want %q", text, err, says)
		}
	}
	_, err := ParseExpectation("speed>1")
	for _, name := range []string{"p99.99", "mean", "first_byte.", "rate", "unsent", "connect_time"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("the error doesn't list %s: %v", name, err)
		}
	}
}

func FuzzParseExpectation(f *testing.F) {
	for _, text := range []string{"p99<5ms", "errors==0", "rate>=1e6", "p99.9 <= 10ms", "connect.p99<100ms", "cpu<0.9", "p99.95!=1h", "sent>10k", "<", "p99<5"} {
		f.Add(text)
	}
	r := measuredResult(f)
	f.Fuzz(func(t *testing.T, text string) {
		e, err := ParseExpectation(text)
		if err != nil {
			return
		}
		again, err := ParseExpectation(e.String())
		if err != nil || again.String() != e.String() || again.bound != e.bound {
			t.Fatalf("%q is %q, which is not read again: %v", text, e, err)
		}
		for _, r := range []*Result{nil, {}, r} {
			got, ok := e.Check(r)
			if got == "" {
				t.Errorf("%q: got nothing, %v", text, ok)
			}
			if same, also := again.Check(r); same != got || also != ok {
				t.Errorf("%q: got %s, %v, then %s, %v", text, got, ok, same, also)
			}
		}
	})
}
