package message

import (
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

// TestEven checks that all values appear, about equally often.
func TestEven(t *testing.T) {
	const times = 2000 // for each
	for _, c := range []struct {
		text  string
		kinds int
	}{
		{`\{random 1}`, 94},
		{`\{number 10-19}`, 10},
		{`\{cycle a|b|c}`, 3},
	} {
		template := mustParse(t, c.text)
		seen := map[string]int{}
		for i := range c.kinds * times {
			// both numbers change, because each must suffice
			seen[string(template.Append(nil, ID{3, uint64(i) % 100, uint64(i) / 100}))]++
		}
		if len(seen) != c.kinds {
			t.Errorf("%s gives %d different texts, want %d", c.text, len(seen), c.kinds)
		}
		for text, n := range seen {
			if n < times*8/10 || n > times*12/10 { // some 9 standard deviations
				t.Errorf("%s gives %q %d times of %d, want about %d", c.text, text, n, c.kinds*times, times)
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

// TestMarker has the largest numbers that a marker tells apart.
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
