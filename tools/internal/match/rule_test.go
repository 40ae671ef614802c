package match

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func mustParse(t testing.TB, spec string) *AnswerRule {
	t.Helper()
	return testkit.Must(Parse(spec))(t)
}

func TestParse(t *testing.T) {
	for spec, want := range map[string]string{
		"http":                     "http",
		`delimiter:\r\n`:           `delimiter:\r\n`,
		"delimiter:\r\n":           `delimiter:\r\n`,
		`marker:\\\t\0`:            `marker:\\\t\x00`,
		"marker:é":                 `marker:\xc3\xa9`,
		"bytes:007":                "bytes:7",
		"bytes:1073741824":         "bytes:1073741824",
		"length:4be+8":             "length:4be+8",
		"length:8le-4@3":           "length:8le-4@3",
		"length:4be-4096@4096":     "length:4be-4096@4096",
		"delimiter:" + repeatX(64): "delimiter:" + repeatX(64),
	} {
		r, err := Parse(spec)
		if err != nil || r.String() != want {
			t.Errorf("%q is read as %v, %v; expected %s", spec, r, err, want)
			continue
		}
		if again := mustParse(t, want); again.String() != want || string(again.text) != string(r.text) || again.prefix != r.prefix || again.size != r.size {
			t.Errorf("%q is read as %+v, and that as %+v", spec, r, again)
		}
	}
}

func repeatX(n int) string { return strings.Repeat("x", n) }

