package message

import (
	"bytes"
	"regexp"
	"strings"
	"testing"
)

func mustParse(t testing.TB, text string) *Template {
	t.Helper()
	template, err := Parse(text)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return template
}

func makeMessage(t testing.TB, text string, of ID) string {
	t.Helper()
	return string(mustParse(t, text).Append(nil, of))
}

var fifth = ID{Seed: 1, Connection: 1234, Message: 5}

func TestExact(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, ``},
		{`hello` + "\n", `hello` + "\n"},
		{`a\b\\c`, `a\b\\c`},
		{`\\{seq}`, `\{seq}`},
		{`\\\{seq}`, `\5`},
		{`\{seq}\{seq}`, `55`},
		{`\{seq}\\{seq}`, `5\{seq}`},
		{`\{connection.uid}`, `1234`},
		{`<\{ message.uid }>`, `<5>`},
		{`\{message.marker}`, `00004d2000000005`},
		{`\{number 7-7}`, `7`},
		{`<\{ cycle a|bb }>`, `<bb >`},
	} {
		template := mustParse(t, c.text)
		got := string(template.Append(nil, fifth))
		if got != c.want {
			t.Errorf("%s gives %q, want %q", c.text, got, c.want)
		}
		if fixed, ok := template.MessageIfConstant(); ok == strings.Contains(strings.ReplaceAll(c.text, `\\`, ""), `\{`) || ok && string(fixed) != c.want {
			t.Errorf("%s is always %q, %v", c.text, fixed, ok)
		}
		if with := string(template.Append([]byte("before "), fifth)); with != "before "+got {
			t.Errorf("%s behind other text gives %q", c.text, with)
		}
	}
}

func TestRandom(t *testing.T) {
	for _, c := range []struct {
		text, want string
		low, high  int
	}{
		{`\{random 100}`, `[!-~]{100}`, 100, 100},
		{`\{hex 32}`, `[0-9a-f]{32}`, 32, 32},
		{`\{number 1-6}`, `[1-6]`, 1, 1},
		{`\{number 0-9223372036854775807}`, `[0-9]{1,19}`, 1, 19},
		{`\{uuid}`, `[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`, 36, 36},
		{`a\{seq}`, `a[0-9]+`, 2, 21},
		{`\{cycle a|bb|ccc}`, `a|bb|ccc`, 1, 3},
	} {
		template := mustParse(t, c.text)
		if low, high := template.MinLen(), template.MaxLen(); low != c.low || high != c.high {
			t.Errorf("%s has %d to %d bytes, want %d to %d", c.text, low, high, c.low, c.high)
		}
		if fixed, ok := template.MessageIfConstant(); ok {
			t.Errorf("%s is said to be always %q", c.text, fixed)
		}
		want := regexp.MustCompile("^(?:" + c.want + ")$")
		for i := range uint64(1000) {
			if got := template.Append(nil, ID{7, i % 3, i}); !want.Match(got) {
				t.Errorf("%s gives %q, want %s", c.text, got, c.want)
				break
			}
		}
	}
}

func TestDeterminism(t *testing.T) {
	const text = `\{random 16}`
	for _, c := range []struct {
		scope               string
		seed, conn, message bool // whether it differs with
	}{
		{text, true, true, true},
		{`\{uuid}`, true, true, true},
		{`\{number 0-9223372036854775807}`, true, true, true},
		{`\{message.marker}`, false, true, true},
	} {
		of := ID{Seed: 5, Connection: 6, Message: 7}
		first := makeMessage(t, c.scope, of)
		if again := makeMessage(t, c.scope, of); again != first {
			t.Errorf("%s gives %q and then %q", c.scope, first, again)
		}
		for _, d := range []struct {
			name    string
			of      ID
			differs bool
		}{
			{"seed", ID{8, 6, 7}, c.seed},
			{"connection", ID{5, 8, 7}, c.conn},
			{"message", ID{5, 6, 8}, c.message},
		} {
			if other := makeMessage(t, c.scope, d.of); (other != first) != d.differs {
				t.Errorf("%s with another %s gives %q and %q; differing is to be %v", c.scope, d.name, first, other, d.differs)
			}
		}
	}
	halves := makeMessage(t, text+text, fifth)
	if halves[:16] == halves[16:] {
		t.Errorf("two expressions of one message are both %q", halves[:16])
	}
	if swapped := makeMessage(t, text, ID{1, 5, 1234}); swapped == makeMessage(t, text, fifth) {
		t.Errorf("connection and message swapped give the same text %q", swapped)
	}
	// Results of earlier versions depend on these bytes.
	const want = "*=t.2DXeMPg.#LBg 8 6"
	if got := makeMessage(t, text+" "+`\{number 1-9} \{number 1-20}`, fifth); got != want {
		t.Errorf("a text of seed 1 is %q, and was %q", got, want)
	}
}

