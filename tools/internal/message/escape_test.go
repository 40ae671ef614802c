package message

import (
	"strings"
	"testing"
)

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
