package tcp

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/pool"
)

// The I/O models, for Server.Model.
const (
	// Auto is the best model that can run on this machine. Where that has
	// event loops, workers call the handlers, at most 4,096 of them, until
	// 1,000 calls of a loop have been quick. Then it calls them itself, and has
	// workers call them again when they hold it for long. One that has been
	// quick and then never returns holds its loop; the others go back to
	// workers when Limits.HandlerTime is over. Stats says what was chosen.
	Auto = models.Auto
	// Goroutine is a goroutine for each connection, on package net. It runs
	// on all systems, and its handlers may block.
	Goroutine = "goroutine"
	// Epoll is event loops over epoll (Linux).
	Epoll = "epoll"
	// Uring is event loops over io_uring (Linux 6.6 or later, where it is
	// not forbidden).
	Uring = "uring"
)

// Models lists the I/O models that can run on this machine, the preferred one
// last.
func Models() []string {
	var names []string
	for _, m := range models.All() {
		if m.Available() == nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// defaultLoops leaves half of the processors to the kernel's side of the work
// and to everything else: more loops than that compete with both.
func defaultLoops() int { return max(1, runtime.GOMAXPROCS(0)/2) }

// The bounds of Server.Loops and Server.Spin.
const (
	maxLoops = 1024
	maxSpin  = 10 * time.Millisecond
)

// autoPoolConfig is the pool that Auto moves handlers to. It is to be no more than many
// hands: a handler that blocks for ever must not keep the next one from getting a
// worker, and what nobody has asked for sheds nothing.
var autoPoolConfig = pool.Config{Max: autoWorkers, Queue: autoWorkers, KeepQueued: true, FIFO: true, MemoryLimit: -1}

// autoWorkers is how many workers Auto may use.
const autoWorkers = 4096
