package load

import (
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Usage is what a process uses, or several together. In an Interval processor time and context
// switches are of the interval, and everything else is as at its end. What is not known is 0.
//
// User and System are processor time and CPU is their sum; RSS is resident memory in bytes, and
// Anonymous what of it no file holds, as heap and stacks; Descriptors is how many are open.
type Usage struct {
	sample.Process `merge:"sum"`
	Processes      int `json:"processes,omitempty" merge:"gauge"`
	// Goroutines, GCs and GCPause are what Go's runtime says: GCs counts collections of garbage
	// since the process began, and GCPause is for how long they stopped everything.
	Goroutines int64         `json:"goroutines,omitempty" merge:"gauge"`
	GCs        int64         `json:"gcs,omitempty" merge:"gauge"`
	GCPause    time.Duration `json:"gc_pause,omitempty" merge:"gauge"`
	// StackInuse, HeapInuse and Sys are memory as in runtime.MemStats, in bytes.
	StackInuse int64 `json:"stack_inuse,omitempty" merge:"gauge"`
	HeapInuse  int64 `json:"heap_inuse,omitempty" merge:"gauge"`
	Sys        int64 `json:"sys,omitempty" merge:"gauge"`
	// Turns counts iterations of a server's event loops, and Lag is how long they took.
	Turns int64         `json:"turns,omitempty" merge:"gauge"`
	Lag   time.Duration `json:"lag,omitempty" merge:"gauge"`
}

// UsageFigure is a figure of a Usage that is reported.
type UsageFigure struct {
	// Column is its name in CSV behind the process, "" for none. Metric is its name for
	// Prometheus, without "myriad_load_", and Help describes it.
	Column, Metric, Help string
	Of                   func(*Usage) float64
}

// UsageFigures are all figures of a Usage that are reported. It must not be changed.
var UsageFigures = []UsageFigure{
	{"cpu_s", "cpu_seconds_total", "Processor time, of the server since the run began.", func(u *Usage) float64 { return u.CPU().Seconds() }},
	{"resident_bytes", "resident_memory_bytes", "Memory that the process has, 0 where that isn't known.", func(u *Usage) float64 { return float64(u.RSS) }},
	{"", "anonymous_memory_bytes", "Memory of it that no file holds, heap and stacks, 0 where that isn't known.", func(u *Usage) float64 { return float64(u.Anonymous) }},
	{"descriptors", "open_fds", "Descriptors that the process has open, 0 where that isn't known.", func(u *Usage) float64 { return float64(u.Descriptors) }},
	{"", "goroutines", "Goroutines that the process has, 0 where that isn't known.", func(u *Usage) float64 { return float64(u.Goroutines) }},
	{"", "gc_cycles_total", "Collections of garbage, 0 where that isn't known.", func(u *Usage) float64 { return float64(u.GCs) }},
	{"", "gc_pause_seconds_total", "How long collections of garbage stopped everything, 0 where that isn't known.", func(u *Usage) float64 { return u.GCPause.Seconds() }},
}

// PerConnection is how much more memory a process has than before the first
// connection, for each of so many connections, in bytes: Anonymous, or RSS where
// that isn't known; 0 where neither is.
func (u *Usage) PerConnection(before *Usage, connections int64) int64 {
	if u == nil || before == nil || u.RSS == 0 || before.RSS == 0 || connections <= 0 {
		return 0
	}
	if u.Anonymous > 0 && before.Anonymous > 0 {
		return max(u.Anonymous-before.Anonymous, 0) / connections
	}
	return max(u.RSS-before.RSS, 0) / connections
}

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
		pids, _ := procfs.FindUnixListeners(path)
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
	pids, _ := procfs.FindListeners(at.Port(), addr)
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
	generator.Goroutines, generator.GCs, generator.GCPause = int64(runtime.NumGoroutine()), u.gc.NumGC, u.gc.PauseTotal
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
	used.Descriptors = p.descriptors
	return &Usage{Process: used, Processes: len(now.Processes)}
}
