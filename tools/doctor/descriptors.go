package doctor

import (
	"fmt"
	"sort"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
)

// Open files are limited per descriptor table, per machine and, for epoll, per user.

const maxLoops = 1024

const fsPage = "https://docs.kernel.org/admin-guide/sysctl/fs.html"

var _ = registerWall(Wall{
	Name: "nofile", What: "descriptors that a process may open (RLIMIT_NOFILE)",
	Effect: "EMFILE, \"too many open files\": a server pauses accepting, a client's socket(2) fails. A Go program raises the soft " +
		"limit to the hard one by itself; other programs stop at the soft one",
	Source: "https://man7.org/linux/man-pages/man2/getrlimit.2.html", Unit: "descriptors",
}, (*analysis).examineNofile)

// examineNofile sets w.Holds to the number of connections that RLIMIT_NOFILE allows, and adds changes or advice if that
// is not enough. applies is false if the limit is unknown.
func (x *analysis) examineNofile(w *Wall) (applies bool) {
	p := &x.f.Process
	if p.Nofile.Hard == 0 { // unknown
		return false
	}
	w.Present = fmt.Sprintf("soft %s, hard %s", formatLimitOrNone(p.Nofile.Soft), formatLimitOrNone(p.Nofile.Hard))
	w.Used, w.Limit = int64(p.Open), max(p.Nofile.Soft, 0)
	if n := p.Tables; n > 0 {
		w.Used, w.Limit, w.Of = int64(p.InTables), saturatingMul(w.Limit, int64(n)), fmt.Sprintf("%d tables", n)
	}
	// Go programs raise their soft limit to the hard limit.
	need := x.fillDescriptorLimitWall(w, p.Nofile.Hard)
	switch {
	case !x.isExceededByPlan(w):
	case need > maxDescriptors:
		w.Advice = x.adviceWithoutHigherNofile()
	case p.Raise:
		to := min(addEighthAndRoundUp(need), maxDescriptors)
		if top, ok := x.sysctlNumber("fs.nr_open"); ok && to > top {
			w.Changes = append(w.Changes, x.sysctlChange("fs.nr_open", strconv.FormatInt(to, 10)))
		}
		w.Changes = append(w.Changes, Change{Kind: Nofile, Name: "nofile",
			From: strconv.FormatInt(p.Nofile.Soft, 10), To: strconv.FormatInt(to, 10)})
	default:
		w.Advice = x.adviceWithoutHigherNofile() + fmt.Sprintf("; or let a privileged process (CAP_SYS_RESOURCE) start the "+
			"shell with a hard limit of %d: LimitNOFILE in a systemd unit, --ulimit nofile of a container, limits.conf for a login", need)
	}
	return true
}

func (x *analysis) adviceWithoutHigherNofile() string {
	switch {
	case x.f.Shards == "":
		return "use a model with loops (--model epoll or uring), which get a descriptor table each"
	case x.isSideLocal(Server):
		room := subtractDownToZero(x.f.Process.Nofile.Hard, sock.ReservedDescriptors)
		for n := int64(2); n <= maxProcesses; n++ {
			if shareWithImbalanceMargin(x.n, n) <= room {
				return fmt.Sprintf("serve with %d worker processes (--processes %d), which have a limit each; a table for each loop is not available: %s", n, n, x.f.Shards)
			}
		}
	}
	return "connect from several machines or containers; a table for each loop is not available: " + x.f.Shards
}

var _ = registerSysctlWall(Wall{
	Name: "nr_open", What: "maximum of descriptor limits (fs.nr_open)",
	Effect: "EMFILE as with nofile; setting a higher RLIMIT_NOFILE fails with EPERM",
	Source: fsPage + "#nr-open",
}, sysctlInfo{name: "fs.nr_open", isAmount: true, defaultValue: "1048576"}, func(x *analysis, w *Wall, limit int64) bool {
	w.Present = format.Count(limit)
	need := x.fillDescriptorLimitWall(w, limit)
	switch {
	case !x.isExceededByPlan(w):
	case need > maxDescriptors:
		w.Advice = x.adviceWithoutHigherNofile()
	default:
		w.Changes = []Change{x.sysctlChange("fs.nr_open", strconv.FormatInt(min(addEighthAndRoundUp(need), maxDescriptors), 10))}
	}
	return true
})

