package libraries

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tcp"
)

// TestNetConn runs the tests for a net.Conn of golang.org/x/net with tcp.NetConn, under every model and on
// shards.
func TestNetConn(t *testing.T) {
	test := func(t *testing.T, srv *tcp.Server) {
		l := tcp.NewNetListener()
		srv.Handler = l
		addr := startServer(t, srv)
		nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
			if c2, err = net.Dial("tcp", addr); err != nil {
				return nil, nil, nil, err
			}
			if c1, err = l.Accept(); err != nil {
				c2.Close()
				return nil, nil, nil, err
			}
			return c1, c2, func() {
				c1.Close()
				c2.Close()
			}, nil
		})
	}
	runUnderModels(t, func(t *testing.T, model string) { test(t, &tcp.Server{Model: model}) })
	t.Run("shards", func(t *testing.T) {
		test(t, &tcp.Server{Model: tcp.Epoll, Limits: tcp.Limits{MaxConns: sock.DefaultMaxConnsForDescriptorLimit() + 1}})
	})
}
