package doctor

import (
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
)

// This file has the walls of io_uring.

// ringBytes is what the kernel counts as locked for a ring: 50 pages of 4 KiB, measured
// on Linux 6.18 as the least RLIMIT_MEMLOCK under which 1, 4 and 16 loops started; of
// larger pages whole ones. Each process has one ring more, with which it tries at its
// start whether it can.
const ringBytes = 50 << 12

var _ = wall((*exam).rings, setting{name: "kernel.io_uring_disabled", least: "0"})

// rings is whether there is an io_uring for a plan that asks for it.
func (x *exam) rings() *Wall {
	w := &Wall{
		Name: "io_uring", What: "io_uring", Present: "can be used", Holds: Unlimited,
		Effect: "--model uring fails at the start; auto takes epoll",
		Source: kernelPage + "#io-uring-disabled",
	}
	if x.f.Uring == "" {
		return w
	}
	w.Present = x.f.Uring
	if x.p.Model == uring {
		w.Holds, w.Needs = 0, "to be allowed"
		w.Advice = "use --model epoll; or allow it: kernel.io_uring_disabled=0, and a seccomp profile that has io_uring_setup, " +
			"io_uring_enter and io_uring_register"
	}
	return w
}

var _ = wall((*exam).memlock)

// memlock is RLIMIT_MEMLOCK, which counts for all processes of a user together.
func (x *exam) memlock() *Wall {
	limit := x.f.Process.Memlock
	if limit.Hard < 0 || x.f.Process.Locks || x.f.Process.Nofile.Hard == 0 { // not known either
		return nil
	}
	w := &Wall{
		Name: "memlock", What: "memory that a user may lock (RLIMIT_MEMLOCK)",
		Present: fmt.Sprintf("%s bytes", limited(limit.Soft)),
		Effect:  "ENOMEM, \"cannot allocate memory\", from io_uring_setup(2): --model uring fails at the start; auto takes epoll",
		Source:  "https://man7.org/linux/man-pages/man2/io_uring_setup.2.html",
	}
	w.Holds = largestFit(func(n int64) bool { return limit.Soft < 0 || x.locked(n) <= limit.Soft })
	if !x.near(w) {
		return w
	}
	need := x.locked(int64(x.p.Connections))
	w.Needs = format.Count(need) + " bytes"
	if to := withHeadroom(need); to <= limit.Hard || x.f.Process.Raise {
		w.Changes = []Change{{Kind: Memlock, Name: "memlock", From: strconv.FormatInt(limit.Soft, 10), To: strconv.FormatInt(to, 10)}}
		return w
	}
	w.Advice = fmt.Sprintf("use --model epoll; or raise the limit to %d bytes where the user's session or unit is set up: limits.conf, LimitMEMLOCK", need)
	return w
}

// locked is how much memory the rings for so many connections lock.
func (x *exam) locked(connections int64) int64 {
	sum := int64(0)
	for i := range x.ends {
		e := &x.ends[i]
		if e.model == uring && e.explicit {
			sum += int64(e.processes) * (1 + x.loopsOf(e, connections)) * x.wholePages(ringBytes)
		}
	}
	return sum
}
