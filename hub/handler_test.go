package hub

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

func confirmationRESP2(verb, name string, count int) string {
	return "*3\r\n" + string(appendBulk(appendBulk(nil, verb), name)) + ":" + strconv.Itoa(count) + "\r\n"
}

// confirmationsRESP2 returns the confirmations of names, whose counts start at n and change by step.
func confirmationsRESP2(verb string, names []string, n, step int) string {
	var b strings.Builder
	for i, name := range names {
		b.WriteString(confirmationRESP2(verb, name, n+i*step))
	}
	return b.String()
}

func topicNames(n int) (names []string) {
	for i := range n {
		names = append(names, "topic-"+strconv.Itoa(i))
	}
	return names
}

func serveVirtual(t testing.TB, h *Hub, limits tcp.Limits) *tcptest.Server {
	t.Helper()
	return tcptest.NewServer(t, &tcp.Server{Handler: h.Handler(), Limits: limits})
}

func expectNoSubscriptions(t testing.TB, h *Hub) {
	t.Helper()
	for k := range Kind(kindCount) {
		testkit.WantEqual(t, h.tableForKind(k).count.Load(), 0, "topics of kind %d that are left", k)
		h.EachName(k, func(name string, n int) bool {
			t.Errorf("%q of kind %d is left, with %d subscribers", name, k, n)
			return true
		})
	}
	testkit.WantEqual(t, h.subscriptions.Load(), 0, "subscriptions that are left")
	h.patternIndex.eachMatchingPattern("a", func(p *topic) { t.Errorf("the pattern %q is left in the index", p.name) })
}

func TestProtocolErrors(t *testing.T) {
	h := new(Hub)
	s := serveVirtual(t, h, tcp.Limits{MaxMessage: 1000})
	for in, want := range map[string]struct {
		text string
		why  error
	}{
		"PING\r\n*1\r\n$1001\r\n":            {"+PONG\r\n-ERR Protocol error: a command of at least 1014 bytes; at most 1000 are allowed\r\n", tcp.ErrMessageTooLong},
		"*1\r\n$536870913\r\n":               {"-ERR Protocol error: invalid bulk length\r\n", tcp.ErrMessageTooLong},
		"*1000\r\n":                          {"-ERR Protocol error: a command of at least 6007 bytes; at most 1000 are allowed\r\n", tcp.ErrMessageTooLong},
		strings.Repeat("a", 1000):            {"-ERR Protocol error: too big inline request\r\n", protocolError("too big inline request")},
		"CLIENT REPLY OFF\r\n*x\r\nPING\r\n": {"", protocolError("invalid multibulk length")},
		"SUBSCRIBE a\r\nPING \"\r\nPING\r\n": {confirmationRESP2("subscribe", "a", 1) + "-ERR Protocol error: unbalanced quotes in request\r\n", protocolError("unbalanced quotes in request")},
		"PING\r\nHost: a\r\nPUBLISH a b\r\n": {"+PONG\r\n", errUnexpectedHTTP},
	} {
		p := s.Dial()
		p.Send(in)
		p.Expect(want.text)
		p.ExpectClosed(want.why)
		testkit.WantEqual(t, p.Output(), "", "output in the end")
	}
	testkit.WantEqual(t, h.Stats().Refused.Messages, 3, "commands refused as too long")
	expectNoSubscriptions(t, h)
}

func TestIncompleteCommandHasNoEffect(t *testing.T) {
	h := new(Hub)
	s := serveVirtual(t, h, tcp.Limits{})
	in := testkit.RESPCommand("SUBSCRIBE", "a", "b") + testkit.RESPCommand("PSUBSCRIBE", "c*") + testkit.RESPCommand("SSUBSCRIBE", "d") + "UNSUBSCRIBE a\r\n"
	for n := range len(in) {
		for _, end := range []func(*tcptest.Peer){(*tcptest.Peer).CloseWrite, (*tcptest.Peer).Reset} {
			p := s.Dial()
			if n > 0 {
				p.Send(in[:n])
			}
			end(p)
			if why, ok := p.Closed(); !ok || why != io.EOF && why != syscall.ECONNRESET {
				t.Fatalf("behind %d bytes: closed %v, %v", n, ok, why)
			}
		}
	}
	expectNoSubscriptions(t, h)
}

