package faults

import (
	"fmt"

	"github.com/myriad-go/myriad/tools/internal/sample"
)

// Footprint is what a process has of the machine, seen from outside.
type Footprint struct {
	// RSS is resident memory in bytes.
	RSS int64
	// Descriptors is how many are open, Sockets how many of them are sockets.
	Descriptors, Sockets int
}

// ReadFootprint looks at a process.
func ReadFootprint(pid int) (Footprint, error) {
	taken, err := sample.Take(sample.Memory|sample.PSS|sample.Sockets, pid)
	used := taken.Total()
	return Footprint{RSS: used.RSS, Descriptors: used.Descriptors, Sockets: used.Sockets}, err
}

func (f Footprint) String() string {
	return fmt.Sprintf("%.1f MB resident, %d descriptors of which %d sockets", float64(f.RSS)/1e6, f.Descriptors, f.Sockets)
}
