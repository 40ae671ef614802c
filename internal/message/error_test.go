package message

import (
	"strings"
	"testing"
)

func TestErrors(t *testing.T) {
	const expected = "; expected connection.uid, message.uid, seq, message.marker, re, connection.re, global.re, random, hex, number or uuid"
	for _, c := range []struct{ text, want string }{
		{`ab\{timestamp}`, `\{timestamp} at byte 2: not supported, for two runs with the same seed would differ` + expected},
		{`\{foo}`, `\{foo} at byte 0: unknown expression foo` + expected},
		{`\{}`, `\{} at byte 0: no name` + expected},
		{`\{ws.ping}`, `\{ws.ping} at byte 0: frames of WebSocket are not supported, the whole template is one message` + expected},
		{`\{ws.text "a"}`, `\{ws.text "a"} at byte 0: frames of WebSocket are not supported, the whole template is one message` + expected},
		{`\{connection.ptr}`, `\{connection.ptr} at byte 0: not supported, for two runs would differ; expected connection.uid`},
		{`\{raw "a"}`, `\{raw "a"} at byte 0: contents of files are not supported` + expected},
		{`\{<file.txt>}`, `\{<file.txt>} at byte 0: contents of files are not supported` + expected},
		{`a\{seq`, `\{seq at byte 1: no end; expected a } behind it, or \\{ for a literal \{`},
		{`\{re [}`, `\{re [} at byte 0: no end; expected a } behind it, or \\{ for a literal \{`},
		{`\{re a\}`, `\{re a\} at byte 0: no end; expected a } behind it, or \\{ for a literal \{`},
		{`\{uuid 4}`, `\{uuid 4} at byte 0: "4" behind the name; expected nothing`},
		{`\{message.marker 4}`, `\{message.marker 4} at byte 0: "4" behind the name; expected nothing`},
		{`\{random}`, `\{random} at byte 0: "" characters; expected random and a number from 1 to 1048576`},
		{`\{random 0}`, `\{random 0} at byte 0: "0" characters; expected random and a number from 1 to 1048576`},
		{`\{hex 1048577}`, `\{hex 1048577} at byte 0: "1048577" characters; expected hex and a number from 1 to 1048576`},
		{`\{number 5}`, `\{number 5} at byte 0: range of "5"; expected number A-B with A and B from 0 to 9223372036854775807, and A not above B`},
		{`\{number 6-5}`, `\{number 6-5} at byte 0: range of "6-5"; expected number A-B with A and B from 0 to 9223372036854775807, and A not above B`},
		{`\{number -1-5}`, `\{number -1-5} at byte 0: range of "-1-5"; expected number A-B with A and B from 0 to 9223372036854775807, and A not above B`},

		{`\{seq % 0}`, `\{seq % 0} at byte 0: remainder by something else than an integer above 0; expected such as connection.uid % 10`},
		{`\{7 % seq}`, `\{7 % seq} at byte 0: remainder by something else than an integer above 0; expected such as connection.uid % 10`},
		{`\{seq +}`, `\{seq +} at byte 0: nothing behind "seq +"; expected connection.uid, message.uid, seq, an integer or (`},
		{`\{seq + foo}`, `\{seq + foo} at byte 0: "foo"; expected connection.uid, message.uid, seq, an integer or (`},
		{`\{seq / 2}`, `\{seq / 2} at byte 0: "/ 2"; expected + - * % or the end`},
		{`\{(seq + 2}`, `\{(seq + 2} at byte 0: nothing behind "(seq + 2"; expected )`},
		{`\{-}`, `\{-} at byte 0: integer "-"; expected one of 64 bits`},
		{`\{seq + 9223372036854775808}`, `\{seq + 9223372036854775808} at byte 0: integer "9223372036854775808"; expected one of 64 bits`},

		{`\{re }`, `\{re } at byte 0: no regular expression; expected one such as [a-z]{5,10}`},
		{`\{re *a}`, `\{re *a} at byte 0: "*a" at byte 0 of the regular expression; expected something to repeat before it, or a \ for the character`},
		{`\{re a**}`, `\{re a**} at byte 0: "*" at byte 2 of the regular expression; expected no repetition of a repetition, but with a group`},
		{`\{re a)}`, `\{re a)} at byte 0: ")" at byte 1 of the regular expression; expected no ) without a (`},
		{`\{re (a}`, `\{re (a} at byte 0: nothing behind "(a"; expected )`},
		{`\{re ^a}`, `\{re ^a} at byte 0: "^a" at byte 0 of the regular expression; expected a \ before it`},
		{`\{re a{3,2}}`, `\{re a{3,2}} at byte 0: "{3,2}" at byte 1 of the regular expression; expected {n} or {m,n} with numbers from 0 to 1048576, m not above n`},
		{`\{re a{3,}}`, `\{re a{3,}} at byte 0: "{3,}" at byte 1 of the regular expression; expected {n} or {m,n} with numbers from 0 to 1048576, m not above n`},
		{`\{re a{1048577}}`, `\{re a{1048577}} at byte 0: "{1048577}" at byte 1 of the regular expression; expected {n} or {m,n} with numbers from 0 to 1048576, m not above n`},
		{`\{re []}`, `\{re []} at byte 0: class [] without characters; expected at least one`},
		{`\{re [^!-~]}`, `\{re [^!-~]} at byte 0: class [^!-~] without characters; expected at least one`},
		{`\{re [z-a]}`, `\{re [z-a]} at byte 0: range from "z" to "a"; expected two characters, the first not behind the last`},
		{`\{re [a-\d]}`, `\{re [a-\d]} at byte 0: range from "a" to "0123456789"; expected two characters, the first not behind the last`},
		{`\{re [ä]}`, `\{re [ä]} at byte 0: "ä]" at byte 1 of the regular expression; expected ASCII in a class`},
		{`\{re [[:alpha:]]}`, `\{re [[:alpha:]]} at byte 0: "[:alpha:]]" at byte 1 of the regular expression; expected no named class, or a \ before the [`},
		{`\{re \b}`, `\{re \b} at byte 0: "\\b" at byte 0 of the regular expression; expected \d \w \n \r \t \xHH, or a \ before a character that is neither a letter nor a digit`},
		{`\{re \x4}`, `\{re \x4} at byte 0: \x and "4"; expected two hexadecimal digits`},
	} {
		if _, err := Parse(c.text); err == nil || err.Error() != c.want {
			t.Errorf("%s gives the error\n\t%v, want\n\t%s", c.text, err, c.want)
		}
	}
}

