package admin

import (
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// checkEcho has a text echoed.
func checkEcho(c *testkit.Conn, text string) {
	c.Send(text)
	c.Expect(text)
}

// TestControlRealServer gives every order to a server that runs, under every model.
func TestControlRealServer(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			server := &tcp.Server{Model: model}
			addr := startEchoServer(t, server)
			h := Handler(Config{Source: server, Token: testToken, Log: slog.New(slog.DiscardHandler)})
			give := func(what string) {
				t.Helper()
				if w := serveRequest(h, newControlRequest("/control/"+what)); w.Code != http.StatusOK {
					t.Fatalf("%s: %d, %q", what, w.Code, w.Body)
				}
			}
			stays, goes := testkit.Dial(t, addr), testkit.Dial(t, addr)
			checkEcho(stays, "hello")
			checkEcho(goes, "hello")
			give("close?remote=" + goes.LocalAddr().String())
			if n, err := goes.Read(make([]byte, 1)); err == nil {
				t.Errorf("the closed one got %d bytes", n)
			}
			give("pause")
			testkit.WaitFor(t, "accepting pauses", func() bool { return server.Stats().AcceptingPaused })
			late := testkit.Dial(t, addr)
			checkEcho(stays, "hello")
			if open := server.Stats().Open; open != 1 {
				t.Errorf("%d are open while accepting is paused, want 1", open)
			}
			requestAndExpect(t, h, "GET", "/", 200, "Accepting is paused")
			give("resume")
			checkEcho(late, "hello")
			give("drain") // with a recorder it returns when all have ended
			if _, err := stays.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("after the drain: %v, want the end of file", err)
			}
			requestAndExpect(t, h, "GET", "/readyz", 503, "draining")
			if w := serveRequest(h, newControlRequest("/control/pause")); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "shutting down") {
				t.Errorf("pause after the drain: %d, %q", w.Code, w.Body)
			}
		})
	}
}

// Behind a proxy the table has the proxy's addresses, as the kernel does, and its button
// closes the very connection, under every model.
func TestCloseTalkerBehindProxy(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			server := &tcp.Server{Model: model, TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}
			addr := startEchoServer(t, server)
			quiet, loud := testkit.Dial(t, addr), testkit.Dial(t, addr)
			for _, c := range []*testkit.Conn{quiet, loud} {
				c.Send("PROXY TCP4 198.51.100.7 203.0.113.1 4444 80\r\n")
				checkEcho(c, "hello")
			}
			checkEcho(loud, strings.Repeat("much ", 1000))
			l := newServerState(server)
			l.hasControl = true
			p := l.refreshIfDueAndBuildPage(time.Now())
			table := findTable(t, p, "Connections, the loudest first")
			h := Handler(Config{Source: server, Token: testToken, Log: slog.New(slog.DiscardHandler)})
			w := serveRequest(h, newControlRequest("/"+table.Actions[1].URL))
			if w.Code != http.StatusOK || !strings.Contains(w.Body.String(), loud.LocalAddr().String()) {
				t.Errorf("the button of %s: %d, %q", table.Lines[1][0], w.Code, w.Body)
			}
			if n, err := loud.Read(make([]byte, 1)); err == nil {
				t.Errorf("the loud one got %d bytes, want its end", n)
			}
			checkEcho(quiet, "still there")
		})
	}
}
