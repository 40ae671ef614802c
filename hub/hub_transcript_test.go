package hub_test

import (
	"strings"
	"testing"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// TestTranscripts checks that the hub replies like redis-server, under each model.
func TestTranscripts(t *testing.T) {
	forEachTranscript(t, func(t *testing.T, _ string, s *transcript) {
		for _, model := range tcp.Models() {
			t.Run(model, func(t *testing.T) {
				h := new(hub.Hub)
				if s.users != nil {
					var err error
					if h.Users, err = hub.ReadUsers(strings.NewReader(strings.Join(s.users, "\n") + "\n")); err != nil {
						t.Fatal(err)
					}
				}
				srv := &tcp.Server{Model: model, Handler: h.Handler()}
				addr, _ := testserver.Start(t, srv)
				for _, c := range s.cases {
					c.runAllModes(t, true, func(t testing.TB) string {
						testkit.WaitFor(t, "the connections of the case before have closed", func() bool { return srv.Stats().Open == 0 })
						return addr
					})
				}
			})
		}
	})
}
