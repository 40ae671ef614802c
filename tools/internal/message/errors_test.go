package message

import (
	"strings"
	"testing"
)

// TestErrors has each error with what was expected.
func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		`ab\{timestamp}`:                  `\{timestamp} at byte 2: unknown expression "timestamp"; expected ` + known,
		`\{}`:                             `unknown expression ""; expected ` + known,
		`\{ws.ping}`:                      `not a number; expected integers, connection.uid`,
		`\{ws.text "a"}`:                  `unknown expression "ws.text \"a\""; expected `,
		`\{<file.txt>}`:                   `unknown expression "<file.txt>"; expected `,
		`a\{seq`:                          `\{seq at byte 1: no end; expected a } behind it, or \\{ for a literal \{`,
		`\{re [}`:                         `\{re [} at byte 0: no end; expected a }`,
		`\{re a\}`:                        `\{re a\} at byte 0: no end; expected a }`,
		`\{uuid 4}`:                       `"4" behind the name; expected nothing`,
		`\{message.marker 4}`:             `"4" behind the name; expected nothing`,
		`\{random}`:                       `"" characters; expected random and a number from 1 to 1048576`,
		`\{hex 0}`:                        `"0" characters; expected hex and a number from 1 to 1048576`,
		`\{number 5}`:                     `range of "5"; expected number A-B with A and B from 0 to 9223372036854775807, and A not above B`,
		`\{number 6-5}`:                   `range of "6-5"; expected number A-B`,
		`\{number -1-5}`:                  `range of "-1-5"; expected number A-B`,
		`\{seq % 0}`:                      `remainder by something else than an integer above 0; expected such as connection.uid % 10`,
		`\{7 % seq}`:                      `remainder by something else than an integer above 0`,
		`\{seq +}`:                        `unknown expression "seq +"; expected `,
		`\{seq + foo}`:                    `unknown expression "foo"; expected `,
		`\{seq / 2}`:                      `operator /; expected + - * or %`,
		`\{!seq}`:                         `not a number; expected integers`,
		`\{(seq + 2}`:                     `unknown expression "(seq + 2"; expected `,
		`\{seq + 9223372036854775808}`:    `integer 9223372036854775808; expected one of 63 bits, in decimal digits`,
		`\{0x10}`:                         `integer 0x10; expected one of 63 bits, in decimal digits`,
		`\{re }`:                          `no regular expression; expected one such as [a-z]{5,10}`,
		`\{re *a}`:                        "missing argument to repetition operator: `*`; expected a regular expression such as [a-z]{5,10}",
		`\{re a)}`:                        "unexpected ): `a)`; expected a regular expression",
		`\{re ^a}`:                        `"\\A" in a regular expression, which makes no text; expected a \ before ^ and $`,
		`\{re [^!-~]}`:                    `a class without printable characters; expected at least one`,
		`\{re [` + "\u00e4" + `]a[b-c]}`:  "",
		`\{re [` + "\u00e4-\u00f6" + `]}`: `a class with 'ö'; expected ASCII`,
		`\{re [z-a]}`:                     "invalid character class range: `z-a`; expected a regular expression",
		`\{re \b}`:                        `makes no text; expected a \ before ^ and $`,
	} {
		if _, err := Parse(text); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives the error\n\t%v, want\n\t%s", text, err, want)
		}
	}
}

// TestBounds reaches each bound, and goes one further.
func TestBounds(t *testing.T) {
	thousand := func(n int) string { return "(" + strings.Repeat("x", n) + "){1000}" }
	for _, c := range []struct{ name, good, bad, want string }{
		{"text", strings.Repeat("x", MaxText), strings.Repeat("x", MaxText+1), "template of 1048577 bytes; expected at most 1048576"},
		{"expressions", strings.Repeat(`\{seq}`, MaxExpressions), strings.Repeat(`\{seq}`, MaxExpressions+1), "template of more than 256 expressions; expected at most that many"},
		{"characters", `\{random 1048576}`, `\{random 1048577}`, `"1048577" characters; expected random and a number from 1 to 1048576`},
		{"length", `x\{random 1048575}`, `x\{random 1048576}`, "messages of up to 1048577 bytes; expected at most 1048576"},
		{"literal behind", `\{random 1048575}x`, `\{random 1048575}xx`, "messages of up to 1048577 bytes; expected at most 1048576"},
		{"repetition", `\{re ` + thousand(1048) + `}`, `\{re ` + thousand(1049) + `}`, "text of up to 1049000 bytes; expected at most 1048576"},
		{"sequence", `\{re ` + thousand(1000) + thousand(48) + `}`, `\{re ` + thousand(1000) + thousand(49) + `}`, "text of up to 1049000 bytes; expected at most 1048576"},
		{"operators", `\{seq` + strings.Repeat("+1", MaxOperators) + `}`, `\{seq` + strings.Repeat("+1", MaxOperators+1) + `}`, "more than 64 operators; expected at most that many"},
		{"number", `\{seq` + strings.Repeat(" ", maxNumber-len("seq")) + `}`, `\{seq` + strings.Repeat(" ", maxNumber) + `}`, "an expression of 4099 bytes; expected at most 4096"},
	} {
		template, err := Parse(c.good)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if n := len(template.Append(nil, fifth)); n < template.MinLen() || n > template.MaxLen() {
			t.Errorf("%s: a message of %d bytes, where there are %d to %d", c.name, n, template.MinLen(), template.MaxLen())
		}
		if _, err = Parse(c.bad); err == nil || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: one more gives the error %v, want %s", c.name, err, c.want)
		}
	}
}

// TestNothingRepeated repeats nothing so often that doing so would not end.
func TestNothingRepeated(t *testing.T) {
	for text, want := range map[string]string{
		`(((((a{0})*)*)*)*)`: "",
		`((((()*)*)*)*)*x`:   "x",
		`(|())*`:             "",
		`(a(((` + strings.Repeat("()", 1000) + `)*)*)){100}`: strings.Repeat("a", 100),
	} {
		if got := make1(t, `\{re `+text+`}`, fifth); got != want {
			t.Errorf("%s gives %q, want %q", shorten(text), got, want)
		}
	}
}
