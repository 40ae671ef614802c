package match

import (
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func mustParse(t testing.TB, spec string) *AnswerRule {
	t.Helper()
	r := testkit.Must(Parse(spec))(t)
	return r
}

func TestParse(t *testing.T) {
	for spec, want := range map[string]string{
		"http":                     "http",
		`delimiter:\r\n`:           `delimiter:\r\n`,
		"delimiter:\r\n":           `delimiter:\r\n`,
		`delimiter:a:b`:            `delimiter:a:b`,
		`marker:\\\t\0`:            `marker:\\\t\x00`,
		`marker:"\01\x7f`:          `marker:"\x01\x7f`,
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
		}
	}
}

func repeatX(n int) string { return strings.Repeat("x", n) }

func TestParseErrors(t *testing.T) {
	const rules = "; expected delimiter:TEXT, marker:TEXT, length:PREFIX (such as length:4be), bytes:N or http"
	const numbers = "; expected 1, 2be, 2le, 4be, 4le, 8be or 8le, optionally followed by an offset such as +8 and a position such as @3"
	for spec, want := range map[string]string{
		"":                                      `match: unknown rule ""` + rules,
		"frames":                                `match: unknown rule "frames"` + rules,
		"http:":                                 `match: unknown rule "http:"` + rules,
		"Bytes:1":                               `match: unknown rule "Bytes:1"` + rules,
		"delimiter:":                            "match: delimiter has 0 bytes; expected 1 to 64",
		"marker:" + repeatX(65):                 "match: marker has 65 bytes; expected 1 to 64",
		`marker:\`:                              `match: marker: "\\"; expected one of \n`,
		`marker:\q`:                             `match: marker: "\\q"; expected one of \n`,
		`delimiter:\x1`:                         `match: delimiter: "\\x1"; expected one of \n`,
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

// An escaped text must mean what it was made from.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"http", `delimiter:\r\n`, `marker:\x00\0\\`, "bytes:10", "length:4be+8@3", "length:1-1", `delimiter:\`, "length:8le@+1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, spec string) {
		r, err := Parse(spec)
		if err != nil {
			return
		}
		for _, c := range []byte(r.String()) {
			if c < ' ' || c > '~' {
				t.Fatalf("%q is read as %q, which can't be printed", spec, r)
			}
		}
		again, err := Parse(r.String())
		if err != nil {
			t.Fatalf("%q is read as %q, which is an error: %v", spec, r, err)
		}
		if again.String() != r.String() || string(again.text) != string(r.text) || again.prefix != r.prefix || again.size != r.size || again.kind != r.kind {
			t.Fatalf("%q is read as %+v, and that as %+v", spec, r, again)
		}
	})
}

func TestFeedAllocatesNothing(t *testing.T) {
	for spec, in := range map[string]string{
		`delimiter:\n`:   "one\ntwo\nthree",
		`delimiter:\r\n`: "one\r\ntwo\r\nthree\r",
		"marker:ne":      "one, none, n",
		"length:4be+1":   "\x00\x00\x00\x02abc\x00\x00\x00\x00d\x00",
		"bytes:3":        "one2",
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
