package load

import (
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// usage looks at what the generator's process and the server's use. It belongs to
// one goroutine. Nothing that it can't find out fails a run: such figures are 0,
// and a server that can't be looked at has none.
type usage struct {
	targets     []string
	own, server process
	gc          debug.GCStats // for the memory that it has
	looked      int           // how often the server was looked for
}

// process is one process or several that are sampled together.
type process struct {
	pids        []int // none where it is not known
	sampler     sample.Sampler
	last        sample.Sample
	descriptors int // when they were counted last: not each time where that is slow
}

const usageParts = sample.CPU | sample.Memory | sample.Descriptors

// newUsage begins the first interval. The targets are IP:port or "unix:" and a
// path. It looks for the server, which is cheap before there are connections; where
// it isn't found, the first sample looks once more.
func newUsage(targets []string) *usage {
	u := &usage{targets: targets, own: process{pids: []int{os.Getpid()}}}
	u.own.since()
	u.find()
	return u
}

// find looks for the processes that listen at the targets. This process is left
// out: where it is the server too, no figure tells the two apart.
func (u *usage) find() {
	u.looked++
	for _, target := range u.targets {
		for _, pid := range listeners(target) {
			if pid != os.Getpid() && !slices.Contains(u.server.pids, pid) {
				u.server.pids = append(u.server.pids, pid)
			}
		}
	}
	u.server.since()
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
// where none is known, or none is left. A sample takes some 200 µs.
func (u *usage) sample() (generator Usage, server *Usage) {
	if own := u.own.since(); own != nil {
		generator = *own
	}
	debug.ReadGCStats(&u.gc)
	generator.Goroutines, generator.GCs, generator.GCPause = runtime.NumGoroutine(), u.gc.NumGC, u.gc.PauseTotal
	server = u.server.since()
	if len(u.server.pids) == 0 && u.looked < 2 {
		u.find() // what it used in this interval isn't known
	}
	return generator, server
}

// since is what it used since the last call; nil where none is left.
func (p *process) since() *Usage {
	if len(p.pids) == 0 {
		return nil
	}
	now, _ := p.sampler.Take(usageParts, p.pids...) // what can't be read is 0
	if len(now.Processes) == 0 {
		return nil
	}
	used := now.Since(&p.last).Process
	p.last = now
	if now.Parts&sample.Descriptors != 0 {
		p.descriptors = used.Descriptors
	}
	return &Usage{CPU: used.CPU(), Resident: used.RSS, Anonymous: used.Anonymous, Descriptors: p.descriptors}
}
