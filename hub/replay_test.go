package hub_test

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/await"
)

// serve serves a hub until the test ends.
func serve(t testing.TB, srv *myriad.Server, h *hub.Hub) (addr string) {
	t.Helper()
	up, done := make(chan net.Addr, 1), make(chan error, 1)
	srv.Handler = h.Handler()
	if srv.Addr == "" {
		srv.Addr = "127.0.0.1:0"
	}
	srv.Listening = func(a net.Addr) { up <- a }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- srv.ListenAndServe(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := await.Receive(t, done, "the server ends"); err != nil {
			t.Errorf("ListenAndServe: %v", err)
		}
	})
	return await.Receive(t, up, "the server listens").String()
}

// TestTranscripts has the hub answer, under each model, what redis-server has.
func TestTranscripts(t *testing.T) {
	eachTranscript(t, func(t *testing.T, _ string, s *transcript) {
		for _, model := range myriad.Models() {
			t.Run(model, func(t *testing.T) {
				h := new(hub.Hub)
				if s.users != nil {
					var err error
					if h.Users, err = hub.ReadUsers(strings.NewReader(strings.Join(s.users, "\n") + "\n")); err != nil {
						t.Fatal(err)
					}
				}
				srv := &myriad.Server{Model: model}
				addr := serve(t, srv, h)
				for _, c := range s.cases {
					c.replays(t, true, func(t testing.TB) string {
						await.True(t, "the connections of the case before have closed", func() bool { return srv.Stats().Open == 0 })
						return addr
					})
				}
			})
		}
	})
}
