package doctor

import (
	"fmt"
	"strconv"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
)

// This file has the walls of open files: those of a descriptor table, of the
// machine, and of epoll.

// maxLoops is how many loops a server and a generator may have.
const maxLoops = 1024

const fsPage = "https://docs.kernel.org/admin-guide/sysctl/fs.html"

var _ = wall((*exam).nofile)

// nofile is RLIMIT_NOFILE of each process. Go raises the soft limit to the hard
// one when a program starts, so that the hard one counts.
func (x *exam) nofile() *Wall {
	limit := x.f.Process.Nofile
	if limit.Hard == 0 { // not known: a process without descriptors does not ask
		return nil
	}
	w := &Wall{
		Name: "nofile", What: "descriptors that a process may open (RLIMIT_NOFILE)",
		Present: fmt.Sprintf("soft %s, hard %s", limited(limit.Soft), limited(limit.Hard)),
		Effect: "EMFILE, \"too many open files\": a server pauses accepting, a client's socket(2) fails. A Go program raises the soft " +
			"limit to the hard one by itself; other programs stop at the soft one",
		Source: "https://man7.org/linux/man-pages/man2/getrlimit.2.html",
		Used:   int64(x.f.Process.Open), Limit: max(limit.Soft, 0), Unit: "descriptors",
	}
	if n := x.f.Process.Tables; n > 0 {
		w.Used, w.Limit, w.Of = int64(x.f.Process.InTables), satMul(w.Limit, int64(n)), fmt.Sprintf("%d tables", n)
	}
	x.ofTables(w, limit.Hard)
	if !x.near(w) {
		return w
	}
	need := x.descriptorsNeeded()
	w.Needs = format.Count(need)
	switch {
	case need > mostDescriptors:
		w.Advice = x.pastDescriptors()
	case x.f.Process.Raise:
		to := min(withHeadroom(need), mostDescriptors)
		if top, ok := x.number("fs.nr_open"); ok && to > top {
			w.Changes = append(w.Changes, x.sysctl("fs.nr_open", strconv.FormatInt(to, 10)))
		}
		w.Changes = append(w.Changes, Change{Kind: Nofile, Name: "nofile",
			From: strconv.FormatInt(limit.Soft, 10), To: strconv.FormatInt(to, 10)})
	default:
		w.Advice = x.pastDescriptors() + fmt.Sprintf("; or have who may raise the hard limit (CAP_SYS_RESOURCE) start the "+
			"shell with it at %d: LimitNOFILE in a systemd unit, --ulimit nofile of a container, limits.conf for a login", need)
	}
	return w
}

// pastDescriptors says what helps where the limit can't be raised.
func (x *exam) pastDescriptors() string {
	switch {
	case x.f.Shards == "":
		return "use a model with loops (--model epoll or uring), which get a descriptor table each"
	case x.side(Server):
		room := satSub(x.f.Process.Nofile.Hard, sock.Reserve)
		for n := int64(2); n <= maxProcesses; n++ {
			if evenShare(int64(x.p.Connections), n) <= room {
				return fmt.Sprintf("serve with %d worker processes (--processes %d), which have a limit each; a table for each loop is not to be had: %s", n, n, x.f.Shards)
			}
		}
	}
	return "connect from several machines or containers; a table for each loop is not to be had: " + x.f.Shards
}

var _ = wall((*exam).nrOpen, setting{name: "fs.nr_open", amount: true, least: "1048576"})

// nrOpen is the most that the limit of any process can be.
func (x *exam) nrOpen() *Wall {
	limit, ok := x.number("fs.nr_open")
	if !ok {
		return nil
	}
	w := &Wall{
		Name: "nr_open", What: "the most that a limit of descriptors can be (fs.nr_open)",
		Present: format.Count(limit),
		Effect:  "EMFILE as with nofile; setting a higher RLIMIT_NOFILE fails with EPERM",
		Source:  fsPage + "#nr-open",
	}
	x.ofTables(w, limit)
	if !x.near(w) {
		return w
	}
	need := x.descriptorsNeeded()
	w.Needs = format.Count(need)
	if need > mostDescriptors {
		w.Advice = x.pastDescriptors()
		return w
	}
	w.Changes = []Change{x.sysctl("fs.nr_open", strconv.FormatInt(min(withHeadroom(need), mostDescriptors), 10))}
	return w
}