// TestSubscribeToManyTopics subscribes to more topics in one command than MaxUnsent can confirm. Unread confirmations
// are limited without closing the client.
func TestSubscribeToManyTopics(t *testing.T) {
	const n = 4000
	h := new(Hub)
	srv := &tcp.Server{Handler: h.Handler(), Limits: tcp.Limits{MaxMessage: 1 << 20, MaxUnsent: 16 << 10}}
	s := tcptest.NewServer(t, srv)
	names := topicNames(n)
	for _, word := range []string{"subscribe", "psubscribe", "ssubscribe"} {
		leave := strings.Replace(word, "sub", "unsub", 1)
		p := s.Dial()
		p.StopReading()
		p.Send("PING\r\n" + testkit.RESPCommand(append([]string{word}, names...)...))
		if have := h.subscriptions.Load(); have == 0 || have > n/2 {
			t.Errorf("a client that does not read has %d subscriptions; want some, and not most of %d", have, n)
		}
		if kept := srv.Stats().Buffered; kept > 1<<20 { // the command and MaxUnsent
			t.Errorf("%d bytes are kept for one client", kept)
		}
		p.StartReading()
		p.Expect("+PONG\r\n" + confirmationsRESP2(word, names, 1, 1))
		p.Send(testkit.RESPCommand(append([]string{leave}, names[:n/2]...)...) + "PING\r\n")
		p.Expect(confirmationsRESP2(leave, names[:n/2], n-1, -1) + "*2\r\n$4\r\npong\r\n$0\r\n\r\n")
		p.Send(leave + "\r\n" + leave + "\r\nPING\r\n")
		out := p.Output()
		for _, name := range names[n/2:] {
			if !strings.Contains(out, "\r\n"+name+"\r\n:") {
				t.Fatalf("%s without a name does not confirm %s: %.200q", leave, name, out)
			}
		}
		if !strings.HasSuffix(out, ":0\r\n*3\r\n"+string(appendBulk(nil, leave))+"$-1\r\n:0\r\n+PONG\r\n") {
			t.Errorf("in the end comes %.200q", out[max(0, len(out)-200):])
		}
		expectNoSubscriptions(t, h)
	}
}

// TestLateReaderGetsAllReplies checks that a client which sends much and reads late gets all replies with limited
// memory.
func TestLateReaderGetsAllReplies(t *testing.T) {
	srv := &tcp.Server{Handler: new(Hub).Handler()}
	s := tcptest.NewServer(t, srv)
	for _, command := range []string{testkit.RESPCommand("ECHO", strings.Repeat("x", 1000)), "COMMAND\r\n"} {
		p := s.Dial()
		p.Send("HELLO 3\r\nSUBSCRIBE a\r\n")
		p.Output()
		p.Send(command)
		one := p.Output()
		const n = 2000
		p.StopReading()
		p.Send(strings.Repeat(command, n))
		if kept := srv.Stats().Buffered; kept > 2<<20 || len(one) < 1000 {
			t.Errorf("%d bytes are kept for answers of %d bytes", kept, len(one))
		}
		p.StartReading()
		p.Expect(strings.Repeat(one, n))
	}
}

// TestReplyWithoutSpaceCloses checks that a reply without space closes the connection after earlier replies.
func TestReplyWithoutSpaceCloses(t *testing.T) {
	h := new(Hub)
	s := tcptest.NewServer(t, &tcp.Server{Handler: h.Handler(), SlowConsumer: tcp.DropMessage,
		Limits: tcp.Limits{MaxUnsent: 1000, HighWater: 1000}})
	a, b := s.Dial(), s.Dial()
	a.Send("SUBSCRIBE a\r\n")
	a.Output()
	a.StopReading()
	b.Send(testkit.RESPCommand("PUBLISH", "a", strings.Repeat("x", 900)) + testkit.RESPCommand("PUBLISH", "a", strings.Repeat("y", 900)))
	b.Expect(":1\r\n:0\r\n")
	a.Send(testkit.RESPCommand("PING", strings.Repeat("z", 100)))
	a.StartReading()
	a.ExpectClosed(tcp.ErrFull)
	b.Send("ECHO x\r\nPING " + strings.Repeat("x", 1500) + "\r\n")
	b.ExpectClosed(tcp.ErrTooLarge)
	expectNoSubscriptions(t, h)
}

