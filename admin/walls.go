package admin

import (
	"context"
	"net"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/doctor"
)

// This file is how near the walls of the machine are: what package doctor predicts for
// the server at its present number of connections, and what is in use of the limits
// that can be read.

// wallsEvery is the least time between two looks.
const wallsEvery = 10 * time.Second

// walls is what was found at the last look.
type walls struct {
	at     time.Time
	open   int64
	report *doctor.Report // nil if there is none, see err
	levels []doctor.Level
	err    error
}

// look looks, if it is time.
func (w *walls) look(now time.Time, s myriad.Stats, addr net.Addr) {
	if !w.at.IsZero() && now.Sub(w.at) < wallsEvery {
		return
	}
	*w = walls{at: now, open: s.Open}
	facts, err := doctor.Read(0)
	if err != nil {
		w.err = err
		return
	}
	w.report, w.err = doctor.Examine(facts, doctor.Plan{
		Connections: int(max(s.Open, 1)), Side: doctor.Server, Model: s.Model, Processes: s.Processes,
	})
	w.levels, _ = readLevels(addr) // what can't be read is not shown
}

// readLevels reads once what is in use.
func readLevels(addr net.Addr) (levels []doctor.Level, err error) {
	var cfg doctor.WatchConfig
	if tcp, ok := addr.(*net.TCPAddr); ok {
		at := tcp.AddrPort()
		cfg.Target = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		if cfg.Target.Addr().IsUnspecified() {
			cfg.Target = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), at.Port())
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err = doctor.Watch(ctx, cfg, func(r doctor.Reading) {
		levels = r.Levels
		cancel()
	})
	return levels, err
}

// beside are the walls of which the doctor takes off what is in use, these connections
// among it: it tells how many more there is room for.
var beside = map[string]bool{
	"conntrack": true, "conntrack-buckets": true, "file-max": true, "memory": true, "cgroup-memory": true,
	"cgroup-sockets": true, "tcp_mem": true, "tcp_mem-pressure": true,
}

// stops is at how many connections a wall stops the server, or hurts it.
func (w *walls) stops(wall *doctor.Wall) int64 {
	if wall.Holds == doctor.Unlimited || !beside[wall.Name] {
		return wall.Holds
	}
	return wall.Holds + w.open
}