func TestMarker(t *testing.T) {
	if got := makeMessage(t, `\{message.marker}`, ID{Connection: 1<<28 - 1, Message: 1<<36 - 1}); got != strings.Repeat("f", markerLen) {
		t.Errorf("the last marker is %s", got)
	}
}

// every contains every expression.
const every = `a\{connection.uid}b\{message.uid}c\{message.marker}\{random 100}\{hex 32}\{number 1-1000}\{uuid}`

func TestAppendDoesNotAllocate(t *testing.T) {
	template := mustParse(t, every)
	room := make([]byte, 0, template.MaxLen())
	of := fifth
	if n := testing.AllocsPerRun(1000, func() {
		of.Message++
		template.Append(room, of)
	}); n != 0 {
		t.Errorf("a message is made with %v allocations", n)
	}
}

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

func TestUnescape(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{``, ""},
		{`\n\r\t\e\a\b\f\v\\\'\"`, "\n\r\t\x1b\a\b\f\v\\'\""},
		{`\x41\xfF\x00z`, "A\xff\x00z"},
		{`\0`, "\x00"},
		{`\0377`, "\xff"},
		{`\00000`, "\x000"},
		{`\08`, "\x008"},
		{`\{seq}\n`, "\\{seq}\n"},
		{`\{re \n\{[\]}]}\n`, "\\{re \\n\\{[\\]}]}\n"},
		// what follows is for Parse
		{`\\{seq}`, `\\{seq}`},
		{`\\\{seq}`, `\\\{seq}`},
		{`\x5c{seq}`, `\\{seq}`},
		{`\\\x7bseq}`, `\\{seq}`},
	} {
		got, err := UnescapeKeepingExpressions(c.text)
		if err != nil || string(got) != c.want {
			t.Errorf("%s gives %q, %v; want %q", c.text, got, err, c.want)
		}
	}
}

func TestUnescapeErrors(t *testing.T) {
	for text, want := range map[string]string{
		`a\`:      `"\\"; expected one of \n \r \t \e \a \b \f \v \\ \' \" \xHH \0 \0377, or \\ for a backslash at byte 1`,
		`a\q`:     `"\\q"; expected one of \n`,
		`\x4`:     `"\\x4"; expected one of \n`,
		`\x+1`:    `"\\x+1"; expected one of \n`,
		`ab\0400`: `"\\0400"; expected at most \0377 at byte 2`,
		`\{seq`:   `\{seq at byte 0 has no end; expected a closing }, or \\{ for a literal \{`,
	} {
		if got, err := UnescapeKeepingExpressions(text); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s gives %q and the error\n\t%v, want\n\t%s", text, got, err, want)
		}
	}
}

// FuzzParse generates messages from any valid template.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "ping", `\\{`, `\\\{seq}`, every,
		`\{number 0-9223372036854775807}`, `\{hex 3}\{random 7}`, `\{timestamp}`,
	} {
		f.Add(text, uint64(1), uint64(2), uint64(3))
	}
	f.Fuzz(func(t *testing.T, text string, seed, connection, message uint64) {
		template, err := Parse(text)
		if err != nil {
			return
		}
		of := ID{seed, connection, message}
		got := template.Append(nil, of)
		if low, high := template.MinLen(), template.MaxLen(); len(got) < low || len(got) > high || high > MaxLen {
			t.Fatalf("%q makes %d bytes, and is to make %d to %d", text, len(got), low, high)
		}
		room := template.Append(make([]byte, 1, 1+template.MaxLen()), of)
		if !bytes.Equal(room[1:], got) {
			t.Fatalf("%q makes %q and then %q", text, got, room[1:])
		}
		if fixed, ok := template.MessageIfConstant(); ok && !bytes.Equal(fixed, got) {
			t.Fatalf("%q makes %q, and always %q", text, got, fixed)
		}
		again, err := Parse(text)
		if err != nil || !bytes.Equal(again.Append(nil, of), got) {
			t.Fatalf("%q makes %q, but parsed again something else, %v", text, got, err)
		}
	})
}
