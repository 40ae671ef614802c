package load

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func newMeasuredResult(t testing.TB) *Result {
	t.Helper()
	h := newHistogram()
	for n := range int64(1000) {
		h.RecordValue((n + 1) * int64(time.Microsecond))
	}
	r := newExampleResult()
	r.Latency, r.Histogram = summarizeHistogram(h), encodeHistogram(h)
	r.Service, r.Late = &Latency{Count: 1, P99: time.Millisecond}, &Latency{Count: 1, P99: 20 * time.Microsecond}
	r.Connect, r.FirstByte = Latency{Count: 2, P99: 5 * time.Millisecond}, Latency{Count: 1, P50: time.Second, Max: 3 * time.Second}
	r.Unanswered, r.Mismatched, r.Unsent, r.Intended, r.CutOff, r.Closed = 7, 2, 4, 1_300_000, 11, 12
	return r
}

// TestExpectations checks the name of each figure, each operator and each format of a bound.
// Reported values have three digits, unless these would hide the difference.
func TestExpectations(t *testing.T) {
	r := newMeasuredResult(t)
	if list := unmetExpectations(t, r, "p50<501us p99.5<2ms p100>=1ms latency.max<50ms min==1us service.p99<=1ms late.p99<1ms connect.p99<100ms "+
		"connect_time<1s window==10s rate>=100k failed<=2 lost==3 lost!=4 mismatched<3 unanswered==7 unsent==4 connected==998 sent>1e6 "+
		"answered>=1.234560M intended==1300k cut_off==11 closed==12 bytes_sent>79M bytes_received<1G cpu<0.961"); len(list) > 0 {
		t.Errorf("%q", list)
	}
	for _, test := range []struct {
		text, got string
		ok        bool
	}{
		{"p50<500us", "500µs", false},
		{"p99.9 <= 10ms", "999µs", true},
		{"p99.5<=995us", "995.327µs", false}, // three digits would say that it is met
		{"mean>1s", "501µs", false},
		{"first_byte.p50<10ms", "1s", false},
		{"rate>=0.2M", "123,456", false},
		{"errors==0", "18", false}, // 2 failed, 3 lost, 2 wrong, 7 unanswered, 4 unsent
		{"lost!=3", "3", false},
		{"answered>1234560", "1,234,560", false},
		{"cpu<0.9", "0.96", false},
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

// An unknown value meets no bound. An unreadable histogram counts as unknown.
func TestExpectationOfNothing(t *testing.T) {
	none, unreadable := &Result{}, &Result{Histogram: base64.StdEncoding.EncodeToString([]byte("not a histogram at all"))}
	for _, test := range []struct {
		text string
		of   *Result
		want string
	}{
		{"p99<1s", nil, "no result"},
		{"p99<1s", none, "not measured"},
		{"mean!=1s", none, "not measured"},
		{"late.max==1s", none, "not measured"},
		{"connect.p50<=1s", none, "not measured"},
		{"first_byte.p99>=1s", none, "not measured"},
		{"window<1s", none, "not measured"},
		{"connect_time<1s", none, "not measured"},
		{"rate<1", none, "not measured"},
		{"cpu<0.9", none, "not measured"},
		{"p99.5<1h", unreadable, "not measured"},
		{"p99.5<1h", &Result{Histogram: "?"}, "not measured"},
	} {
		e := testkit.Must(ParseExpectation(test.text))(t)
		if got, ok := e.Check(test.of); got != test.want || ok {
			t.Errorf("%s of %+v: got %s, %v; want %s", test.text, test.of, got, ok, test.want)
		}
	}
	if got, ok := (Expectation{}).Check(none); ok || got != "no result" {
		t.Errorf("the zero expectation: got %s, %v", got, ok)
	}
}

func TestWrongExpectations(t *testing.T) {
	for text, says := range map[string]string{
		"":                       "expected a name",
		"p99=5ms":                `"=5ms"; expected one of <= >= == != < >`,
		"p99<<5ms":               `"<5ms"; expected a time`,
		"p99<5":                  `"5"; expected a time such as 5ms`,
		"p99<-5ms":               "expected a time",
		"errors==0ms":            `"0ms"; expected a number`,
		"errors<-1":              "expected a number of 0 or more",
		"rate>NaN":               "expected a number",
		"speed>1":                `name "speed"; expected one of`,
		"p0<1s":                  `name "p0"`,
		"p101<1s":                `name "p101"`,
		"connect.p99.5<1s":       `name "connect.p99.5"`,
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
