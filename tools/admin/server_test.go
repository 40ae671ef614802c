package admin

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// TestRealServer looks at a server that runs, with one connection, from its
// start to its end, with a trace and a dump while it serves.
func TestRealServer(t *testing.T) {
	dir := t.TempDir()
	slow := 20 * time.Millisecond
	server := &tcp.Server{
		Model: tcp.Models()[len(tcp.Models())-1], // Auto would not let its loop lag
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, msg []byte) {
			if string(msg) == "slow" {
				time.Sleep(slow)
			}
			c.Write(append(msg, '\n'))
		})),
	}
	f := startFlight(t, FlightConfig{Source: server, Dir: dir, Lag: time.Millisecond})
	h := Handler(Config{Source: server, Flight: f})
	requestAndExpect(t, h, "GET", "/readyz", 503, "not started")
	requestAndExpect(t, h, "GET", "/metrics", 200, "\nmyriad_connections 0\n")

	addr, stop := testserver.Start(t, server)
	c := testkit.Dial(t, addr)
	c.ExchangeLine("hello", "hello")
	requestAndExpect(t, h, "GET", "/readyz", 200, "ok")
	for _, want := range []string{
		"\nmyriad_connections 1\n", "\nmyriad_connections_accepted_total 1\n", "\nmyriad_messages_total 1\n",
		"\nmyriad_received_bytes_total 6\n", "\nmyriad_memory_per_connection_bytes ",
	} {
		requestAndExpect(t, h, "GET", "/metrics", 200, want)
	}
	if w := request(h, "GET", "/debug/flight"); !isTrace(w.Body.Bytes()) {
		t.Errorf("flight: got %d, %.20q; want a trace", w.Code, w.Body)
	}
	if server.Stats().Loops > 0 {
		c.ExchangeLine("slow", "slow") // holds its loop, and so lags
		dumped := func() bool {
			files, _ := filepath.Glob(filepath.Join(dir, dumpPattern))
			return len(files) > 0
		}
		testkit.WaitForFunc(t, dumped, func() string { return fmt.Sprintf("no dump after a turn of %v; lag is %v", slow, server.Stats().Lag) })
	}
	w := request(h, "GET", "/debug/trace?seconds=1")
	if w.Code != http.StatusOK || !isTrace(w.Body.Bytes()) {
		t.Errorf("trace: got %d, %.20q; want a trace", w.Code, w.Body)
	}
	c.ExchangeLine("still there", "still there")
	stop()
	requestAndExpect(t, h, "GET", "/readyz", 503, "draining")
	if w := request(h, "GET", "/metrics"); !strings.Contains(w.Body.String(), "\nmyriad_draining 1\n") {
		t.Error("myriad_draining is not 1 after the end")
	}
}
