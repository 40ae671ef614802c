package hub_test

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// TestTranscripts checks that the hub replies like redis-server.
func TestTranscripts(t *testing.T) {
	forEachTranscript(t, func(t *testing.T, s *transcript) {
		h := new(hub.Hub)
		if s.users != nil {
			var err error
			h.Users, err = hub.ReadUsers(strings.NewReader(strings.Join(s.users, "\n") + "\n"))
			testkit.RequireNoError(t, err)
		}
		srv := &tcp.Server{Handler: h.Handler()}
		addr, _ := testserver.Start(t, srv)
		for _, c := range s.cases {
			c.runAllModes(t, true, func(t testing.TB) string {
				testkit.WaitFor(t, "the connections of the case before have closed", func() bool { return srv.Stats().Open == 0 })
				return addr
			})
		}
	})
}

// TestRedisServer checks the transcripts against redis-server.
func TestRedisServer(t *testing.T) {
	version, err := exec.Command("redis-server", "--version").Output()
	if err != nil {
		t.Skip("there is no redis-server; install Debian's package redis-server:", err)
	}
	if !strings.Contains(string(version), "v=7.0.") {
		t.Skipf("the transcripts are of version 7.0, this is %s", version)
	}
	forEachTranscript(t, func(t *testing.T, s *transcript) {
		addr := startRedis(t, s.users)
		for _, c := range s.cases {
			c.runAllModes(t, false, func(testing.TB) string { return addr })
		}
	})
}

// startRedis starts redis-server with users and returns its Unix socket. It stops with the test.
func startRedis(t *testing.T, users []string) string {
	dir := t.TempDir()
	socket, acl := filepath.Join(dir, "s"), filepath.Join(dir, "users.acl")
	testkit.RequireNoError(t, os.WriteFile(acl, []byte(strings.Join(users, "\n")+"\n"), 0o600))
	testkit.Start(t, exec.Command("redis-server", "--port", "0", "--unixsocket", socket, "--save", "", "--dir", dir, "--aclfile", acl))
	testkit.WaitFor(t, "redis-server listens", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	return socket
}

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
	users []string
	cases []*transcriptCase
}

type transcriptCase struct {
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

func forEachTranscript(t *testing.T, do func(*testing.T, *transcript)) {
	files, err := filepath.Glob("testdata/redis/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			testkit.RequireNoError(t, err)
			s := new(transcript)
			for i, line := range strings.Split(string(text), "\n") {
				if err := s.parseLine(line); err != nil {
					t.Fatalf("%s:%d: %v: %s", file, i+1, err, line)
				}
			}
			do(t, s)
		})
	}
}

var lineForm = regexp.MustCompile(`^([a-z]?)([23]?)(>>?|<~?|\^~?) (.*)$`)

func (s *transcript) parseLine(line string) (err error) {
	if line == "" || strings.HasPrefix(line, "#") {
		return nil
	}
	if strings.HasPrefix(line, "user ") {
		s.users = append(s.users, line)
		return nil
	}
	if name, ok := strings.CutPrefix(line, "== "); ok {
		s.cases = append(s.cases, &transcriptCase{name: name})
		return nil
	}
	m := lineForm.FindStringSubmatch(line)
	if m == nil || len(s.cases) == 0 {
		return errors.New("not a line of a transcript")
	}
	c := s.cases[len(s.cases)-1]
	conn, sign, rest := cmp.Or(m[1], "a"), m[3], m[4]
	if sign[0] == '>' {
		t := &caseRequest{conn: conn, line: line}
		t.bytes, err = encodeRequest(sign, rest)
		c.requests = append(c.requests, t)
		return err
	}
	w := expectedValue{text: rest}
	if strings.HasSuffix(sign, "~") {
		if w.regexp, err = regexp.Compile(`(?s)^(?:` + rest + `)$`); err != nil {
			return err
		}
	}
	t := c.requests[len(c.requests)-1]
	if sign[0] == '^' {
		t.answers[len(t.answers)-1].hubWant = &w
		return nil
	}
	resp, _ := strconv.Atoi(m[2])
	t.answers = append(t.answers, expectedReply{conn: conn, resp: resp, want: w})
	return nil
}

var wordForm = regexp.MustCompile(`"(?:[^"\\]|\\.)*"|\S+`)

// encodeRequest unescapes the bytes of a line with >>. It encodes the words of one with >, quoted if they contain
// spaces, as an array of bulk strings.
func encodeRequest(sign, line string) ([]byte, error) {
	if sign == ">>" {
		raw, err := strconv.Unquote(`"` + strings.ReplaceAll(line, `"`, `\"`) + `"`)
		return []byte(raw), err
	}
	words := wordForm.FindAllString(line, -1)
	for i, word := range words {
		if word[0] == '"' {
			var err error
			if words[i], err = strconv.Unquote(word); err != nil {
				return nil, err
			}
		}
	}
	return []byte(testkit.RESPCommand(words...)), nil
}

type caseConns struct {
	t    testing.TB
	addr string
	resp int
	open map[string]*testkit.Conn
}

func (cs *caseConns) conn(name string) *testkit.Conn {
	cs.t.Helper()
	if c := cs.open[name]; c != nil {
		return c
	}
	c := testkit.Dial(cs.t, cs.addr)
	cs.open[name] = c
	if cs.resp == 3 {
		c.Send("HELLO 3\r\n")
		v, err := testkit.ReadRESP(c.R)
		testkit.RequireNoError(cs.t, err)
		// A server that requires a password says so; the case begins there.
		if v[0] != '%' && !strings.HasPrefix(v, "-NOAUTH") {
			cs.t.Fatalf("HELLO 3 is answered with %q", v)
		}
	}
	return c
}

// closeAll ends all connections and fails the test if further output arrives.
func (cs *caseConns) closeAll() {
	cs.t.Helper()
	for name, c := range cs.open {
		if !cs.t.Failed() {
			c.CloseWrite()
			if rest, _ := io.ReadAll(c.R); len(rest) > 0 {
				cs.t.Errorf("connection %s: more answers than expected: %s", name, escapeText(string(rest)))
			}
		}
		c.Close()
	}
}

// readValue reads the next value of a connection, closed at the end.
func (cs *caseConns) readValue(conn string) (string, error) {
	cs.t.Helper()
	v, err := testkit.ReadRESP(cs.conn(conn).R)
	if v == "" && (err == io.EOF || testkit.IsReset(err)) { // reset if input was left unread
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

// runAllModes runs a case with both protocol versions in each write mode, each time on the server at address.
func (e *transcriptCase) runAllModes(t *testing.T, hub bool, address func(testing.TB) string) {
	usesMore := slices.ContainsFunc(e.requests, func(r *caseRequest) bool { return r.conn != "a" })
	for _, how := range []writeMode{whole, bytewise, pipelined} {
		if how == pipelined && usesMore {
			continue
		}
		for resp := 2; resp <= 3; resp++ {
			t.Run(e.name+"/"+string(how)+"/RESP"+strconv.Itoa(resp), func(t *testing.T) {
				e.runCase(t, address(t), resp, how, hub)
			})
		}
	}
}

func (e *transcriptCase) runCase(t *testing.T, addr string, resp int, mode writeMode, hub bool) {
	cs := &caseConns{t: t, addr: addr, resp: resp, open: map[string]*testkit.Conn{}}
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
			got, err := cs.readValue(a.conn)
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
