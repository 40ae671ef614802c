package web_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
	"github.com/myriad-go/myriad/web"
)

// TestDrips ends what drips in at the time that counts from its first byte.
func TestDrips(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("/x", web.Quick(http.NotFoundHandler()))
	mux.Handle("/ws", web.Quick(&web.WebSocket{Handler: echoSocket}))
	rows := map[string]struct {
		before, drip string
		why          error
	}{
		"head":               {"", "G", web.ErrTimeout},
		"head of a second":   {"GET /x HTTP/1.1\r\nHost: x\r\n\r\nGET", "T", web.ErrTimeout},
		"fragments":          {ask("ws") + fr(2, "x"), fr(0, "x"), tcp.ErrMessageTimeout},
		"empty fragments":    {ask("ws") + fr(2, ""), fr(0, ""), tcp.ErrMessageTimeout},
		"frame":              {ask("ws") + fr(fin|2, strings.Repeat("x", 20_000))[:100], "x", tcp.ErrMessageTimeout},
		"small frame":        {ask("ws") + fr(fin|2, strings.Repeat("x", 1000))[:100], "x", tcp.ErrMessageTimeout},
		"pings in a message": {ask("ws") + fr(2, "x"), fr(fin|9, ""), tcp.ErrMessageTimeout},
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			limits := tcp.Limits{MessageTimeout: 10 * time.Second}
			if row.why == web.ErrTimeout {
				limits.MessageTimeout = time.Hour
			}
			srv := &tcp.Server{Handler: &web.HTTP{Handler: mux, ReadHeaderTimeout: 10 * time.Second}, Limits: limits}
			s := tcptest.NewServer(t, srv)
			p := s.Dial()
			p.Send(row.before)
			for range 9 {
				p.Send(row.drip)
				s.Advance(time.Second)
			}
			if why, closed := p.Closed(); closed {
				t.Fatalf("closed within 9 s: %v", why)
			}
			for range 3 {
				_, _ = io.WriteString(p, row.drip)
				s.Advance(time.Second)
			}
			p.ExpectClosed(row.why)
		})
	}
}

// TestMessageIsCounted has a message in fragments counted in Stats.Buffered while it is not whole.
func TestMessageIsCounted(t *testing.T) {
	srv := &tcp.Server{Handler: web.Handler(web.Quick(&web.WebSocket{Handler: echoSocket}))}
	s := tcptest.NewServer(t, srv)
	p := s.Dial()
	p.Send(ask("ws") + fr(2, ""))
	for want := 20_000; want <= 60_000; want += 20_000 {
		p.Send(fr(0, strings.Repeat("x", 20_000)))
		if n := srv.Stats().Buffered; n < int64(want) || n > 2*int64(want)+1000 {
			t.Errorf("%d bytes are counted, with %d of a message", n, want)
		}
	}
	p.Send(fr(fin, ""))
	if n := srv.Stats().Buffered; n != 0 {
		t.Errorf("%d bytes are counted when the message is whole", n)
	}
}
