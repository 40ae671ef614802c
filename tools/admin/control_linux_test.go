package admin

import (
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

func checkEcho(c *testkit.Conn, text string) {
	c.Send(text)
	c.Expect(text)
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