// TestSubscriptionsEnd checks that a drain closes subscribers without output, and that QUIT ends subscriptions even if
// the peer does not disconnect.
func TestSubscriptionsEnd(t *testing.T) {
	h := new(Hub)
	s := serveVirtual(t, h, tcp.Limits{})
	p := s.Dial()
	p.Send("SUBSCRIBE a\r\nPSUBSCRIBE *\r\nQUIT\r\nPING\r\n")
	p.Expect(confirmationRESP2("subscribe", "a", 1) + confirmationRESP2("psubscribe", "*", 2) + "+OK\r\n")
	expectNoSubscriptions(t, h)
	p.ExpectClosed(nil)
	p = s.Dial()
	p.Send("SUBSCRIBE a\r\n")
	p.Output()
	s.StartDrain()
	p.ExpectClosed(tcp.ErrServerClosed)
	testkit.WantEqual(t, p.Output(), "", "output in the end")
	expectNoSubscriptions(t, h)
}

func TestClientListTooLong(t *testing.T) {
	s := serveVirtual(t, new(Hub), tcp.Limits{MaxUnsent: 4000})
	for range 20 {
		s.Dial().Send("PING\r\n")
	}
	p := s.Dial()
	p.Send("CLIENT LIST\r\nCLIENT LIST ID 1\r\n")
	p.Expect("-ERR the list of 21 clients exceeds 1000 bytes; use TYPE or ID\r\n$")
}

func TestLongTopicListInBackground(t *testing.T) {
	h := new(Hub)
	names := topicNames(maxTopicsOnLoop + 1)
	subscribeNames(t, h, Topic, names...)
	s := serveVirtual(t, h, tcp.Limits{})
	p := s.Dial()
	p.Send("PUBSUB CHANNELS\r\nPUBSUB CHANNELS topic-1000\r\nPING\r\n")
	list := ""
	testkit.WaitFor(t, "the answers behind the list come", func() bool {
		s.Advance(0)
		list += p.Output()
		return strings.HasSuffix(list, "*1\r\n$10\r\ntopic-1000\r\n+PONG\r\n")
	})
	for _, part := range append(names, fmt.Sprint(len(names))) {
		if !strings.Contains(list, part+"\r\n") {
			t.Errorf("the list %.20q is without %s", list, part)
		}
	}
	p = serveVirtual(t, h, tcp.Limits{MaxUnsent: 4000}).Dial()
	p.Send("PUBSUB CHANNELS\r\nPUBSUB CHANNELS topic-1000\r\n")
	p.Expect("-ERR the reply exceeds 1000 bytes; use a pattern that matches fewer topics\r\n*1\r\n$10\r\ntopic-1000\r\n")
}

func TestDrainWaitsForList(t *testing.T) {
	h := new(Hub)
	s := serveVirtual(t, h, tcp.Limits{})
	h.backgroundReplyMu.Lock()
	p := s.Dial()
	p.Send("CLIENT KILL ID 999\r\n")
	s.StartDrain()
	s.Advance(time.Second)
	if why, ok := p.Closed(); ok {
		t.Fatalf("the connection has closed: %v", why)
	}
	h.backgroundReplyMu.Unlock()
	p.Expect(":0\r\n")
	p.ExpectClosed(tcp.ErrServerClosed)
}

type countingHandler struct {
	redisOrHTTPHandler
	calls *int
}

func (h countingHandler) Received(c *tcp.Conn, in []byte) int {
	*h.calls++
	return h.redisOrHTTPHandler.Received(c, in)
}

func TestAuthTimeout(t *testing.T) {
	s := serveVirtual(t, newHubWithUsers("user ann on >secret allchannels +@all\n"), tcp.Limits{})
	stranger, ann := s.Dial(), s.Dial()
	stranger.Send("PING\r\n")
	stranger.Expect("-NOAUTH Authentication required.\r\n")
	ann.Send("AUTH ann secret\r\n")
	ann.Expect("+OK\r\n")
	s.Advance(authTimeout * 9 / 8)
	stranger.ExpectClosed(tcp.ErrDeadline)
	ann.Send("PING\r\nRESET\r\n")
	ann.Expect("+PONG\r\n+RESET\r\n")
	s.Advance(authTimeout * 9 / 8)
	ann.ExpectClosed(tcp.ErrDeadline)
}

// nondeterministic matches inputs whose output varies with time, counters, memory or goroutines.
var nondeterministic = regexp.MustCompile(`(?i)time|info|list|kill|/`)

