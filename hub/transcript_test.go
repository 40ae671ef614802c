package hub_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// A transcript is a file of testdata/redis: what clients send to a server and, to the
// byte, what redis-server answers. Its lines are:
//
//	# a comment
//	user NAME RULES              a line of the server's file of users
//	== NAME                      a case: on new connections
//	> WORD "A WORD"              a command, sent as an array of bulk strings
//	>> BYTES                     bytes, sent as they are
//	< VALUE                      a value that comes back
//	<~ REGEXP                    a value that matches
//	< closed                     the server closes the connection
//	^ VALUE, ^~ REGEXP           what the hub answers in place of the value before, on purpose
//	^ nothing                    the hub does not send the value before
//
// Bytes are escaped as in Go's strings. A case has connections a, b, c ...: a letter
// before the sign says which, none is a. Each case runs twice, after HELLO 2 and after
// HELLO 3; a digit 2 or 3 before the sign of an answer restricts it to one of them.
// The next request is made when all answers to the one before have come; those that have
// to be in one write are one line of bytes.
type transcript struct {
	comment []string // what the file begins with, before an empty line
	users   []string
	cases   []*exchange
}

// exchange is a case.
type exchange struct {
	comment []string
	name    string
	turns   []*turn
}

// turn is a request with all that comes back, on any connection.
type turn struct {
	conn    string // a letter
	line    string // as it stands in the file
	bytes   []byte
	answers []answer
}

type answer struct {
	conn    string
	resp    int // 2 or 3, or 0 for both
	value   want
	instead *want // of the hub
}

// want is what one value has to be.
type want struct {
	regexp *regexp.Regexp
	text   string // escaped, or the regexp's
}

func (w want) matches(value string) bool {
	if w.regexp != nil {
		return w.regexp.MatchString(value)
	}
	return w.text == escape(value)
}

const (
	closed  = "closed"  // the value that stands for the end of a connection
	nothing = "nothing" // in place of a value: it does not come
)

