package hub

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
)

// parseInParts parses an input that arrives in parts, and formats its commands and the final error. Like a connection,
// it parses each command from its beginning with more input each time.
func parseInParts(t *testing.T, in string, limits commandLimits, partSize int) string {
	var b strings.Builder
	r := commandReader{commandLimits: limits}
	var at parseProgress
	var rest []byte
	for in != "" {
		n := min(partSize, len(in))
		rest, in = append(rest, in[:n]...), in[n:]
		for len(rest) > 0 {
			before := at
			n, err := r.parseOrResumeCommand(rest, &at)
			if err != nil {
				fmt.Fprintf(&b, "%v", err)
				return b.String()
			}
			if n == 0 {
				if at.pos < before.pos {
					t.Fatalf("the reader was at %d of the command and is at %d", before.pos, at.pos)
				}
				if len(rest) > limits.maxBytes {
					t.Fatalf("%d bytes are kept of a command, at most %d are allowed", len(rest), limits.maxBytes)
				}
				break
			}
			if at != (parseProgress{}) {
				t.Fatalf("behind a command the reader is at %v", at)
			}
			fmt.Fprintf(&b, "%q ", r.args)
			rest = rest[n:]
		}
	}
	if len(rest) > 0 {
		b.WriteString("<nil>")
	}
	return b.String()
}

const wrong = "hub: the client violated the Redis protocol: "

// parseCases are inputs and their results with a limit of 1999 bytes.
var parseCases = []struct{ in, want string }{
	{"*2\r\n$4\r\nPING\r\n$0\r\n\r\n", `["PING" ""] `},
	{"*2\r\n$1\r\n\r\r\n$2\r\n\r\n\r\n", `["\r" "\r\n"] `},
	{"*0\r\n*-1\r\n*1\r\n$1\r\na\r\n", `[] [] ["a"] `},
	{"PING\r\nPING\n\r\n \t\n", `["PING"] ["PING"] [] [] `},
	{"*", "<nil>"},
	{"*1\r", "<nil>"},
	{"*1\r\n$1\r\na\r\nPING", `["a"] <nil>`},

	{"*\r\n", wrong + "invalid multibulk length"},
	{"*+1\r\n", wrong + "invalid multibulk length"},
	{"*1048577\r\n", wrong + "invalid multibulk length"},
	{"*" + strings.Repeat("1", 40), wrong + "invalid multibulk length"},
	{"*1\r\nPING\r\n", wrong + "expected '$', got 'P'"},
	{"*1\r\n$-1\r\n", wrong + "invalid bulk length"},
	{"*1\r\n$1990\r\n", wrong + "a command of at least 2003 bytes; at most 1999 are allowed"},
	{"*400\r\n", wrong + "a command of at least 2406 bytes; at most 1999 are allowed"},
	{"*1\r\n$1\r\nab\r\n", wrong + "expected CRLF after a bulk string"},
	{strings.Repeat("a", 1998) + "\n", `["` + strings.Repeat("a", 1998) + `"] `},
	{strings.Repeat("a", 1999) + "\n", wrong + "too big inline request"},

	{`a "b c" 'd e'` + "\n", `["a" "b c" "d e"] `},
	{`"" ''` + "\r\n", `["" ""] `},
	{`"\x41\x4g\n\r\t\a\b\"\\\q"` + "\n", `["Ax4g\n\r\t\a\b\"\\q"] `},
	{`'\'\n"'` + "\n", `["'\\n\""] `},
	{`a"b"` + "\n", `["ab"] `},
	{`"a" "` + "\n", wrong + "unbalanced quotes in request"},
	{`"a\` + "\n", wrong + "unbalanced quotes in request"},
}

func TestParseCommand(t *testing.T) {
	s := newCommandLimits(1999, false)
	for _, row := range parseCases {
		for part := 1; part <= len(row.in); part++ {
			if got := parseInParts(t, row.in, s, part); got != row.want {
				t.Fatalf("%.60q in parts of %d bytes is read as\n%.200s\nwant\n%.200s", row.in, part, got, row.want)
			}
		}
	}
}

// TestParseByteByByte parses a command byte by byte and checks that arguments are parsed twice at most.
func TestParseByteByByte(t *testing.T) {
	const n = 100_000
	in := []byte("*100000\r\n" + strings.Repeat("$0\r\n\r\n", n))
	r := commandReader{commandLimits: newCommandLimits(1<<20, false)}
	var at parseProgress
	read := 0
	for i := range in {
		size, err := r.parseOrResumeCommand(in[:i+1], &at)
		if err != nil || size > 0 != (i == len(in)-1) {
			t.Fatalf("behind %d of %d bytes: %d, %v", i+1, len(in), size, err)
		}
		read += len(r.args)
	}
	if len(r.args) != n || read > 2*n {
		t.Errorf("%d arguments; %d were read for them, want at most %d", len(r.args), read, 2*n)
	}
	line := bytes.Repeat([]byte("a"), 60_000)
	for i := range line {
		if _, err := r.parseOrResumeCommand(line[:i+1], &at); err != nil || int(at.pos) != i+1 {
			t.Fatalf("behind %d bytes of a line the reader is at %d, %v", i+1, at.pos, err)
		}
	}
}

// FuzzParseCommand checks that the result does not depend on how the input is split.
func FuzzParseCommand(f *testing.F) {
	for _, row := range parseCases {
		f.Add(row.in, 3)
	}
	f.Fuzz(func(t *testing.T, in string, part int) {
		for _, stranger := range []bool{false, true} {
			s := newCommandLimits(1999, stranger)
			whole := parseInParts(t, in, s, len(in))
			for _, part := range []int{1, 1 + max(0, part)%2000} {
				if got := parseInParts(t, in, s, part); got != whole {
					t.Fatalf("in parts of %d bytes\n%.300s\nas a whole\n%.300s", part, got, whole)
				}
			}
		}
	})
}

func TestDetectHTTP(t *testing.T) {
	for in, want := range map[string][2]bool{
		"G": {false, false}, "GET": {false, false}, "GET /": {true, true}, "GET /ws HTTP/1.1": {true, true},
		"GET a": {false, true}, "get /": {false, true}, "POST /": {true, true}, "PU": {false, false}, "PUBLISH": {false, true},
		"HEAD / ": {true, true}, "OPTIONS /": {true, true}, "DELETE /": {true, true}, "PUT /": {true, true}, "\r": {false, true},
	} {
		isHTTP, sure := detectHTTP([]byte(in))
		if got := [2]bool{isHTTP, sure}; got != want {
			t.Errorf("%q: HTTP, sure: %v, want %v", in, got, want)
		}
	}
}

// TestCommandsAndRights checks that ACL rules know every command.
func TestCommandsAndRights(t *testing.T) {
	var all func(map[string]*command)
	all = func(m map[string]*command) {
		for name, c := range m {
			if last := c.name[strings.Index(c.name, "|")+1:]; last != name || len(name) > maxCommandNameBytes {
				t.Errorf("%s is found as %s", c.name, name)
			}
			all(c.subcommands)
			if c.run != nil && !c.beforeAuth && (aclCategories(c.name) == nil || commandBit[c.name] == 0) {
				t.Errorf("%s is not among commandNames", c.name)
			}
		}
	}
	all(commands)
	if len(commandNames) > 63 {
		t.Errorf("%d commands are more than a selector has bits", len(commandNames))
	}
	for _, c := range commandNames {
		name, sub, _ := strings.Cut(c.name, "|")
		if found := commands[name]; found == nil || sub != "" && found.subcommands[sub] == nil {
			t.Errorf("%s of commandNames is no command", c.name)
		}
	}
}
