package message

import (
	"strings"
	"testing"
)

// TestErrors checks that each error names what was expected.
func TestErrors(t *testing.T) {
	for text, want := range map[string]string{
		`ab\{timestamp}`:         `\{timestamp} at byte 2: unknown expression "timestamp"; expected ` + expressionNames,
		`\{}`:                    `unknown expression ""; expected ` + expressionNames,
		`\{ws.text "a"}`:         `unknown expression "ws.text \"a\""; expected `,
		`a\{seq`:                 `\{seq at byte 1 has no end; expected a closing }, or \\{ for a literal \{`,
		`\{connection.uid % 10}`: `"% 10" after the name of the expression; expected nothing`,
		`\{re [a-z]{5}}`:         `unknown expression "re [a-z]{5"; expected `,
		`\{uuid 4}`:              `"4" after the name of the expression; expected nothing`,
		`\{random}`:              `number of characters is ""; expected random and a number from 1 to 1048576`,
		`\{hex 0}`:               `number of characters is "0"; expected hex and a number from 1 to 1048576`,
		`\{number 6-5}`:          `range is "6-5"; expected number A-B`,
		`\{number -1-5}`:         `range is "-1-5"; expected number A-B`,
	} {
		if _, err := Parse(text); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s gives the error\n\t%v, want\n\t%s", text, err, want)
		}
	}
}

// TestBounds reaches each limit and exceeds it by one.
func TestBounds(t *testing.T) {
	for _, c := range []struct{ name, good, bad, want string }{
		{"text", strings.Repeat("x", MaxText), strings.Repeat("x", MaxText+1), "template has 1048577 bytes; expected at most 1048576"},
		{"expressions", strings.Repeat(`\{seq}`, MaxExpressions), strings.Repeat(`\{seq}`, MaxExpressions+1), "template has more than 256 expressions; expected at most that many"},
		{"characters", `\{random 1048576}`, `\{random 1048577}`, `\{random 1048577} at byte 0: number of characters is "1048577"; expected random and a number from 1 to 1048576`},
		{"length", `x\{random 1048575}`, `x\{random 1048576}`, "messages of up to 1048577 bytes; expected at most 1048576"},
		{"literal behind", `\{random 1048575}x`, `\{random 1048575}xx`, "messages of up to 1048577 bytes; expected at most 1048576"},
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
