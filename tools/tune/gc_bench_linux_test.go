package tune

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"syscall"
	"testing"

	"github.com/prometheus/procfs"
)

// BenchmarkGC shows what GOGC and Go's memory limit cost, by the live heap: an op allocates an
// object of 512 bytes, as connections and their buffers are, with a SHA-256 of it, and replaces
// one in sixteen of those that live. It reports CPU time, the collector's share of it and
// cycles, and the peak RSS. docs/memory.md has figures.
func BenchmarkGC(b *testing.B) {
	const most = 1 << 30 / 100 * 90
	for _, live := range []int{100, 256, 600} {
		for _, limit := range []int64{math.MaxInt64, most} {
			for _, gogc := range []int{50, 100, 200, 400, -1} {
				if gogc < 0 && limit != most {
					continue // without a bound
				}
				b.Run(fmt.Sprintf("live=%dMiB/limit=%t/gogc=%d", live, limit == most, gogc), func(b *testing.B) {
					defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
					defer debug.SetGCPercent(debug.SetGCPercent(gogc))
					collect(b, live<<20/512)
				})
			}
		}
	}
}

// object is 512 bytes in two pieces.
type object struct {
	buffer *[448]byte
	rest   [56]byte
}

func newObject() *object { return &object{buffer: new([448]byte)} }

// collect makes garbage beside so many objects that live.
func collect(b *testing.B, live int) {
	kept := make([]*object, live)
	for i := range kept {
		kept[i] = newObject()
	}
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // the peak begins anew
		b.Fatal(err)
	}
	before := readUsage(b)
	b.ResetTimer()
	var workers sync.WaitGroup
	shares := runtime.GOMAXPROCS(0)
	for w := range shares {
		share := kept[w*live/shares : (w+1)*live/shares]
		workers.Go(func() {
			for i := range b.N / shares {
				o := newObject()
				sum := sha256.Sum256(o.buffer[:])
				copy(o.rest[:], sum[:])
				if i%16 == 0 {
					share[rand.IntN(len(share))] = o
				}
			}
		})
	}
	workers.Wait()
	b.StopTimer()
	self, err := procfs.Self()
	if err != nil {
		b.Fatal(err)
	}
	status, err := self.NewStatus()
	if err != nil {
		b.Fatal(err)
	}
	runtime.KeepAlive(kept)
	after := readUsage(b)
	b.ReportMetric((after.cpu-before.cpu)*1e9/float64(b.N), "CPU-ns/op")
	b.ReportMetric(100*(after.gc-before.gc)/(after.busy-before.busy), "%GC")
	b.ReportMetric(float64(after.cycles-before.cycles)*1e6/float64(b.N), "cycles/Mop")
	b.ReportMetric(float64(status.VmHWM)/(1<<20), "peak-MiB")
}

// usage is what the process has used: CPU seconds, and by the runtime's count those of the
// garbage collector and of all that was not idle, as of its last cycle.
type usage struct {
	cpu, gc, busy float64
	cycles        uint64
}

func readUsage(b *testing.B) usage {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	s := []metrics.Sample{
		{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/total:cpu-seconds"},
		{Name: "/cpu/classes/idle:cpu-seconds"}, {Name: "/gc/cycles/total:gc-cycles"},
	}
	metrics.Read(s)
	return usage{
		cpu: float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9,
		gc:  s[0].Value.Float64(), busy: s[1].Value.Float64() - s[2].Value.Float64(), cycles: s[3].Value.Uint64(),
	}
}
