package admin

import (
	"fmt"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// TestRealServer records a server that runs: on request, and by itself when a loop lags.
func TestRealServer(t *testing.T) {
	const slow = 20 * time.Millisecond
	server := &tcp.Server{
		Model: tcp.Models()[len(tcp.Models())-1], // Auto would not let its loop lag
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, msg []byte) {
			if string(msg) == "slow" {
				time.Sleep(slow)
			}
			c.Write(append(msg, '\n'))
		})),
	}
	dir := t.TempDir()
	h := Handler(Config{Source: server, Flight: startFlight(t, FlightConfig{Source: server, Dir: dir, Lag: time.Millisecond})})
	addr, _ := testserver.Start(t, server)
	c := testkit.Dial(t, addr)
	for _, page := range []string{"/debug/flight", "/debug/trace?seconds=1"} {
		if w := request(h, "GET", page); w.Code != http.StatusOK || !isTrace(w.Body.Bytes()) {
			t.Errorf("%s: got %d, %.20q; want a trace", page, w.Code, w.Body)
		}
	}
	c.ExchangeLine("slow", "slow") // holds its loop, and so lags
	if server.Stats().Loops > 0 {
		testkit.WaitForFunc(t, func() bool {
			files, _ := filepath.Glob(filepath.Join(dir, dumpPattern))
			return len(files) > 0
		}, func() string { return fmt.Sprintf("no dump after a turn of %v; lag is %v", slow, server.Stats().Lag) })
	}
}
