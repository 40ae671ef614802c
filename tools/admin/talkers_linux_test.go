package admin

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

func startEchoServer(t *testing.T, s *tcp.Server) string {
	t.Helper()
	s.Limits.Linger = 50 * time.Millisecond
	if s.Handler == nil {
		s.Handler = echo{}
	}
	addr, _ := testserver.Start(t, s)
	return addr
}

type echo struct{ tcp.Base }

func (echo) Received(c *tcp.Conn, in []byte) int {
	c.Write(in)
	return len(in)
}

// TestTopTalker has one loud connection among quiet ones, under every model.
func TestTopTalker(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			server := &tcp.Server{Model: model}
			addr := startEchoServer(t, server)
			const quiet, said = 30, 100_000
			var loud *testkit.Conn
			for i := range quiet + 1 {
				c := testkit.Dial(t, addr)
				checkEcho(c, "hello")
				if i == quiet/2 {
					loud = c
				}
			}
			l := newServerState(server)
			begin := time.Now()
			l.refreshIfDueAndBuildPage(begin)
			checkEcho(loud, strings.Repeat("x", said))
			p := l.refreshIfDueAndBuildPage(begin.Add(talkerInterval))
			if l.talkers.err != nil {
				t.Fatal(l.talkers.err)
			}
			first := l.talkers.top[0]
			if first.Remote.String() != loud.LocalAddr().String() || first.BytesIn != said+5 || l.talkers.connCount != quiet+1 {
				t.Errorf("the loudest of %d is %+v, want %v with %d bytes", l.talkers.connCount, first, loud.LocalAddr(), said+5)
			}
			if got := findCell(t, p, "Connections, the loudest first", loud.LocalAddr().String(), 1); got != "48.8 KiB" {
				t.Errorf("it says %q a second, want 100,000 bytes in 2 s", got)
			}
			if !strings.Contains(p.Lead, "31 connections") || findCell(t, p, "Counters", "connections", 1) != "31" {
				t.Errorf("the page says %q", p.Lead)
			}
			if findCell(t, p, "Memory", "anonymous", 1) == "–" || len(l.walls.report.Walls) == 0 {
				t.Error("the page has no memory, or no walls")
			}
		})
	}
}

// A unix socket has no counters, and the page says so.
func TestTalkersOfUnixSocket(t *testing.T) {
	var l topTalkers
	l.readTrafficIfDue(time.Now(), tcp.Stats{}, &net.UnixAddr{Net: "unix", Name: "x"})
	if l.err == nil || !strings.Contains(l.err.Error(), "TCP") {
		t.Errorf("it says %v", l.err)
	}
}
