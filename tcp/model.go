package tcp

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/pool"
)

// I/O models for Server.Model.
const (
	// Auto selects the best model available on this machine. With event loops, a pool of at most 4,096 workers calls
	// the handlers at first. After 1,000 quick calls for its connections, a loop calls the handlers itself. If the
	// handlers then block the loop for long, workers take over again. Stats reports the choice.
	Auto = models.Auto
	// Goroutine uses a goroutine per connection, on package net. It runs on all systems, and handlers may block.
	Goroutine = "goroutine"
	// Epoll uses event loops over epoll (Linux).
	Epoll = "epoll"
	// Uring uses event loops over io_uring (Linux 6.6 or later, unless it is forbidden).
	Uring = "uring"
)

// Models returns the names of the I/O models available on this machine. The last is the preferred model.
func Models() (available []string) {
	var names []string
	for _, m := range models.All() {
		if m.Available() == nil {
			names = append(names, m.Name)
		}
	}
	return names
}

func defaultLoops() int { return max(1, runtime.GOMAXPROCS(0)/2) }

const (
	maxLoops = 1024
	maxSpin  = 10 * time.Millisecond
)

// autoPoolConfig configures the pool to which Auto moves slow handlers.
var autoPoolConfig = pool.Config{Max: autoWorkers, Queue: autoWorkers, KeepQueued: true, FIFO: true, MemoryLimit: -1}

const autoWorkers = 4096 // many, because a handler may block forever

func (s *Server) choosesModel() bool { return s.Model == "" || s.Model == Auto }

func (s *Server) logModelChoice(m engine.Model, reason error) {
	s.rateLimitedLogger().Info("I/O model chosen", "model", m.Name, "reason", reason.Error())
}
