package doctor

import (
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// What a plan takes is what the wall of memory counts with.
func TestCosts(t *testing.T) {
	f := &Facts{}
	f.Machine.CPUs, f.Process.Nofile = 8, Rlimit{Soft: -1, Hard: -1}
	cost := func(p Plan) Cost {
		c, err := PredictCosts(f, p)
		testkit.RequireNoError(t, err)
		return c
	}
	server := cost(Plan{Connections: 1_000_000, Side: Server, Model: epoll})
	both := cost(Plan{Connections: 1_000_000, Side: Both, Model: epoll})
	if server.User != loopConn || both.User != 2*loopConn || server.Kernel < 3900 || server.Kernel > 4200 || both.Kernel < 2*server.Kernel {
		t.Errorf("server %+v, both %+v", server, both)
	}
	if server.Loops != 4 || server.Base != processBase+4*epollBase || server.Descriptors != 1_130_496 {
		t.Errorf("%+v, want four loops and descriptors for all, with an eighth of room", server)
	}
	if unread := cost(Plan{Connections: 1_000_000, Side: Server, Model: epoll, Unread: 5000}); unread.Kernel != server.Kernel+5000+segmentOverhead {
		t.Errorf("with 5,000 bytes unread %d bytes, and %d without", unread.Kernel, server.Kernel)
	}
	f.Process.Nofile = Rlimit{Soft: 20_000, Hard: 20_000}
	if c := cost(Plan{Connections: 200_000, Side: Server, Model: epoll}); c.Loops != 11 {
		t.Errorf("%d loops for 200,000 connections with 20,000 descriptors a table, want 11", c.Loops)
	}
	if c := cost(Plan{Connections: 1 << 30, Side: Server, Model: goroutine}); c.Loops != 0 || c.Descriptors > maxDescriptors || c.User != goroutineConn {
		t.Errorf("a goroutine for each: %+v", c)
	}
	if _, err := PredictCosts(nil, Plan{Connections: 1}); err == nil {
		t.Error("without facts there are costs")
	}
}
