package lab

import (
	"context"
	"runtime"

	"github.com/myriad-go/myriad/internal/procfs"
)

// GoMemory is what the Go runtime of a process says of its memory, in bytes; see
// runtime.MemStats.
type GoMemory struct {
	StackInuse int64 `json:"stack_inuse"`
	HeapInuse  int64 `json:"heap_inuse"`
	// Sys is all that the process has from the system.
	Sys int64 `json:"sys"`
}

// readGoMemory asks the runtime of this process.
func readGoMemory() *GoMemory {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return &GoMemory{StackInuse: int64(m.StackInuse), HeapInuse: int64(m.HeapInuse), Sys: int64(m.Sys)}
}

// The metrics that a server of a Full workload shows.
const (
	metricConnections = "myriad_connections"
	metricStackInuse  = "go_memstats_stack_inuse_bytes"
	metricHeapInuse   = "go_memstats_heap_inuse_bytes"
	metricSys         = "go_memstats_sys_bytes"
)

// ask has the server say how many connections it has, and, unless there are
// several processes of which one answers, what its Go runtime says of its memory.
func (s *Sample) ask(ctx context.Context, m MetricsSource, processes int) error {
	found, err := m.Values(ctx, metricConnections, metricStackInuse, metricHeapInuse, metricSys)
	if err != nil {
		return err
	}
	s.Connections = int(found[metricConnections])
	if processes == 1 {
		s.Go = &GoMemory{
			StackInuse: int64(found[metricStackInuse]),
			HeapInuse:  int64(found[metricHeapInuse]),
			Sys:        int64(found[metricSys]),
		}
	}
	return nil
}

// readCaches notes the memory of each of the kernel's caches. Only root may read
// that on most machines: without it there are none.
func (s *Sample) readCaches() {
	slabs, err := procfs.ReadSlabs()
	if err != nil {
		return
	}
	s.Caches = make(map[string]int64, len(slabs.Caches))
	for name, cache := range slabs.Caches {
		s.Caches[name] = cache.Bytes
	}
	tcp, _ := slabs.Find("TCP")
	s.TCP = tcp.Objects
}
