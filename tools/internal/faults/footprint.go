package faults

import (
	"fmt"

	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Footprint is the resource usage of a process, measured from outside.
type Footprint struct {
	// RSS is the resident memory in bytes.
	RSS int64
	// Descriptors is the number of open descriptors, and Sockets the number of sockets among them.
	Descriptors, Sockets int
}

func ReadFootprint(pid int) (Footprint, error) {
	taken, err := sample.TakeSample(sample.Memory|sample.PSS|sample.Sockets, pid)
	used := taken.SumOfProcesses()
	return Footprint{RSS: used.RSS, Descriptors: used.Descriptors, Sockets: used.Sockets}, err
}

func (f Footprint) String() string {
	return fmt.Sprintf("%.1f MB resident, %d descriptors of which %d sockets", float64(f.RSS)/1e6, f.Descriptors, f.Sockets)
}
