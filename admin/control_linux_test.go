package admin

import (
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

// TestControlRealServer gives every order to a server that runs, under every model.
func TestControlRealServer(t *testing.T) {
	for _, model := range myriad.Models() {
		t.Run(model, func(t *testing.T) {
			server := &myriad.Server{Model: model}
			addr := serveAll(t, server)
			h := Handler(Config{Source: server, Token: testToken, Log: slog.New(slog.DiscardHandler)})
			give := func(what string) {
				t.Helper()
				if w := send(h, order("/control/"+what)); w.Code != http.StatusOK {
					t.Fatalf("%s: %d, %q", what, w.Code, w.Body)
				}
			}
			say := func(c io.ReadWriter) {
				t.Helper()
				if _, err := io.WriteString(c, "hello"); err != nil {
					t.Fatal(err)
				}
				if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
					t.Fatal(err)
				}
			}
			stays, goes := dial(t, addr), dial(t, addr)
			say(stays)
			say(goes)
			give("close?remote=" + goes.LocalAddr().String())
			if n, err := goes.Read(make([]byte, 1)); err == nil {
				t.Errorf("the closed one got %d bytes", n)
			}
			give("pause")
			for end := time.Now().Add(20 * time.Second); !server.Stats().AcceptingPaused; time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("accepting does not pause")
				}
			}
			late := dial(t, addr)
			say(stays)
			if open := server.Stats().Open; open != 1 {
				t.Errorf("%d are open while accepting is paused, want 1", open)
			}
			expect(t, h, "GET", "/", 200, "accepts nothing")
			give("resume")
			say(late)
			give("drain") // with a recorder it returns when all have ended
			if _, err := stays.Read(make([]byte, 1)); err != io.EOF {
				t.Errorf("after the drain: %v, want the end of file", err)
			}
			expect(t, h, "GET", "/readyz", 503, "draining")
			if w := send(h, order("/control/pause")); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "shutting down") {
				t.Errorf("pause after the drain: %d, %q", w.Code, w.Body)
			}
		})
	}
}
