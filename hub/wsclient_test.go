package hub

import (
	"context"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// serveHub serves a hub until the test ends or stop is called.
func serveHub(t testing.TB, model string, h *Hub) (addr string, stop func()) {
	t.Helper()
	h.httpHandler().ErrorLog = log.New(io.Discard, "", 0)
	return testserver.Start(t, &tcp.Server{Model: model, Handler: h.Handler()})
}

func startHub(t testing.TB, h *Hub) (same *Hub, addr string) {
	t.Helper()
	addr, _ = serveHub(t, tcp.Auto, h)
	return h, addr
}

func forEachModel(t *testing.T, newHub func() *Hub, f func(t *testing.T, h *Hub, addr string)) {
	t.Helper()
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			h := newHub()
			addr, _ := serveHub(t, model, h)
			f(t, h, addr)
		})
	}
}

type wsClient struct {
	t   testing.TB
	ctx context.Context
	*websocket.Conn
}

func dialWebSocket(t testing.TB, addr, query string) wsClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	t.Cleanup(cancel)
	c, _, err := websocket.Dial(ctx, "ws://"+addr+"/ws"+query, &websocket.DialOptions{Subprotocols: []string{subprotocol}, CompressionMode: websocket.CompressionNoContextTakeover})
	testkit.RequireNoError(t, err)
	testkit.WantEqual(t, c.Subprotocol(), subprotocol, "subprotocol")
	t.Cleanup(func() { _ = c.CloseNow() })
	return wsClient{t, ctx, c}
}

func (p wsClient) sendText(message string) {
	p.t.Helper()
	testkit.RequireNoError(p.t, p.Write(p.ctx, websocket.MessageText, []byte(message)))
}

// exchange sends a message and expects others.
func (p wsClient) exchange(message string, want ...string) {
	p.t.Helper()
	p.sendText(message)
	for _, w := range want {
		p.expectText(w)
	}
}

// expectText expects a message; a final * in want matches any rest.
func (p wsClient) expectText(want string) {
	p.t.Helper()
	kind, have, err := p.Read(p.ctx)
	begin, open := strings.CutSuffix(want, "*")
	if err != nil || kind != websocket.MessageText || string(have) != want && !(open && strings.HasPrefix(string(have), begin)) {
		p.t.Fatalf("it says %s, %v; expected %s", have, err, want)
	}
}

func (p wsClient) expectClose(code websocket.StatusCode) {
	p.t.Helper()
	if kind, m, err := p.Read(p.ctx); websocket.CloseStatus(err) != code {
		p.t.Fatalf("it says %v %s, %v; expected a close with %d", kind, m, err, code)
	}
}

func doRequest(t testing.TB, method, url, body string, fields ...string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	testkit.RequireNoError(t, err)
	r.Header = headerFromPairs(fields)
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: testkit.Timeout}
	res, err := client.Do(r)
	testkit.RequireNoError(t, err)
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	testkit.RequireNoError(t, err)
	return res, string(b)
}

func expectResponse(t testing.TB, status int, text, method, url, body string, fields ...string) *http.Response {
	t.Helper()
	res, have := doRequest(t, method, url, body, fields...)
	if res.StatusCode != status || !strings.Contains(have, text) {
		t.Errorf("%s %s: %s %s; expected %d with %s", method, url, res.Status, have, status, text)
	}
	return res
}

func headerFromPairs(fields []string) http.Header {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Set(fields[i], fields[i+1])
	}
	return h
}

func dialAndSend(t testing.TB, addr, text string) *testkit.Conn {
	t.Helper()
	c := testkit.Dial(t, addr)
	c.Send(text)
	return c
}

func expectLine(t *testing.T, c *testkit.Conn, want string) {
	t.Helper()
	expectUpTo(t, c, want+"\r\n")
}

// expectUpTo reads until what has been read ends with want.
func expectUpTo(t *testing.T, c *testkit.Conn, want string) {
	t.Helper()
	var got []byte
	for !strings.HasSuffix(string(got), want) {
		b, err := c.R.ReadByte()
		if err != nil {
			t.Fatalf("got %q, then %v; want %q", got, err, want)
		}
		got = append(got, b)
	}
}

func waitForSubscribers(t testing.TB, h *Hub, name string, n int) {
	t.Helper()
	testkit.WaitFor(t, "not all have subscribed or left", func() bool { return h.Subscribers(Topic, name) == n })
}

func (h *Hub) waitForTotalSubscribers(t testing.TB, n int) {
	t.Helper()
	testkit.WaitFor(t, "not all have subscribed", func() bool {
		all := 0
		h.EachName(Topic, func(_ string, subscribers int) bool { all += subscribers; return true })
		return all == n
	})
}
