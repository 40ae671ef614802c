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

// transcript is a file of testdata/redis: requests, and to the byte the replies of redis-server. Its lines are:
//
//	# a comment
//	user NAME RULES              a line of the server's ACL file
//	== NAME                      a case, with new connections
//	> WORD "A WORD"              a command, sent as an array of bulk strings
//	>> BYTES                     bytes, sent as they are
//	< VALUE                      an expected value
//	<~ REGEXP                    a regular expression for a value
//	< closed                     the server closes the connection
//	^ VALUE, ^~ REGEXP           what the hub deliberately replies instead of the value above
//	^ nothing                    the hub does not send the value above
//
// Bytes are escaped as in Go strings. A letter before the sign selects one of the case's connections; the default
// is a. Each case runs after HELLO 2 and after HELLO 3; a digit 2 or 3 before a reply's sign restricts it to one.
// A request is sent after all replies to the previous one; requests for a single write must be one line of bytes.
type transcript struct {
	comment []string // before the first empty line
	users   []string
	cases   []*transcriptCase
}

type transcriptCase struct {
	comment  []string
	name     string
	requests []*caseRequest
}

// caseRequest is a request and the replies on all connections.
type caseRequest struct {
	conn    string // a letter
	line    string // as in the file
	bytes   []byte
	answers []expectedReply
}

type expectedReply struct {
	conn    string
	resp    int // 0 for both
	want    expectedValue
	hubWant *expectedValue // the hub's deliberate deviation
}

type expectedValue struct {
	regexp *regexp.Regexp
	text   string // escaped, or a regular expression
}

func (w expectedValue) matches(value string) bool {
	if w.regexp != nil {
		return w.regexp.MatchString(value)
	}
	return w.text == escapeText(value)
}

const (
	closed  = "closed"  // stands for the end of a connection
	nothing = "nothing" // stands for no value
)

func escapeText(s string) string {
	if s == closed {
		return s
	}
	q := strconv.Quote(s)
	return strings.ReplaceAll(q[1:len(q)-1], `\"`, `"`)
}

func unescapeText(s string) (string, error) {
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
			s.cases = append(s.cases, &transcriptCase{comment: comment, name: name})
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
			t := &caseRequest{conn: conn, line: line}
			if sign == ">" {
				t.bytes, err = encodeCommand(rest)
			} else {
				var raw string
				raw, err = unescapeText(rest)
				t.bytes = []byte(raw)
			}
			if err != nil {
				return fail(err)
			}
			c.requests = append(c.requests, t)
			continue
		}
		if len(c.requests) == 0 {
			return fail("an answer before a request")
		}
		w := expectedValue{text: rest}
		if strings.HasSuffix(sign, "~") {
			if w.regexp, err = regexp.Compile(`(?s)^(?:` + rest + `)$`); err != nil {
				return fail(err)
			}
		}
		t := c.requests[len(c.requests)-1]
		if sign[0] == '^' {
			if len(t.answers) == 0 {
				return fail("no answer to replace")
			}
			t.answers[len(t.answers)-1].hubWant = &w
			continue
		}
		resp, _ := strconv.Atoi(m[2])
		t.answers = append(t.answers, expectedReply{conn: conn, resp: resp, want: w})
	}
	return s, nil
}

// encodeCommand encodes words, quoted if they contain spaces, as an array of bulk strings.
func encodeCommand(line string) ([]byte, error) {
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

type caseConns struct {
	t    testing.TB
	addr string
	resp int
	open map[string]*clientConn
}

type clientConn struct {
	*testkit.Conn
	done bool
}

func (cs *caseConns) conn(name string) *clientConn {
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
		// A server that requires a password says so; the case begins there.
		if v[0] != '%' && !strings.HasPrefix(v, "-NOAUTH") {
			cs.t.Fatalf("HELLO 3 is answered with %q", v)
		}
	}
	return c
}