func TestParseErrors(t *testing.T) {
	const rules = "; expected delimiter:TEXT, marker:TEXT, length:PREFIX (such as length:4be), bytes:N or http"
	const numbers = "; expected 1, 2be, 2le, 4be, 4le, 8be or 8le, optionally followed by an offset such as +8 and a position such as @3"
	for spec, want := range map[string]string{
		"":                                      `match: unknown rule ""` + rules,
		"Bytes:1":                               `match: unknown rule "Bytes:1"` + rules,
		"delimiter:":                            "match: delimiter has 0 bytes; expected 1 to 64",
		"marker:" + repeatX(65):                 "match: marker has 65 bytes; expected 1 to 64",
		`marker:\`:                              `match: marker: "\\"; expected one of \n`,
		`marker:\q`:                             `match: marker: "\\q"; expected one of \n`,
		"bytes:":                                `match: answer length is "" bytes; expected 1 to 1073741824`,
		"bytes:0":                               `match: answer length is "0" bytes; expected 1 to 1073741824`,
		"bytes:1073741825":                      `match: answer length is "1073741825" bytes; expected 1 to 1073741824`,
		"length:":                               `match: length is ""` + numbers,
		"length:1be":                            `match: length is "1be"` + numbers,
		"length:4be+-1":                         `match: length is "4be+-1"` + numbers,
		"length:4be@3+8":                        `match: length is "4be@3+8"` + numbers,
		"length:4be-4097":                       `match: length is "4be-4097"; expected an offset of -4096 to +4096, and a position of 0 to 4096`,
		"length:4be@4097":                       `match: length is "4be@4097"; expected an offset of`,
		"length:4be@" + strings.Repeat("9", 30): "expected an offset of",
	} {
		if r, err := Parse(spec); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is read as %v, %v; expected the error %s", spec, r, err, want)
		}
	}
}

func TestFeedAllocatesNothing(t *testing.T) {
	for spec, in := range map[string]string{
		`delimiter:\n`:   "one\ntwo\nthree",
		`delimiter:\r\n`: "one\r\ntwo\r\nthree\r",
		"length:4be+1":   "\x00\x00\x00\x02abc\x00\x00\x00\x00d\x00",
		"http":           plain + chunked + "HTTP/1.1 200 OK\r\nContent-L",
	} {
		r := mustParse(t, spec)
		piece := []byte(in)
		statuses := 0
		if n := testing.AllocsPerRun(100, func() {
			var s StreamState
			if _, answers, err := r.ConsumeInput(&s, piece, func(status int) { statuses += status }); answers == 0 || err != nil {
				t.Errorf("%v: %d answers, %v", r, answers, err)
			}
		}); n != 0 {
			t.Errorf("%v: %g allocations for a piece; expected none", r, n)
		}
	}
}

type stream struct {
	rule    *AnswerRule
	state   StreamState
	rest    []byte
	used    int
	answers int
	// ends are where answers ended, as far as pieces tell, statuses theirs.
	ends     []int
	statuses []int
	want     string // of an error
}

// feedPiece feeds one more piece, and checks the guarantees of Feed.
func (s *stream) feedPiece(t testing.TB, piece []byte) {
	t.Helper()
	if s.want != "" {
		return
	}
	s.rest = append(s.rest, piece...)
	seen := func(status int) { s.statuses = append(s.statuses, status) }
	used, answers, err := s.rule.ConsumeInput(&s.state, s.rest, seen)
	if used < 0 || used > len(s.rest) || answers < 0 || answers > used {
		t.Fatalf("%v: %d answers with %d bytes of %q", s.rule, answers, used, s.rest)
	}
	s.rest = s.rest[used:]
	s.used += used
	s.answers += answers
	if answers > 0 {
		s.ends = append(s.ends, s.used)
	}
	if err != nil {
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Want == "" || len(s.rest) == 0 {
			t.Fatalf("%v: error %v with %d bytes unused; expected an *Error and some", s.rule, err, len(s.rest))
		}
		s.want = wrong.Want
		return
	}
	if len(s.rest) > s.rule.MaxUnused() {
		t.Fatalf("%v leaves %d bytes unused; expected at most %d", s.rule, len(s.rest), s.rule.MaxUnused())
	}
	before := s.state
	if used, answers, err := s.rule.ConsumeInput(&s.state, s.rest, seen); used != 0 || answers != 0 || err != nil || s.state != before {
		t.Fatalf("%v: offered again as it was, the rest gives %d, %d, %v", s.rule, used, answers, err)
	}
}

func feedInPieces(t testing.TB, r *AnswerRule, in []byte, cuts ...int) *stream {
	t.Helper()
	s := &stream{rule: r}
	from := 0
	for _, to := range append(cuts, len(in)) {
		s.feedPiece(t, in[from:to])
		from = to
	}
	return s
}

// formatResult returns what must not depend on the division into pieces.
func (s *stream) formatResult() string {
	return fmt.Sprintf("%d answers in %d bytes, statuses %v, last %v, error %q, unused %q", s.answers, s.used, s.statuses, s.state.ServerCloses(), s.want, s.rest[:min(len(s.rest), s.rule.MaxUnused())])
}

func cutEveryByte(n int) []int {
	var cuts []int
	for i := 1; i < n; i++ {
		cuts = append(cuts, i)
	}
	return cuts
}

// checkSplitIndependence checks that the result is the same in one piece, byte by byte, in all
// pairs of pieces, and in some triples. It returns the result byte by byte.
func checkSplitIndependence(t testing.TB, r *AnswerRule, in []byte) *stream {
	t.Helper()
	whole := feedInPieces(t, r, in)
	// Input after an error depends on when the error is detected.
	if whole.want != "" {
		whole.rest = nil
	}
	check := func(cuts ...int) *stream {
		t.Helper()
		s := feedInPieces(t, r, in, cuts...)
		if s.want != "" {
			s.rest = nil
		}
		if s.formatResult() != whole.formatResult() {
			t.Fatalf("%v, %q\nin pieces ending at %v: %s\nin one piece: %s", r, in, cuts, s.formatResult(), whole.formatResult())
		}
		return s
	}
	for i := range min(len(in), 300) {
		check(i)
	}
	random := rand.New(rand.NewPCG(1, uint64(len(in))))
	for range 50 {
		i := random.IntN(len(in) + 1)
		check(i, i+random.IntN(len(in)-i+1))
	}
	return check(cutEveryByte(len(in))...)
}

func TestPieces(t *testing.T) {
	for _, test := range []struct {
		spec, in string
		answers  int
	}{
		{`delimiter:\n`, "one\n\ntwo\nthr", 3},
		{`delimiter:\r\n`, "one\r\n\r\n\n\rtwo\r\nthree\r", 3},
		{"delimiter:aa", "aaaaabaab", 3},
		{"delimiter:abcabd", "abcabcabdabcababcabd", 2},
		{"delimiter:" + repeatX(64), repeatX(200), 3},
		{`marker:"id":`, `{"id":1}{"id":2}{"id"`, 2},
		{"bytes:4", "abcdefghij", 2},
		{"length:1", "\x00\x01a\x02ab\x03ab", 3},
		{"length:4be", "\x40\x00\x00\x00", 0}, // the longest answer, which has only begun
		{"length:4be-4096", "\x40\x00\x10\x00", 0},
		{"length:2be", "\x00\x02ab\x00\x00\x00", 2},
		{"length:2le", "\x02\x00ab\x00\x01" + repeatX(256) + "\x00", 2},
		{"length:4be+8", "\x00\x00\x00\x01" + repeatX(9) + "\x00\x00\x00\x00" + repeatX(8), 2},
		{"length:4le-4", "\x04\x00\x00\x00\x06\x00\x00\x00ab", 2},
		{"length:8le-8", "\x09\x00\x00\x00\x00\x00\x00\x00a\x08\x00\x00\x00\x00\x00\x00\x00", 2},
		{"length:2be@3", "abc\x00\x02de\xff\xff\xff\x00\x00z", 2},
	} {
		s := checkSplitIndependence(t, mustParse(t, test.spec), []byte(test.in))
		if s.answers != test.answers || s.want != "" {
			t.Errorf("%s: %q gives %s; expected %d answers", test.spec, test.in, s.formatResult(), test.answers)
		}
		if n := s.rule.EndStream(&s.state, nil); n != 0 || s.state.ServerCloses() {
			t.Errorf("%s: %q: the end completes %d answers; expected none", test.spec, test.in, n)
		}
	}
}

func TestLengthErrors(t *testing.T) {
	for _, test := range []struct{ spec, in, got string }{
		{"length:1-2", "\x02\x01", `"\x01"`},
		{"length:4be", "\x00\x00\x00\x00\x40\x00\x00\x01", `"@\x00\x00\x01"`},
		{"length:4be+1", "\x00\x00\x00\x00a\x40\x00\x00\x00", `"@\x00\x00\x00"`},
		{"length:4le-4", "\x04\x00\x00\x00\x03\x00\x00\x00", `"\x03\x00\x00\x00"`},
		{"length:8be@1", "a\x00\x00\x00\x00\x00\x00\x00\x00b\xff\xff\xff\xff\xff\xff\xff\xff", `"b\xff\xff\xff\xff\xff\xff\xff\xff"`},
	} {
		r := mustParse(t, test.spec)
		if s := checkSplitIndependence(t, r, []byte(test.in)); s.want != wantLength || s.answers != 1 {
			t.Errorf("%s: %q gives %s; expected an answer and the error %q", test.spec, test.in, s.formatResult(), wantLength)
		}
		_, _, err := r.ConsumeInput(new(StreamState), []byte(test.in), nil)
		if want := "match: got " + test.got + "; expected a length for which 0 to 1073741824 bytes follow"; err == nil || err.Error() != want {
			t.Errorf("%s: %v; expected %s", test.spec, err, want)
		}
	}
}
