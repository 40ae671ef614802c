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

// Usage is what one or several processes use. In an Interval, processor time and context switches
// cover the interval, and everything else is the value at its end. Unknown values are 0.
//
// User and System are processor time, and CPU is their sum. RSS is resident memory in bytes, and
// Anonymous the part of it that is not backed by a file, such as heap and stacks. Descriptors is
// the number of open descriptors.
type Usage struct {
	sample.Process `merge:"sum"`
	Processes      int `json:"processes,omitempty" merge:"gauge"`
	// Goroutines, GCs and GCPause are from Go's runtime: GCs counts garbage collections since the
	// process began, and GCPause is the total of their pauses.
	Goroutines int64         `json:"goroutines,omitempty" merge:"gauge"`
	GCs        int64         `json:"gcs,omitempty" merge:"gauge"`
	GCPause    time.Duration `json:"gc_pause,omitempty" merge:"gauge"`
	// StackInuse, HeapInuse and Sys are memory as in runtime.MemStats, in bytes.
	StackInuse int64 `json:"stack_inuse,omitempty" merge:"gauge"`
	HeapInuse  int64 `json:"heap_inuse,omitempty" merge:"gauge"`
	Sys        int64 `json:"sys,omitempty" merge:"gauge"`
	// Turns counts iterations of a server's event loops, and Lag is their duration.
	Turns int64         `json:"turns,omitempty" merge:"gauge"`
	Lag   time.Duration `json:"lag,omitempty" merge:"gauge"`
}

// UsageFigure describes a figure of a Usage that is reported.
type UsageFigure struct {
	// Column is its name in CSV after that of the process, "" for none. Metric is its Prometheus
	// name without "myriad_load_", and Help describes it.
	Column, Metric, Help string
	Of                   func(*Usage) float64
}

// UsageFigures lists all figures of a Usage that are reported. It must not be changed.
var UsageFigures = []UsageFigure{
	{"cpu_s", "cpu_seconds_total", "Processor time; that of the server since the run began.", func(u *Usage) float64 { return u.CPU().Seconds() }},
	{"resident_bytes", "resident_memory_bytes", "Resident memory of the process, 0 if unknown.", func(u *Usage) float64 { return float64(u.RSS) }},
	{"", "anonymous_memory_bytes", "Resident memory that is not backed by a file, such as heap and stacks, 0 if unknown.", func(u *Usage) float64 { return float64(u.Anonymous) }},
	{"descriptors", "open_fds", "Open descriptors of the process, 0 if unknown.", func(u *Usage) float64 { return float64(u.Descriptors) }},
	{"", "goroutines", "Goroutines of the process, 0 if unknown.", func(u *Usage) float64 { return float64(u.Goroutines) }},
	{"", "gc_cycles_total", "Garbage collections, 0 if unknown.", func(u *Usage) float64 { return float64(u.GCs) }},
	{"", "gc_pause_seconds_total", "Total pauses of garbage collections, 0 if unknown.", func(u *Usage) float64 { return u.GCPause.Seconds() }},
}

// MemoryGrowthPerConn returns the growth of memory since before the first connection, in bytes per
// connection: of Anonymous, or of RSS if that is unknown; 0 if both are.
func (u *Usage) MemoryGrowthPerConn(before *Usage, connections int64) int64 {
	if u == nil || before == nil || u.RSS == 0 || before.RSS == 0 || connections <= 0 {
		return 0
	}
	if u.Anonymous > 0 && before.Anonymous > 0 {
		return max(u.Anonymous-before.Anonymous, 0) / connections
	}
	return max(u.RSS-before.RSS, 0) / connections
}

// usageSampler samples what the generator's process and the server's use. It belongs to one
// goroutine. Failures are not errors: unknown figures are 0, and a server that cannot be inspected
// has none.
type usageSampler struct {
	targets     []string
	own, server processSampler
	gc          debug.GCStats // reused for its memory
	lookups     int           // how often the server was looked up
}

type processSampler struct {
	pids        []int // none if unknown
	sampler     sample.Sampler
	last        sample.Sample
	descriptors int // from the last count: if counting is slow, not every sample counts them
}

const usageParts = sample.CPU | sample.Memory | sample.Descriptors

// newUsageSamplerForTargets starts the first interval. The targets are IP:port or "unix:" and a path. It
// looks up the server, which is cheap before there are connections; if that fails, the first sample
// tries once more.
func newUsageSamplerForTargets(targets []string) *usageSampler {
	u := &usageSampler{targets: targets, own: processSampler{pids: []int{os.Getpid()}}}
	u.own.usageSinceLastCall()
	u.findServerProcesses()
	return u
}

// findServerProcesses looks up the processes that listen at the targets. It skips this process: if it is the
// server, too, no figure distinguishes the two.
func (u *usageSampler) findServerProcesses() {
	u.lookups++
	for _, target := range u.targets {
		for _, pid := range findListenerPIDs(target) {
			if pid != os.Getpid() && !slices.Contains(u.server.pids, pid) {
				u.server.pids = append(u.server.pids, pid)
			}
		}
	}
	u.server.usageSinceLastCall()
}

// findListenerPIDs returns the processes of this machine that listen at a target, none if the target
// is on another machine.
func findListenerPIDs(target string) []int {
	if path, ok := strings.CutPrefix(target, "unix:"); ok {
		pids, _ := procfs.FindUnixListenerPIDs(path)
		return pids
	}
	at, err := netip.ParseAddrPort(target)
	if err != nil {
		return nil
	}
	addr := at.Addr().WithZone("").Unmap()
	switch {
	case addr == netip.IPv4Unspecified():
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // as the kernel does
	case addr.IsUnspecified():
		addr = netip.IPv6Loopback()
	case !sock.IsLocalAddr(addr):
		return nil // another program may listen on that port here
	}
	pids, _ := procfs.FindListenerPIDs(at.Port(), addr)
	return pids
}

// sampleSinceLastCall returns what was used since the last call, or since newUsageSamplerForTargets. It sums up
// several server processes; memory that they share counts for each. server is nil if none is known,
// or none is left. A sample takes about 200 µs.
func (u *usageSampler) sampleSinceLastCall() (generator Usage, server *Usage) {
	if own := u.own.usageSinceLastCall(); own != nil {
		generator = *own
	}
	debug.ReadGCStats(&u.gc)
	generator.Goroutines, generator.GCs, generator.GCPause = int64(runtime.NumGoroutine()), u.gc.NumGC, u.gc.PauseTotal
	server = u.server.usageSinceLastCall()
	if len(u.server.pids) == 0 && u.lookups < 2 {
		u.findServerProcesses() // its use in this interval is unknown
	}
	return generator, server
}

// usageSinceLastCall returns what was used since the last call, nil if no process is left.
func (p *processSampler) usageSinceLastCall() *Usage {
	if len(p.pids) == 0 {
		return nil
	}
	now, _ := p.sampler.TakeSampleSkippingSlow(usageParts, p.pids...) // unreadable values are 0
	if len(now.Processes) == 0 {
		return nil
	}
	used := now.DifferenceSince(&p.last).Process
	p.last = now
	if now.Parts&sample.Descriptors != 0 {
		p.descriptors = used.Descriptors
	}
	used.Descriptors = p.descriptors
	return &Usage{Process: used, Processes: len(now.Processes)}
}
