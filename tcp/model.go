package tcp

import (
	"runtime"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
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
	// Uring uses event loops over io_uring (Linux 6.6 or later, unless io_uring is forbidden).
	Uring = "uring"
)

// Models returns the names of the I/O models that are available on this machine. The last name is that of the preferred
// model.
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

// autoPoolConfig configures the worker pool of the model Auto. This pool runs handlers until they have proved to be
// quick.
var autoPoolConfig = pool.Config{Max: autoWorkers, Queue: autoWorkers, KeepQueued: true, FIFO: true, MemoryLimit: -1}

const autoWorkers = 4096 // many, because a handler may block forever

func (s *Server) choosesModel() bool { return s.Model == "" || s.Model == Auto }

func (s *Server) logModelChoice(m engine.Model, reason error) {
	s.rateLimitedLogger().Info("I/O model chosen", "model", m.Name, "reason", reason.Error())
}

// resolveLoops returns the number of event loops. If each loop needs its own descriptor table, connsPerPrivateTable is
// the number of connections that fit in one table. Otherwise, it is 0.
func (s *Server) resolveLoops(m engine.Model, maxConns int) (loops, connsPerPrivateTable int, err error) {
	loops = s.Loops
	switch {
	case loops == 0 && s.Processes > 1:
		loops = 1
	case loops == 0:
		loops = defaultLoops()
	}
	limit := maxLoops
	if !m.HasLoops {
		limit = 0
	}
	need, connsPerPrivateTable, err := sock.PlanLoopsAndDescriptorTables(maxConns, loops, limit)
	switch {
	case err != nil:
		return 0, 0, badConfig("Limits.MaxConns: %w; alternatively, serve with event loops (Server.Model) or Server.Processes, "+
			"which each have their own limit", err)
	case s.Loops > 0 && s.Loops < need:
		return 0, 0, badConfig("Server.Loops is %d; expected 0 (the default: as many as necessary) or at least %d "+
			"for %d connections with this descriptor limit: each loop has a table for %d",
			s.Loops, need, maxConns, connsPerPrivateTable)
	}
	return need, connsPerPrivateTable, nil
}
