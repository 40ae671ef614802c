package load

import (
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sock"
)

// countEvery is how many samples apart descriptors are counted where that means
// to read the name of each.
const countEvery = 10

// usage looks at what the generator's process and the server's use. It belongs to
// one goroutine. Nothing that it can't find out fails a run: such figures are 0,
// and a server that can't be looked at has none.
type usage struct {
	targets []string
	own     watched
	ownCPU  time.Duration
	gc      debug.GCStats // for the memory that it has
	server  []watched     // nil until found
	looked  int           // how often the server was looked for
}

// watched is what is remembered of a process between two samples.
type watched struct {
	pid         int
	cpu         time.Duration // at the last sample
	descriptors int
	age         int // samples since they were counted
}

// newUsage begins the first interval. The targets are IP:port or "unix:" and a
// path. It looks for the server, which is cheap before there are connections; where
// it isn't found, the first sample looks once more.
func newUsage(targets []string) *usage {
	u := &usage{targets: targets, own: watched{pid: os.Getpid(), age: countEvery}}
	u.ownCPU = ownCPU()
	u.find()
	return u
}

// find looks for the processes that listen at the targets. This process is left
// out: where it is the server too, no figure tells the two apart.
func (u *usage) find() {
	u.looked++
	seen := map[int]bool{u.own.pid: true}
	for _, target := range u.targets {
		for _, pid := range listeners(target) {
			if seen[pid] {
				continue
			}
			seen[pid] = true
			if stat, err := procfs.ReadStat(pid); err == nil {
				u.server = append(u.server, watched{pid: pid, cpu: stat.CPU(), age: countEvery})
			}
		}
	}
}

// listeners are the processes of this machine that listen at a target, none if it
// is another machine's.
func listeners(target string) []int {
	if path, ok := strings.CutPrefix(target, "unix:"); ok {
		pids, _ := procfs.UnixListener(path)
		return pids
	}
	at, err := netip.ParseAddrPort(target)
	if err != nil {
		return nil
	}
	addr := at.Addr().WithZone("").Unmap()
	switch {
	case addr == netip.IPv4Unspecified():
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // where the kernel connects to
	case addr.IsUnspecified():
		addr = netip.IPv6Loopback()
	case !sock.IsLocal(addr):
		return nil // somebody else may listen on the port here
	}
	pids, _ := procfs.Listener(at.Port(), addr)
	return pids
}

// sample says what was used since the last one, or since newUsage. Several server
// processes are added up; memory that they share counts for each. Server is nil
// where none is known, or none is left. A sample takes some 100 µs, and more only
// where descriptors have to be read one by one (before Linux 6.2): there they are
// counted in every tenth sample.
func (u *usage) sample() (generator Usage, server *Usage) {
	now := ownCPU()
	generator.CPU, u.ownCPU = now-u.ownCPU, now
	u.own.measure(&generator)
	u.askRuntime(&generator)
	if len(u.server) == 0 {
		if u.looked < 2 {
			u.find() // what it used in this interval isn't known
		}
		return generator, nil
	}
	sum := &Usage{}
	left := u.server[:0]
	for _, p := range u.server {
		stat, err := procfs.ReadStat(p.pid)
		if err != nil {
			continue // it has ended
		}
		sum.CPU += max(stat.CPU()-p.cpu, 0)
		p.cpu = stat.CPU()
		p.measure(sum)
		left = append(left, p)
	}
	if u.server = left; len(left) == 0 {
		return generator, nil
	}
	return generator, sum
}

// ownCPU is the processor time of this process. It is finer than that of others,
// which the kernel tells in steps of 10 ms.
func ownCPU() time.Duration {
	user, system := cpuTime()
	return user + system
}

// askRuntime asks Go's runtime of this process. Nothing stops for that.
func (u *usage) askRuntime(to *Usage) {
	debug.ReadGCStats(&u.gc)
	to.Goroutines, to.GCs, to.GCPause = runtime.NumGoroutine(), u.gc.NumGC, u.gc.PauseTotal
}

// measure adds what the process has.
func (p *watched) measure(to *Usage) {
	if m, err := procfs.ReadResident(p.pid); err == nil {
		to.Resident += m.Now
		to.Anonymous += m.Anonymous
	}
	if p.age++; p.age >= countEvery {
		n, cheap, err := procfs.CountDescriptors(p.pid)
		if err != nil {
			n = 0
		}
		p.descriptors, p.age = n, 0
		if cheap {
			p.age = countEvery
		}
	}
	to.Descriptors += p.descriptors
}
