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

// Usage contains the resources used by one or several processes. In an Interval, processor time covers only the
// interval. All other fields contain the values at the end of the interval. Unknown values are 0.
//
// User and System are processor time, and CPU is their sum. RSS is resident memory in bytes. Anonymous is the part of
// RSS that is not backed by a file, such as heap and stacks. Descriptors is the number of open descriptors.
type Usage struct {
	sample.Process `merge:"sum"`
	Processes      int `json:"processes,omitempty" merge:"gauge"`
	// Goroutines, GCs and GCPause come from the Go runtime. GCs counts garbage collections since the process began;
	// GCPause is the total time of their pauses.
	Goroutines int64         `json:"goroutines,omitempty" merge:"gauge"`
	GCs        int64         `json:"gcs,omitempty" merge:"gauge"`
	GCPause    time.Duration `json:"gc_pause,omitempty" merge:"gauge"`
	// StackInuse, HeapInuse and Sys are memory in bytes, as in runtime.MemStats.
	StackInuse int64 `json:"stack_inuse,omitempty" merge:"gauge"`
	HeapInuse  int64 `json:"heap_inuse,omitempty" merge:"gauge"`
	Sys        int64 `json:"sys,omitempty" merge:"gauge"`
	// Turns counts the iterations of a server's event loops. Lag is the total duration of these iterations.
	Turns int64         `json:"turns,omitempty" merge:"gauge"`
	Lag   time.Duration `json:"lag,omitempty" merge:"gauge"`
}

// UsageFigure describes one figure of a Usage for use in reports.
type UsageFigure struct {
	// Column is the figure's name in CSV, without the prefix "generator_" or "server_"; it is "" if CSV does not
	// contain the figure. Metric is the name in Prometheus, without the prefix "myriad_load_". Help describes the
	// figure.
	Column, Metric, Help string
	Of                   func(*Usage) float64
}

// UsageFigures lists the figures of a Usage that appear in reports. The list must not be changed.
var UsageFigures = []UsageFigure{
	{"cpu_s", "cpu_seconds_total", "Processor time; that of the server since the run began.", func(u *Usage) float64 { return u.CPU().Seconds() }},
	{"resident_bytes", "resident_memory_bytes", "Resident memory of the process, 0 if unknown.", func(u *Usage) float64 { return float64(u.RSS) }},
	{"", "anonymous_memory_bytes", "Resident memory that is not backed by a file, such as heap and stacks, 0 if unknown.", func(u *Usage) float64 { return float64(u.Anonymous) }},
	{"descriptors", "open_fds", "Open descriptors of the process, 0 if unknown.", func(u *Usage) float64 { return float64(u.Descriptors) }},
	{"", "goroutines", "Goroutines of the process, 0 if unknown.", func(u *Usage) float64 { return float64(u.Goroutines) }},
	{"", "gc_cycles_total", "Garbage collections, 0 if unknown.", func(u *Usage) float64 { return float64(u.GCs) }},
	{"", "gc_pause_seconds_total", "Total pauses of garbage collections, 0 if unknown.", func(u *Usage) float64 { return u.GCPause.Seconds() }},
}

// MemoryGrowthPerConn returns the growth of memory since an earlier Usage, in bytes per connection. It compares
// Anonymous or, if Anonymous is unknown, RSS. It returns 0 if the memory is unknown or has not grown.
func (u *Usage) MemoryGrowthPerConn(before *Usage, connections int64) int64 {
	if u == nil || before == nil || u.RSS == 0 || before.RSS == 0 || connections <= 0 {
		return 0
	}
	if u.Anonymous > 0 && before.Anonymous > 0 {
		return max(u.Anonymous-before.Anonymous, 0) / connections
	}
	return max(u.RSS-before.RSS, 0) / connections
}

// usageSampler measures the resources that the load generator and the server use. Only one goroutine may use it.
type usageSampler struct {
	targets     []string
	own, server processSampler
	gc          debug.GCStats // kept to reuse its memory
	lookups     int           // number of searches for the server
}

type processSampler struct {
	pids        []int // empty if unknown
	sampler     sample.Sampler
	last        sample.Sample
	descriptors int // last count, which samples repeat if counting is slow
}

const usageParts = sample.CPU | sample.Memory | sample.Descriptors

// newGeneratorAndServerSampler returns a sampler whose first interval begins now. Each target is IP:port or unix:PATH.
func newGeneratorAndServerSampler(targets []string) *usageSampler {
	u := &usageSampler{targets: targets, own: processSampler{pids: []int{os.Getpid()}}}
	u.own.usageSinceLastCall()
	// Search before connecting, because open connections make a search slow.
	u.findServersExceptOwnProcess()
	return u
}

// findServersExceptOwnProcess finds the processes that listen at the targets, except the current process. It adds them
// to u.server and begins to sample them.
func (u *usageSampler) findServersExceptOwnProcess() {
	u.lookups++
	for _, target := range u.targets {
		for _, pid := range findLocalListenerPIDs(target) {
			if pid != os.Getpid() && !slices.Contains(u.server.pids, pid) {
				u.server.pids = append(u.server.pids, pid)
			}
		}
	}
	u.server.usageSinceLastCall()
}

// findLocalListenerPIDs returns the local processes that listen at a target. It returns nil for a remote target.
func findLocalListenerPIDs(target string) []int {
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
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1}) // the kernel does the same
	case addr.IsUnspecified():
		addr = netip.IPv6Loopback()
	case !sock.IsLocalAddr(addr):
		return nil // another program may use that port on this machine
	}
	pids, _ := procfs.FindListenerPIDs(at.Port(), addr)
	return pids
}

func (u *usageSampler) sampleSinceLastCall() (generator Usage, serverOrNil *Usage) {
	if own := u.own.usageSinceLastCall(); own != nil {
		generator = *own
	}
	debug.ReadGCStats(&u.gc)
	generator.Goroutines, generator.GCs, generator.GCPause = int64(runtime.NumGoroutine()), u.gc.NumGC, u.gc.PauseTotal
	serverOrNil = u.server.usageSinceLastCall()
	if len(u.server.pids) == 0 && u.lookups < 2 {
		u.findServersExceptOwnProcess() // what they used in this interval is unknown
	}
	return generator, serverOrNil
}

func (p *processSampler) usageSinceLastCall() (usageOrNil *Usage) {
	if len(p.pids) == 0 {
		return nil
	}
	now, _ := p.sampler.TakeSampleThrottlingSlowParts(usageParts, p.pids...) // unreadable values are 0
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
