package doctor

import "testing"

// What a plan takes is what the walls count with.
func TestCosts(t *testing.T) {
	f := &Facts{}
	f.Machine.CPUs, f.Process.Nofile = 8, Rlimit{Soft: -1, Hard: -1}
	kernel := int64(2520 + 863 + 197 + 195 + 123 + 208) // as in TestMemory
	for _, c := range []struct {
		plan   Plan
		nofile int64
		want   Cost
	}{
		{Plan{Connections: 1_000_000, Side: Server, Model: epoll}, -1,
			Cost{User: loopConn, Kernel: kernel, Base: processBase + 4*epollBase, Loops: 4, Descriptors: 1_130_496}}, // an eighth of room
		{Plan{Connections: 1_000_000, Side: Server, Model: epoll, Unread: 5000}, -1,
			Cost{User: loopConn, Kernel: kernel + 5000 + segmentOverhead, Base: processBase + 4*epollBase, Loops: 4, Descriptors: 1_130_496}},
		{Plan{Connections: 200_000, Side: Server, Model: epoll}, 20_000, // in a table
			Cost{User: loopConn, Kernel: kernel, Base: processBase + 11*epollBase, Loops: 11, Descriptors: 225_280}},
		{Plan{Connections: 1 << 30, Side: Server, Model: goroutine}, -1,
			Cost{User: goroutineConn, Kernel: kernel, Base: processBase, Descriptors: 1_224_736_768}},
	} {
		f.Process.Nofile = Rlimit{Soft: c.nofile, Hard: c.nofile}
		if got, err := PredictCosts(f, c.plan); err != nil || got != c.want {
			t.Errorf("%+v: %+v, %v; want %+v", c.plan, got, err, c.want)
		}
	}
	if _, err := PredictCosts(nil, Plan{Connections: 1}); err == nil {
		t.Error("without facts there are costs")
	}
}
