package tcp

import (
	"context"
	"math"
	"net"
	"runtime/debug"
	"testing"

	"github.com/myriad-go/myriad/internal/engine"
)

func TestServeWithProcesses(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	requireNoError(t, err)
	srv := Server{Handler: Base{}, Processes: 2}
	expectError(t, "Serve", srv.Serve(context.Background(), l), ErrBadConfig, "ListenAndServe")
	expectError(t, "closing the listener again", l.Close(), net.ErrClosed)
}

func TestShares(t *testing.T) {
	srv := Server{Processes: 4, Limits: Limits{MaxConns: 10}}
	expectEqual(t, "MaxConns of the first of 4 processes with 10 connections", srv.limitsPerProcess().MaxConns, 3)
	expectEqual(t, "connections of all together", srv.configuredOrSummedMaxConns(3), 10)
	srv.Limits.MaxConns = 0
	expectEqual(t, "connections of 4 processes with 100 each", srv.configuredOrSummedMaxConns(100), 400)
	if got, shard, err := srv.resolveLoops(engine.Model{HasLoops: true}, 100); got != 1 || shard != 0 || err != nil {
		t.Errorf("%d loops in each process, shards of %d, %v; want 1 loop without a table of its own", got, shard, err)
	}
}

// Each process gets a share of the machine's or cgroup's memory; GOMEMLIMIT already applies to one process.
func TestShareOfMemory(t *testing.T) {
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	all, share := Server{}, Server{Processes: 4}
	l, err := all.limitsPerProcess().withDefaults()
	requireNoError(t, err)
	expectEqual(t, "MaxBuffered of one of 4 processes", share.limitsPerProcess().MaxBuffered, l.MaxBuffered/4)
	debug.SetMemoryLimit(4 << 20)
	expectEqual(t, "MaxBuffered of a process with a GOMEMLIMIT of 4 MiB", share.limitsPerProcess().MaxBuffered, 1<<20)
	share.Limits = Limits{MaxBuffered: 8 << 20, AcceptRate: 9}
	if got := share.limitsPerProcess(); got.MaxBuffered != 2<<20 || got.AcceptRate != 2 {
		t.Errorf("one of 4 processes gets %d of 8 MiB and %d of 9 accepts a second, want 2 MiB and 2", got.MaxBuffered, got.AcceptRate)
	}
}
