package admin

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

type echo struct{ tcp.Base }

func (echo) Received(c *tcp.Conn, in []byte) int {
	c.Write(in)
	return len(in)
}

func checkEcho(c *testkit.Conn, text string) {
	c.Send(text)
	c.Expect(text)
}

// TestTopTalker has one loud connection among quiet ones. Behind a proxy the table has the proxy's addresses, as the
// kernel does, and its button closes the very connection.
func TestTopTalker(t *testing.T) {
	server := &tcp.Server{
		Handler: echo{}, Limits: tcp.Limits{Linger: 50 * time.Millisecond},
		TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")},
	}
	addr, _ := testserver.Start(t, server)
	const conns, said, header = 31, 100_000, "PROXY TCP4 198.51.100.7 203.0.113.1 4444 80\r\n"
	var all []*testkit.Conn
	for range conns {
		c := testkit.Dial(t, addr)
		c.Send(header)
		checkEcho(c, "hello")
		all = append(all, c)
	}
	loud := all[conns/2]
	l := newServerState(server)
	l.hasControl = true
	begin := time.Now()
	l.refreshIfDueAndBuildPage(begin)
	checkEcho(loud, strings.Repeat("x", said))
	p := l.refreshIfDueAndBuildPage(begin.Add(talkerInterval))
	testkit.RequireNoError(t, l.talkers.err)
	first := l.talkers.top[0]
	bytesIn := int64(len(header) + len("hello") + said)
	if first.Remote.String() != loud.LocalAddr().String() || first.BytesIn != bytesIn || l.talkers.connCount != conns {
		t.Errorf("the loudest of %d is %+v, want %v with %d bytes", l.talkers.connCount, first, loud.LocalAddr(), bytesIn)
	}
	const caption = "Connections, the loudest first"
	if got := findCell(t, p, caption, loud.LocalAddr().String(), 1); got != "48.8 KiB" {
		t.Errorf("it says %q a second, want 100,000 bytes in 2 s", got)
	}
	if !strings.Contains(p.Lead, "31 connections") || findCell(t, p, "Counters", "connections", 1) != "31" {
		t.Errorf("the page says %q", p.Lead)
	}
	if findCell(t, p, "Memory", "anonymous", 1) == "–" || len(l.walls.report.Walls) == 0 {
		t.Error("the page has no memory, or no walls")
	}
	h := Handler(Config{Source: server, Token: testToken, Log: slog.New(slog.DiscardHandler)})
	w := serveRequest(h, newControlRequest("/"+findTable(t, p, caption).Actions[1].URL))
	if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), loud.LocalAddr().String()) {
		t.Errorf("the button: %d, %q", w.Code, w.Body)
	}
	loud.ExpectClosed()
	checkEcho(all[0], "still there")
}

// A unix socket has no counters, and the page says so.
func TestTalkersOfUnixSocket(t *testing.T) {
	var l topTalkers
	l.readTrafficIfDue(time.Now(), tcp.Stats{}, &net.UnixAddr{Net: "unix", Name: "x"})
	if l.err == nil || !strings.Contains(l.err.Error(), "TCP") {
		t.Errorf("it says %v", l.err)
	}
}
