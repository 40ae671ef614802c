// Package tune sets the Go runtime to the machine, or the container, that a
// server runs on. Nothing of it happens unless it is called.
package tune

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"

	"github.com/myriad-go/myriad/internal/cgroup"
)

// Options say what Memory sets. The zero value means the defaults.
type Options struct {
	// Percent is the share of the memory that this process may use which
	// becomes Go's memory limit, 1 to 100. The default is 90. What is left
	// is for what Go does not count: the kernel's memory for sockets, which
	// cgroups do count, C code and mapped files. A server with so many
	// connections that their sockets take more than a tenth leaves more.
	Percent int
	// GOGC is how much garbage, in per cent of what is live, may be made
	// before it is collected, as for debug.SetGCPercent: 1 to 100,000, or -1
	// for off, by which it is collected only as the memory limit comes near.
	// The default is 0: it stays as it is, 100. See docs/memory.md for what
	// more is worth.
	GOGC int
	// Processes is how many processes like this one share the memory, 1 to
	// 1,024: Server.Processes. The default is 1.
	Processes int
}

// Settings are what Memory has set.
type Settings struct {
	// Bound is the memory that this process may use, in bytes, and From what
	// says so, such as "cgroup /a/b memory.max" or "the machine's memory".
	// Bound is math.MaxInt64 where none is known.
	Bound int64
	From  string
	// MemoryLimit is Go's memory limit now, in bytes, math.MaxInt64 for
	// none, and GOGC its percentage of garbage, -1 for off.
	MemoryLimit int64
	GOGC        int
	// SetLimit and SetGOGC say whether Memory has set them, or left them as
	// they were.
	SetLimit, SetGOGC bool
}

// String is for a line of a log.
func (s Settings) String() string {
	limit := "none"
	if s.MemoryLimit != math.MaxInt64 {
		limit = mib(s.MemoryLimit)
	}
	switch {
	case s.SetLimit:
		limit += fmt.Sprintf(" (of %s: %s)", mib(s.Bound), s.From)
	default:
		limit += " (as it was)"
	}
	gogc := "off"
	if s.GOGC >= 0 {
		gogc = fmt.Sprint(s.GOGC)
	}
	if !s.SetGOGC {
		gogc += " (as it was)"
	}
	return "memory limit " + limit + ", GOGC " + gogc
}

// mib is a size as people read it.
func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// Memory sets Go's memory limit to a share of the memory that this process may
// use: the least of the limits of its cgroups and the machine's memory. Then the
// garbage collector works harder as the limit comes near, where otherwise the
// kernel would end the process. A limit that is set already, by GOMEMLIMIT in the
// environment (also "off" there) or by the program, stays; so does GOGC if it is
// in the environment, or if Options.GOGC is 0. Where no memory is known, as on
// other systems than Linux, no limit is set. GOGC -1 without any limit is an
// error, because nothing would ever be collected.
//
// It is meant to be called once, at the start of main. Concurrent calls are safe,
// but the last one wins.
func Memory(o Options) (Settings, error) {
	if err := o.resolve(); err != nil {
		return Settings{}, err
	}
	s := Settings{MemoryLimit: debug.SetMemoryLimit(-1)}
	s.Bound, s.From = cgroup.MemoryLimit()
	given := os.Getenv("GOMEMLIMIT") // may be "off"; the runtime takes "" as not there
	if given == "" && s.MemoryLimit == math.MaxInt64 && s.Bound != math.MaxInt64 {
		s.MemoryLimit, s.SetLimit = share(s.Bound, o), true
	}
	s.SetGOGC = o.GOGC != 0 && os.Getenv("GOGC") == ""
	if s.SetGOGC && o.GOGC < 0 && s.MemoryLimit == math.MaxInt64 {
		return Settings{}, errors.New("tune: Options.GOGC is -1 (off) and there is no memory limit: garbage would never be collected; " +
			"expected a GOGC above 0, or a limit in GOMEMLIMIT")
	}
	if s.SetLimit {
		debug.SetMemoryLimit(s.MemoryLimit)
	}
	if s.SetGOGC {
		debug.SetGCPercent(o.GOGC)
	}
	s.GOGC = gogc()
	return s, nil
}

// share is the part of the memory that is Go's, at least a MiB.
func share(bound int64, o Options) int64 {
	return max(bound/100/int64(o.Processes)*int64(o.Percent), 1<<20)
}

// gogc is Go's percentage of garbage now, -1 for off.
func gogc() int {
	sample := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	metrics.Read(sample)
	if percent := sample[0].Value.Uint64(); percent <= math.MaxInt32 {
		return int(percent)
	}
	return -1
}

// resolve fills in the defaults and says what is wrong.
func (o *Options) resolve() error {
	if o.Percent == 0 {
		o.Percent = 90
	}
	if o.Processes == 0 {
		o.Processes = 1
	}
	switch {
	case o.Percent < 1 || o.Percent > 100:
		return fmt.Errorf("tune: Options.Percent is %d; expected 1 to 100, or 0 for the default, 90", o.Percent)
	case o.GOGC < -1 || o.GOGC > 100_000:
		return fmt.Errorf("tune: Options.GOGC is %d; expected 1 to 100000, -1 for off, or 0 to leave it", o.GOGC)
	case o.Processes < 1 || o.Processes > 1024:
		return fmt.Errorf("tune: Options.Processes is %d; expected 1 to 1024, or 0 for the default, 1", o.Processes)
	}
	return nil
}
