package load

import (
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sample"
	"github.com/myriad-go/myriad/internal/sock"
)

// usage measures what the generator's process and the server's use. It belongs to
// one goroutine. Nothing that it can't find out fails a run: such figures are 0,
// and a server that can't be looked at has none.
type usage struct {
	targets     []string
	own, server watched
	ownCPU      time.Duration
	gc          debug.GCStats // for the memory that it has
	searches    int           // for the server
}

// watched are the processes of one side.
type watched struct {
	pids        []int
	sampler     sample.Sampler
	last        sample.Sample
	descriptors int // as counted last
}

// newUsage begins the first interval. The targets are IP:port or "unix:" and a
// path. It looks for the server, which is cheap before there are connections; where
// it isn't found, the first sample looks once more.
func newUsage(targets []string) *usage {
	u := &usage{targets: targets, own: watched{pids: []int{os.Getpid()}}, ownCPU: ownCPU()}
	u.find()
	return u
}

// find looks for the processes that listen at the targets. This process is left
// out: where it is the server too, no figure tells the two apart.
func (u *usage) find() {
	u.searches++
	for _, target := range u.targets {
		for _, pid := range listeners(target) {
			if pid != u.own.pids[0] && !slices.Contains(u.server.pids, pid) {
				u.server.pids = append(u.server.pids, pid)
			}
		}
	}
	if len(u.server.pids) > 0 {
		u.server.last, _ = sample.Take(sample.CPU, u.server.pids...)
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

// sample is what was used since the last one, or since newUsage. Several server
// processes are added up; memory that they share counts for each. server is nil
// where none is known, or none is left. A sample takes some 100 µs for each process.
func (u *usage) sample() (generator Usage, server *Usage) {
	generator, _ = u.own.sample()
	now := ownCPU()
	generator.CPU, u.ownCPU = now-u.ownCPU, now
	u.readRuntime(&generator)
	if len(u.server.pids) == 0 {
		if u.searches < 2 {
			u.find() // what it used in this interval isn't known
		}
		return generator, nil
	}
	if used, alive := u.server.sample(); alive {
		return generator, &used
	}
	u.server.pids = nil
	return generator, nil
}

// sample is what the processes have used since the last one; alive says that there is
// one left.
func (w *watched) sample() (used Usage, alive bool) {
	now, _ := w.sampler.Take(sample.CPU|sample.Memory|sample.Descriptors, w.pids...)
	total := now.Total()
	if now.Parts&sample.Descriptors != 0 { // where counting them is slow it is done less often
		w.descriptors = total.Descriptors
	}
	grown := now.Since(&w.last).Process
	w.last = now
	return Usage{CPU: grown.CPU(), Resident: total.RSS, Anonymous: total.Anonymous, Descriptors: w.descriptors}, len(now.Processes) > 0
}

// ownCPU is the processor time of this process, which every system tells.
func ownCPU() time.Duration {
	user, system := cpuTime()
	return user + system
}

// readRuntime reads what Go's runtime says of this process. Nothing stops for that.
func (u *usage) readRuntime(to *Usage) {
	debug.ReadGCStats(&u.gc)
	to.Goroutines, to.GCs, to.GCPause = runtime.NumGoroutine(), u.gc.NumGC, u.gc.PauseTotal
}