// FuzzCommands sends arbitrary bytes, whole and in parts. Output must not depend on the parts, and no
// subscription may remain.
func FuzzCommands(f *testing.F) {
	for _, in := range []string{
		"PING\r\nSUBSCRIBE a b\r\nPING x\r\nUNSUBSCRIBE\r\nPUNSUBSCRIBE\r\n",
		testkit.RESPCommand("HELLO", "3", "SETNAME", "ann") + testkit.RESPCommand("PSUBSCRIBE", "*", "a?") + testkit.RESPCommand("PUBLISH", "ab", "x") + "RESET\r\nCLIENT GETNAME\r\n",
		"SSUBSCRIBE a\r\nSPUBLISH a x\r\nHELLO 3\r\nSUNSUBSCRIBE\r\nPUBSUB SHARDNUMSUB a\r\n",
		"CLIENT REPLY OFF\r\nSUBSCRIBE a\r\nPING\r\nCLIENT REPLY ON\r\nCLIENT REPLY SKIP\r\nPING\r\nPING\r\n",
		"AUTH a b\r\nAUTH a\r\nHELLO 2 AUTH default x\r\nSELECT 0\r\nSELECT 1\r\nECHO \"a\\x00\"\r\nQUIT\r\nPING\r\n",
		"PUBSUB CHANNELS\r\nPUBSUB CHANNELS *\r\nPUBSUB NUMPAT\r\nCOMMAND COUNT\r\nCOMMAND DOCS ping\r\nCONFIG GET s*\r\n",
		"CLIENT LIST\r\nCLIENT KILL SKIPME no\r\nCLIENT KILL 1.2.3.4:5\r\nPING\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "POST a\r\n", "*1\r\n$4\r\nPING\r\n*3\r\n$9\r\nSUBSCRIBE\r\n$0\r\n\r\n$1\r\na\r\n", "*-1\r\n*x\r\n",
		"INFO\r\nTIME\r\nACL WHOAMI\r\nFLUSHDB\r\nCLIENT NO-TOUCH on\r\nCLIENT SETINFO lib-name x\r\n",
	} {
		f.Add(in, 5)
	}
	f.Fuzz(func(t *testing.T, in string, part int) {
		if len(in) > 4000 || strings.Count(strings.ToLower(in), "auth") >= 10 { // too many logins close the client later
			return
		}
		whole, heard := runCommandsInParts(t, in, len(in))
		for _, part := range []int{1, 1 + max(0, part)%100} {
			got, also := runCommandsInParts(t, in, part)
			if !nondeterministic.MatchString(in) && (got != whole || also != heard) {
				t.Fatalf("in parts of %d bytes\n%.500q\nas a whole\n%.500q\nthe subscriber has\n%.200q\nand\n%.200q", part, got, whole, also, heard)
			}
		}
	})
}

// runCommandsInParts returns what the client and a subscriber to everything receive for input sent in parts.
func runCommandsInParts(t *testing.T, input string, partSize int) (client, subscriber string) {
	later := nondeterministic.MatchString(input)
	h := new(Hub)
	s := tcptest.NewServer(t, &tcp.Server{Handler: h.Handler(), Limits: tcp.Limits{MaxMessage: 1000, MaxUnsent: 4000}})
	p, all := s.Dial(), s.Dial()
	all.Send("PSUBSCRIBE *\r\n")
	for input != "" {
		n := min(partSize, len(input))
		if _, err := p.Write([]byte(input[:n])); err != nil {
			break // closed
		}
		input = input[n:]
		client += p.Output()
	}
	p.CloseWrite()
	client += p.Output()
	subscriber = all.Output()
	all.Reset()
	if _, closed := p.Closed(); closed {
		expectNoSubscriptions(t, h)
	} else if !later {
		t.Errorf("the client has ended, and the connection is open")
	}
	return client, subscriber
}

// Clients whose format has ids must not receive messages that this process cannot give an id.
func TestFormatsWithIDs(t *testing.T) {
	for f := range messageFormat(formatCount) {
		with, without := f.appendMessage(nil, &topic{}, "t", []byte("m"), "7"), f.appendMessage(nil, &topic{}, "t", []byte("m"), "")
		if differs := !bytes.Equal(with, without); differs != f.hasIDs() {
			t.Errorf("format %d: hasIDs is %v, but an id changes the message: %v", f, f.hasIDs(), differs)
		}
	}
}