func (cs *caseConns) openNames() []string {
	var names []string
	for n := range cs.open {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// closeAll ends all connections and fails the test if further output arrives.
func (cs *caseConns) closeAll() {
	cs.t.Helper()
	for _, name := range cs.openNames() {
		c := cs.open[name]
		if !c.done && !cs.t.Failed() {
			c.CloseWrite()
			if rest, _ := io.ReadAll(c.R); len(rest) > 0 {
				cs.t.Errorf("connection %s: more answers than expected: %s", name, escapeText(string(rest)))
			}
		}
		c.Close()
	}
}

// readValue reads the next value, closed at the end.
func (c *clientConn) readValue() (string, error) {
	v, err := testkit.ReadRESP(c.R)
	if v == "" && (err == io.EOF || testkit.IsReset(err)) { // reset if input was left unread
		c.done = true
		return closed, nil
	}
	return v, err
}

// writeMode is how the requests of a case are written.
type writeMode string

const (
	whole     writeMode = "whole"     // each request at once
	bytewise  writeMode = "bytewise"  // each byte separately
	pipelined writeMode = "pipelined" // all requests at once; for a single connection
)

func (e *transcriptCase) runCase(t *testing.T, addr string, resp int, mode writeMode, hub bool) {
	cs := &caseConns{t: t, addr: addr, resp: resp, open: map[string]*clientConn{}}
	defer cs.closeAll()
	requests := e.requests
	if mode == pipelined {
		all := &caseRequest{conn: "a", line: "all"}
		for _, t := range requests {
			all.bytes = append(all.bytes, t.bytes...)
			all.answers = append(all.answers, t.answers...)
		}
		requests = []*caseRequest{all}
	}
	for _, turn := range requests {
		turn.send(cs, mode)
		for _, a := range turn.answers {
			w := a.want
			if hub && a.hubWant != nil {
				w = *a.hubWant
			}
			if a.resp != 0 && a.resp != resp || w.text == nothing {
				continue
			}
			got, err := cs.conn(a.conn).readValue()
			if err != nil || !w.matches(got) {
				t.Fatalf("after %s\nconnection %s has %s, error %v\nwant %s", turn.line, a.conn, escapeText(got), err, w.text)
			}
		}
	}
}

func (tu *caseRequest) send(cs *caseConns, mode writeMode) {
	step := max(len(tu.bytes), 1)
	if mode == bytewise {
		step = 1
	}
	c := cs.conn(tu.conn)
	for part := range slices.Chunk(tu.bytes, step) {
		if _, err := c.Write(part); err != nil {
			return // closed; the replies show whether that is expected
		}
	}
}

func (e *transcriptCase) usesOneConn() bool {
	for _, t := range e.requests {
		if t.conn != "a" {
			return false
		}
	}
	return true
}

// recordReplies replaces the expected replies by those of a server, except regular expressions that match.
func (e *transcriptCase) recordReplies(t *testing.T, addr string) {
	answers := make([][2][]expectedReply, len(e.requests))
	for p := range 2 {
		cs := &caseConns{t: t, addr: addr, resp: p + 2, open: map[string]*clientConn{}}
		for i, turn := range e.requests {
			turn.send(cs, whole)
			for _, name := range cs.openNames() {
				answers[i][p] = append(answers[i][p], cs.open[name].readReplies(t, name, p+2)...)
			}
		}
		cs.closeAll()
	}
	for i, turn := range e.requests {
		turn.mergeReplies(answers[i])
	}
}

// recordQuietTime without output marks the end of a server's replies.
const recordQuietTime = 50 * time.Millisecond

func (c *clientConn) readReplies(t *testing.T, name string, resp int) []expectedReply {
	var all []expectedReply
	for !c.done {
		c.SetReadDeadline(time.Now().Add(recordQuietTime))
		v, err := c.readValue()
		c.SetReadDeadline(time.Now().Add(testkit.Timeout))
		if err != nil {
			if v != "" || !os.IsTimeout(err) {
				t.Fatalf("connection %s: %q, %v", name, v, err)
			}
			break
		}
		all = append(all, expectedReply{conn: name, resp: resp, want: toExpectedValue(v)})
	}
	return all
}

var greeting = regexp.MustCompile(`(?s)(.*\$7\r\nversion\r\n).*(\$5\r\nproto\r\n:[23]\r\n\$2\r\nid\r\n:)[0-9]+(.*)`)

// toExpectedValue returns the expected form of a reply: that to HELLO varies in ID and version.
func toExpectedValue(value string) expectedValue {
	m := greeting.FindStringSubmatch(value)
	if m == nil {
		return expectedValue{text: escapeText(value)}
	}
	text := regexp.QuoteMeta(m[1]) + `\$[0-9]+\r\n[0-9.]+\r\n` + regexp.QuoteMeta(m[2]) + `[0-9]+` + regexp.QuoteMeta(m[3])
	text = strings.ReplaceAll(text, "\r\n", `\r\n`)
	return expectedValue{text: text, regexp: regexp.MustCompile(`(?s)^(?:` + text + `)$`)}
}

// mergeReplies sets the expected replies, merging those that are equal for both protocol versions.
func (tu *caseRequest) mergeReplies(byProtocol [2][]expectedReply) {
	before := tu.answers
	tu.answers = nil
	var names []string
	for _, a := range slices.Concat(byProtocol[0], byProtocol[1]) {
		if !slices.Contains(names, a.conn) {
			names = append(names, a.conn)
		}
	}
	slices.Sort(names)
	of := func(all []expectedReply, conn string, resp int) (some []expectedReply) {
		for _, a := range all {
			if a.conn == conn && (a.resp == 0 || a.resp == resp) {
				some = append(some, a)
			}
		}
		return some
	}
	for _, name := range names {
		two, three := of(byProtocol[0], name, 2), of(byProtocol[1], name, 3)
		keepPreviousExpectations(two, of(before, name, 2))
		keepPreviousExpectations(three, of(before, name, 3))
		for i := range max(len(two), len(three)) {
			if i < len(two) && i < len(three) && two[i].equal(three[i]) {
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

func (a expectedReply) equal(b expectedReply) bool {
	return a.want.text == b.want.text && (a.hubWant == nil) == (b.hubWant == nil) && (a.hubWant == nil || a.hubWant.text == b.hubWant.text)
}

func keepPreviousExpectations(replies, previous []expectedReply) {
	for i := range min(len(replies), len(previous)) {
		if raw, err := unescapeText(replies[i].want.text); err == nil && previous[i].want.matches(raw) {
			replies[i].want = previous[i].want
		}
		replies[i].hubWant = previous[i].hubWant
	}
}

func (s *transcript) encode() []byte {
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
		for _, t := range c.requests {
			fmt.Fprintln(&b, t.line)
			for _, a := range t.answers {
				a.writeTo(&b)
			}
		}
	}
	return b.Bytes()
}

func (a expectedReply) writeTo(b *bytes.Buffer) {
	label := strings.TrimPrefix(a.conn, "a")
	if a.resp != 0 {
		label += strconv.Itoa(a.resp)
	}
	line := func(sign string, w expectedValue) {
		if w.regexp != nil {
			sign += "~"
		}
		fmt.Fprintf(b, "%s%s %s\n", label, sign, w.text)
	}
	line("<", a.want)
	if a.hubWant != nil {
		line("^", *a.hubWant)
	}
}
