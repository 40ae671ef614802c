package tune

import (
	"crypto/sha256"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"testing"
)

// BenchmarkGC shows what GOGC and Go's memory limit cost: an op allocates an object of
// 512 bytes, as connections and their buffers are, with some work on it, while 256 MiB
// of such objects live, one in sixteen of which is replaced. It reports the share of the
// CPU time that the garbage collector took, its cycles for a million ops, and the
// memory that the process has at the end. docs/memory.md has figures.
func BenchmarkGC(b *testing.B) {
	const live = 256 << 20 / 512
	for _, limit := range []int64{math.MaxInt64, 1 << 30 / 100 * 90} {
		for _, gogc := range []int{100, 200, 400, -1} {
			if gogc < 0 && limit == math.MaxInt64 {
				continue // without a bound
			}
			b.Run(fmt.Sprintf("gogc=%d/limit=%t", gogc, limit != math.MaxInt64), func(b *testing.B) {
				defer debug.SetMemoryLimit(debug.SetMemoryLimit(limit))
				defer debug.SetGCPercent(debug.SetGCPercent(gogc))
				kept := make([]*object, live)
				for i := range kept {
					kept[i] = newObject()
				}
				debug.FreeOSMemory()
				before := readGC()
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
				after := readGC()
				b.ReportMetric(100*(after.gc-before.gc)/(after.busy-before.busy), "%GC")
				b.ReportMetric(float64(after.cycles-before.cycles)*1e6/float64(b.N), "cycles/Mop")
				b.ReportMetric(float64(after.memory)/(1<<20), "MiB")
				runtime.KeepAlive(kept)
			})
		}
	}
}

// object is 512 bytes in two pieces.
type object struct {
	buffer *[448]byte
	rest   [56]byte
}

func newObject() *object { return &object{buffer: new([448]byte)} }

// gcStats are what the runtime has counted: CPU seconds of the collector and of all that
// was not idle, cycles, and the memory that the process has.
type gcStats struct {
	gc, busy       float64
	cycles, memory uint64
}

func readGC() gcStats {
	s := []metrics.Sample{
		{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/total:cpu-seconds"},
		{Name: "/cpu/classes/idle:cpu-seconds"}, {Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
	}
	metrics.Read(s)
	memory := s[4].Value.Uint64() - s[5].Value.Uint64()
	runtime.GC() // CPU seconds are those of the last cycle's end
	metrics.Read(s)
	return gcStats{s[0].Value.Float64(), s[1].Value.Float64() - s[2].Value.Float64(), s[3].Value.Uint64(), memory}
}