// maxDescriptors is the maximum size of a descriptor table in a 64-bit kernel (sysctl_nr_open_max in fs/file.c).
const maxDescriptors = 1<<31 - 64

// fillDescriptorLimitWall sets w.Holds to the number of connections that a descriptor limit allows. A limit of -1 means
// unlimited. limitNeeded is the limit that the plan needs.
func (x *analysis) fillDescriptorLimitWall(w *Wall, limit int64) (limitNeeded int64) {
	for i := range x.endpoints {
		e, holds := &x.endpoints[i], Unlimited
		if limit >= 0 {
			room := x.maxConnsPerProcess(e, limit)
			holds = largestFittingConns(func(n int64) bool { return e.connsPerProcessWithMargin(n) <= room })
		}
		x.keepLowerAllowedConns(w, e.side, holds)
		each := e.connsPerProcessWithMargin(x.n)
		limitNeeded = max(limitNeeded, int64(sort.Search(int(each+sock.ReservedDescriptors), func(n int) bool { return x.maxConnsPerProcess(e, int64(n)) >= each })))
	}
	if x.isExceededByPlan(w) {
		w.Needs = format.Count(limitNeeded)
	}
	return limitNeeded
}

// maxConnsPerProcess returns the maximum number of connections that one process at the endpoint e can have.
// limitPerTable is the limit of each descriptor table. Each event loop has its own table if the machine permits this
// (Facts.Shards).
func (x *analysis) maxConnsPerProcess(e *localEndpoint, limitPerTable int64) int64 {
	room := subtractDownToZero(limitPerTable, sock.ReservedDescriptors)
	if !e.hasLoops || x.f.Shards != "" {
		return room
	}
	return max(room, int64(sock.MaxConnsInDescriptorTables(uint64(limitPerTable), e.minLoops, maxLoops)))
}

var _ = registerSysctlWall(Wall{
	Name: "file-max", What: "files that the whole machine may have open (fs.file-max)",
	Effect: "ENFILE, \"too many open files in system\", for socket(2) and accept(2) of every process without CAP_SYS_ADMIN",
	Source: fsPage + "#file-max-and-file-nr", Beyond: true,
}, sysctlInfo{name: "fs.file-max", isAmount: true, defaultValue: "8192"}, func(x *analysis, w *Wall, limit int64) bool {
	w.setUsedAndLimit(x.f.FilesOpen, limit)
	if x.f.Process.Root {
		w.Present += "; no bound for this user (CAP_SYS_ADMIN)"
		w.Used, w.Limit = 0, 0
		return true
	}
	w.Unit = "files"
	sides, open := int64(len(x.endpoints)), saturatingAdd(x.f.FilesOpen, sock.ReservedDescriptors*x.countProcessesOfPlan())
	w.Holds = subtractDownToZero(limit, open) / sides
	x.requireSysctlIfExceeded(w, "fs.file-max", saturatingAdd(open, sides*x.n))
	return true
})

var _ = registerSysctlWall(Wall{
	Name: "max_user_watches", What: "descriptors that one user may watch with epoll (fs.epoll.max_user_watches)",
	Effect: "ENOSPC, \"no space left on device\", from epoll_ctl(2): the server closes what it has accepted, a client fails to connect",
	Source: "https://man7.org/linux/man-pages/man7/epoll.7.html",
}, sysctlInfo{name: "fs.epoll.max_user_watches", isAmount: true, defaultValue: "1024"}, func(x *analysis, w *Wall, limit int64) bool {
	watched := int64(0)
	for _, e := range x.endpoints {
		if e.model != uring {
			x.keepLowerAllowedConns(w, e.side, Unlimited)
			watched++
		}
	}
	if watched == 0 {
		return false
	}
	spare := 16 * x.countProcessesOfPlan()
	w.Present, w.Holds = format.Count(limit), subtractDownToZero(limit, spare)/watched
	x.requireSysctlIfExceeded(w, "fs.epoll.max_user_watches", watched*x.n+spare)
	return true
})