func escape(s string) string {
	if s == closed {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

func unescape(s string) (string, error) {
	return strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`)
}

var lineForm = regexp.MustCompile(`^([a-z]?)([23]?)(>>?|<~?|\^~?) (.*)$`)

func parseTranscript(file string) (*transcript, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := new(transcript)
	var comment []string
	for i, line := range strings.Split(string(text), "\n") {
		fail := func(why any) (*transcript, error) {
			return nil, fmt.Errorf("%s:%d: %v: %s", file, i+1, why, line)
		}
		if line == "" {
			if len(s.cases) == 0 {
				s.comment, comment = append(s.comment, comment...), nil
			}
			continue
		}
		if strings.HasPrefix(line, "#") {
			comment = append(comment, line)
			continue
		}
		if strings.HasPrefix(line, "user ") {
			s.users = append(s.users, line)
			continue
		}
		if name, ok := strings.CutPrefix(line, "== "); ok {
			s.cases = append(s.cases, &exchange{comment: comment, name: name})
			comment = nil
			continue
		}
		m := lineForm.FindStringSubmatch(line)
		if m == nil || len(s.cases) == 0 {
			return fail("not a line of a transcript")
		}
		c := s.cases[len(s.cases)-1]
		conn, sign, rest := m[1], m[3], m[4]
		if conn == "" {
			conn = "a"
		}
		if sign[0] == '>' {
			t := &turn{conn: conn, line: line}
			if sign == ">" {
				t.bytes, err = command(rest)
			} else {
				var raw string
				raw, err = unescape(rest)
				t.bytes = []byte(raw)
			}
			if err != nil {
				return fail(err)
			}
			c.turns = append(c.turns, t)
			continue
		}
		if len(c.turns) == 0 {
			return fail("an answer before a request")
		}
		w := want{text: rest}
		if strings.HasSuffix(sign, "~") {
			if w.regexp, err = regexp.Compile(`(?s)^(?:` + rest + `)$`); err != nil {
				return fail(err)
			}
		}
		t := c.turns[len(c.turns)-1]
		if sign[0] == '^' {
			if len(t.answers) == 0 {
				return fail("no answer to replace")
			}
			t.answers[len(t.answers)-1].instead = &w
			continue
		}
		resp, _ := strconv.Atoi(m[2])
		t.answers = append(t.answers, answer{conn: conn, resp: resp, value: w})
	}
	return s, nil
}

// command is words, quoted where they have spaces, as an array of bulk strings.
func command(line string) ([]byte, error) {
	var words []string
	for line = strings.TrimLeft(line, " "); line != ""; line = strings.TrimLeft(line, " ") {
		var word string
		if line[0] == '"' {
			quoted, err := strconv.QuotedPrefix(line)
			if err != nil {
				return nil, err
			}
			if word, err = strconv.Unquote(quoted); err != nil {
				return nil, err
			}
			line = line[len(quoted):]
		} else {
			word, line, _ = strings.Cut(line, " ")
		}
		words = append(words, word)
	}
	b := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b, nil
}

// conns are the connections of a case, made when they are first used.
type conns struct {
	t    testing.TB
	addr string
	resp int
	open map[string]*clientConn
}

type clientConn struct {
	*testkit.Conn
	done bool
}

func (cs *conns) get(name string) *clientConn {
	cs.t.Helper()
	if c := cs.open[name]; c != nil {
		return c
	}
	c := &clientConn{Conn: testkit.Dial(cs.t, cs.addr)}
	cs.open[name] = c
	if cs.resp == 3 {
		c.Send("HELLO 3\r\n")
		v, err := testkit.ReadRESP(c.R)
		if err != nil {
			cs.t.Fatal(err)
		}
		// A server that wants a password first says so; the case begins there.
		if v[0] != '%' && !strings.HasPrefix(v, "-NOAUTH") {
			cs.t.Fatalf("HELLO 3 is answered with %q", v)
		}
	}
	return c
}

// names are those of the connections that there are.
func (cs *conns) names() []string {
	var names []string
	for n := range cs.open {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// end says that no more requests come, and wants the server's end with nothing before it.
func (cs *conns) end() {
	cs.t.Helper()
	for _, name := range cs.names() {
		c := cs.open[name]
		if !c.done && !cs.t.Failed() {
			c.CloseWrite()
			if rest, _ := io.ReadAll(c.R); len(rest) > 0 {
				cs.t.Errorf("connection %s: more answers than expected: %s", name, escape(string(rest)))
			}
		}
		c.Close()
	}
}

// value reads the connection's next value; its end is one as well.
func (c *clientConn) value() (string, error) {
	v, err := testkit.ReadRESP(c.R)
	if v == "" && (err == io.EOF || testkit.IsReset(err)) { // reset where bytes were not read any more
		c.done = true
		return closed, nil
	}
	return v, err
}

// A chopping is how the bytes of a case's requests are written.
type chopping string

const (
	whole     chopping = "whole"     // each request in one write
	bytewise  chopping = "bytewise"  // each byte in a write of its own
	pipelined chopping = "pipelined" // all of the case's requests in one write; of one connection only
)

// replay runs a case and compares what comes back.
func (e *exchange) replay(t *testing.T, addr string, resp int, how chopping, hub bool) {
	cs := &conns{t: t, addr: addr, resp: resp, open: map[string]*clientConn{}}
	defer cs.end()
	turns := e.turns
	if how == pipelined {
		all := &turn{conn: "a", line: "all"}
		for _, t := range turns {
			all.bytes = append(all.bytes, t.bytes...)
			all.answers = append(all.answers, t.answers...)
		}
		turns = []*turn{all}
	}
	for _, turn := range turns {
		turn.send(cs, how)
		for _, a := range turn.answers {
			w := a.value
			if hub && a.instead != nil {
				w = *a.instead
			}
			if a.resp != 0 && a.resp != resp || w.text == nothing {
				continue
			}
			got, err := cs.get(a.conn).value()
			if err != nil || !w.matches(got) {
				t.Fatalf("after %s\nconnection %s has %s, error %v\nwant %s", turn.line, a.conn, escape(got), err, w.text)
			}
		}
	}
}

func (tu *turn) send(cs *conns, how chopping) {
	step := max(len(tu.bytes), 1)
	if how == bytewise {
		step = 1
	}
	c := cs.get(tu.conn)
	for part := range slices.Chunk(tu.bytes, step) {
		if _, err := c.Write(part); err != nil {
			return // the server has closed; its answers say whether it should have
		}
	}
}

// alone says whether all requests and answers are of one connection.
func (e *exchange) alone() bool {
	for _, t := range e.turns {
		if t.conn != "a" {
			return false
		}
	}
	return true
}

// record has a server answer, and takes its answers in place of those that stand there.
// A regexp stays where it matches.
func (e *exchange) record(t *testing.T, addr string) {
	answers := make([][2][]answer, len(e.turns))
	for p := range 2 {
		cs := &conns{t: t, addr: addr, resp: p + 2, open: map[string]*clientConn{}}
		for i, turn := range e.turns {
			turn.send(cs, whole)
			for _, name := range cs.names() {
				answers[i][p] = append(answers[i][p], cs.open[name].heard(t, name, p+2)...)
			}
		}
		cs.end()
	}
	for i, turn := range e.turns {
		turn.merge(answers[i])
	}
}

// quiet is how long a server that is recorded sends nothing when it has said all.
const quiet = 50 * time.Millisecond

func (c *clientConn) heard(t *testing.T, name string, resp int) []answer {
	var all []answer
	for !c.done {
		c.SetReadDeadline(time.Now().Add(quiet))
		v, err := c.value()
		c.SetReadDeadline(time.Now().Add(testkit.Timeout))
		if err != nil {
			if v != "" || !os.IsTimeout(err) {
				t.Fatalf("connection %s: %q, %v", name, v, err)
			}
			break
		}
		all = append(all, answer{conn: name, resp: resp, value: heardAs(v)})
	}
	return all
}

var greeting = regexp.MustCompile(`(?s)(.*\$7\r\nversion\r\n).*(\$5\r\nproto\r\n:[23]\r\n\$2\r\nid\r\n:)[0-9]+(.*)`)

// heardAs is a value as it is to come again: the answer to HELLO has another ID each time,
// and a server's version.
func heardAs(value string) want {
	m := greeting.FindStringSubmatch(value)
	if m == nil {
		return want{text: escape(value)}
	}
	text := regexp.QuoteMeta(m[1]) + `\$[0-9]+\r\n[0-9.]+\r\n` + regexp.QuoteMeta(m[2]) + `[0-9]+` + regexp.QuoteMeta(m[3])
	text = strings.ReplaceAll(text, "\r\n", `\r\n`)
	return want{text: text, regexp: regexp.MustCompile(`(?s)^(?:` + text + `)$`)}
}

// merge sets the answers: those of both protocols that are the same become one.
func (tu *turn) merge(heard [2][]answer) {
	before := tu.answers
	tu.answers = nil
	var names []string
	for _, a := range slices.Concat(heard[0], heard[1]) {
		if !slices.Contains(names, a.conn) {
			names = append(names, a.conn)
		}
	}
	slices.Sort(names)
	of := func(all []answer, conn string, resp int) (some []answer) {
		for _, a := range all {
			if a.conn == conn && (a.resp == 0 || a.resp == resp) {
				some = append(some, a)
			}
		}
		return some
	}
	for _, name := range names {
		two, three := of(heard[0], name, 2), of(heard[1], name, 3)
		keep(two, of(before, name, 2))
		keep(three, of(before, name, 3))
		for i := range max(len(two), len(three)) {
			if i < len(two) && i < len(three) && two[i].same(three[i]) {
				two[i].resp = 0
				tu.answers = append(tu.answers, two[i])
				continue
			}
			if i < len(two) {
				tu.answers = append(tu.answers, two[i])
			}
			if i < len(three) {
				tu.answers = append(tu.answers, three[i])
			}
		}
	}
}

func (a answer) same(b answer) bool {
	return a.value.text == b.value.text && (a.instead == nil) == (b.instead == nil) && (a.instead == nil || a.instead.text == b.instead.text)
}

func keep(now, before []answer) {
	for i := range min(len(now), len(before)) {
		if raw, err := unescape(now[i].value.text); err == nil && before[i].value.matches(raw) {
			now[i].value = before[i].value
		}
		now[i].instead = before[i].instead
	}
}

func (s *transcript) bytes() []byte {
	var b bytes.Buffer
	for _, lines := range [][]string{s.comment, s.users} {
		if b.Len() > 0 && len(lines) > 0 {
			b.WriteByte('\n')
		}
		for _, l := range lines {
			fmt.Fprintln(&b, l)
		}
	}
	for _, c := range s.cases {
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		for _, l := range c.comment {
			fmt.Fprintln(&b, l)
		}
		fmt.Fprintln(&b, "==", c.name)
		for _, t := range c.turns {
			fmt.Fprintln(&b, t.line)
			for _, a := range t.answers {
				a.print(&b)
			}
		}
	}
	return b.Bytes()
}

func (a answer) print(b *bytes.Buffer) {
	label := strings.TrimPrefix(a.conn, "a")
	if a.resp != 0 {
		label += strconv.Itoa(a.resp)
	}
	line := func(sign string, w want) {
		if w.regexp != nil {
			sign += "~"
		}
		fmt.Fprintf(b, "%s%s %s\n", label, sign, w.text)
	}
	line("<", a.value)
	if a.instead != nil {
		line("^", *a.instead)
	}
}