// TestBounds reaches each bound, and goes one further.
func TestBounds(t *testing.T) {
	nested := func(open string, n int, inside, end string) string {
		return strings.Repeat(open, n) + inside + strings.Repeat(end, n)
	}
	for _, c := range []struct{ name, good, bad, want string }{
		{"text", strings.Repeat("x", MaxText), strings.Repeat("x", MaxText+1), "template of 1048577 bytes; expected at most 1048576"},
		{"expressions", strings.Repeat(`\{seq}`, MaxExpressions), strings.Repeat(`\{seq}`, MaxExpressions+1), "template of more than 256 expressions; expected at most that many"},
		{"characters", `\{random 1048576}`, `\{random 1048577}`, `"1048577" characters; expected random and a number from 1 to 1048576`},
		{"length", `x\{random 1048575}`, `x\{random 1048576}`, "messages of up to 1048577 bytes; expected at most 1048576"},
		{"literal behind", `\{random 1048575}x`, `\{random 1048575}xx`, "messages of up to 1048577 bytes; expected at most 1048576"},
		{"repetition", `\{re (ab){524288}}`, `\{re (ab){524289}}`, "text of up to 1048578 bytes; expected at most 1048576"},
		{"sequence", `\{re a{1048575}a}`, `\{re a{1048575}aa}`, "text of up to 1048577 bytes; expected at most 1048576"},
		{"big repetition", `\{re (a{1024}){1024}}`, `\{re (a{1048576}){1048576}}`, "text of up to 1099511627776 bytes; expected at most 1048576"},
		{"groups", `\{re ` + nested("(", MaxDepth, "a", ")") + `}`, `\{re ` + nested("(", MaxDepth+1, "a", ")") + `}`, "more than 16 groups in each other; expected at most that many"},
		{"parentheses", `\{` + nested("(", MaxDepth, "seq", ")") + `}`, `\{` + nested("(", MaxDepth+1, "seq", ")") + `}`, "more than 16 parentheses in each other; expected at most that many"},
		{"operators", `\{seq` + strings.Repeat("+1", MaxOperators) + `}`, `\{seq` + strings.Repeat("+1", MaxOperators+1) + `}`, "more than 64 operators; expected at most that many"},
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

// TestGroupsInTurn has more groups than may lie in each other.
func TestGroupsInTurn(t *testing.T) {
	const n = 2 * MaxDepth
	if got := make1(t, `\{re `+strings.Repeat("(ab)", n)+`}`, fifth); got != strings.Repeat("ab", n) {
		t.Errorf("groups give %q", got)
	}
	if got := make1(t, `\{0`+strings.Repeat("+(seq)", n)+`}`, fifth); got != "160" {
		t.Errorf("parentheses give %q, want 160", got)
	}
}

// TestNothingRepeated repeats nothing so often that doing so would not end.
func TestNothingRepeated(t *testing.T) {
	const often = "{1048576}"
	for text, want := range map[string]string{
		`(((((a{0})` + often + `)` + often + `)` + often + `)` + often + `)`: "",
		`((((()` + often + `)` + often + `)` + often + `)` + often + `x)`:    "x",
		`(|())` + often: "",
		`(a(((` + strings.Repeat("()", 1000) + `)` + often + `)` + often + `)){1024}`: strings.Repeat("a", 1024),
	} {
		if got := make1(t, `\{re `+text+`}`, fifth); got != want {
			t.Errorf("%s gives %q, want %q", shorten(text), got, want)
		}
	}
}