// mostDescriptors is the most that a descriptor table can be set to have
// (sysctl_nr_open_max in the kernel's fs/file.c, on 64 bits: INT_MAX rounded down to
// 64).
const mostDescriptors = 1<<31 - 64

// ofTables fills in at how many connections a limit of descriptors stops the sides,
// -1 for no limit.
func (x *exam) ofTables(w *Wall, limit int64) {
	w.Holds = Unlimited
	for _, e := range x.ends {
		holds := Unlimited
		if limit >= 0 {
			room := x.tableRoom(&e, limit)
			holds = largestFit(func(n int64) bool { return e.share(n) <= room })
		}
		x.least(w, e.side, holds)
	}
}

// tableRoom is how many connections a process holds under a limit: all that the
// limit leaves, or those of a descriptor table for each of its loops.
func (x *exam) tableRoom(e *end, limit int64) int64 {
	room := satSub(limit, sock.Reserve)
	if !e.loops || x.f.Shards != "" {
		return room
	}
	return max(room, int64(sock.TablesRoom(uint64(limit), e.wanted, maxLoops)))
}

// descriptorsNeeded is the least limit under which each process holds its share.
func (x *exam) descriptorsNeeded() int64 {
	need := int64(0)
	for _, e := range x.ends {
		each := e.share(int64(x.p.Connections))
		low, high := int64(0), each+sock.Reserve
		for high-low > 1 {
			if middle := low + (high-low)/2; x.tableRoom(&e, middle) >= each {
				high = middle
			} else {
				low = middle
			}
		}
		need = max(need, high)
	}
	return need
}

var _ = wall((*exam).fileMax, setting{name: "fs.file-max", amount: true, least: "8192"})

// fileMax is how many files the whole machine may have open, sockets among them.
func (x *exam) fileMax() *Wall {
	limit, ok := x.number("fs.file-max")
	if !ok {
		return nil
	}
	w := &Wall{
		Name: "file-max", Side: x.p.Side, What: "files that the whole machine may have open (fs.file-max)",
		Present: fmt.Sprintf("%s, %s open", format.Count(limit), format.Count(x.f.FilesOpen)), Holds: Unlimited,
		Effect: "ENFILE, \"too many open files in system\", for socket(2) and accept(2) of every process without CAP_SYS_ADMIN",
		Source: fsPage + "#file-max-and-file-nr", Beyond: true,
	}
	if x.f.Process.Root {
		w.Present += "; no bound for this user (CAP_SYS_ADMIN)"
		return w
	}
	w.Used, w.Limit, w.Unit = x.f.FilesOpen, limit, "files"
	spare := sock.Reserve * x.processes()
	sides := int64(len(x.ends))
	w.Holds = satSub(limit, satAdd(x.f.FilesOpen, spare)) / sides
	if x.near(w) {
		need := satAdd(satAdd(x.f.FilesOpen, spare), sides*int64(x.p.Connections))
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl("fs.file-max", strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}

var _ = wall((*exam).userWatches, setting{name: "fs.epoll.max_user_watches", amount: true, least: "1024"})

// userWatches is how many descriptors one user may have in epoll instances. Go's
// own poller is one: so a goroutine for each connection takes a watch too.
func (x *exam) userWatches() *Wall {
	const name = "fs.epoll.max_user_watches"
	limit, ok := x.number(name)
	watched, side := x.watched()
	if !ok || watched == 0 {
		return nil
	}
	w := &Wall{
		Name: "max_user_watches", Side: side, What: "descriptors that one user may watch by epoll (fs.epoll.max_user_watches)",
		Present: format.Count(limit),
		Effect:  "ENOSPC, \"no space left on device\", from epoll_ctl(2): the server closes what it has accepted, a client fails to connect",
		Source:  "https://man7.org/linux/man-pages/man7/epoll.7.html",
	}
	spare := 16 * x.processes()
	w.Holds = satSub(limit, spare) / watched
	if x.near(w) {
		need := watched*int64(x.p.Connections) + spare
		w.Needs = format.Count(need)
		w.Changes = []Change{x.sysctl(name, strconv.FormatInt(withHeadroom(need), 10))}
	}
	return w
}

// watched is how many watches a connection takes, and whose.
func (x *exam) watched() (watches int64, side Side) {
	for _, e := range x.ends {
		if e.model == uring {
			continue
		}
		if watches++; watches == 1 {
			side = e.side
		} else {
			side = Both
		}
	}
	return watches, side
}
