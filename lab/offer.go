package lab

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Offer is what a workload of kind Offering offers, for the workload's WarmUp without
// being counted, and then for its Duration. Workload.Connections and Pipeline count for
// lines to a server only: over how many connections, and how many in flight on each.
type Offer struct {
	// Shape is the kind of job: "published", "cpu" or "mixed", as "myriad offer --work"
	// has them, or "network" for lines to sides that are servers. The capacity is
	// measured once for each.
	Shape string `json:"shape" toml:"shape"`
	// Times is the part of the capacity that is offered, above 0 and up to 1000. 1 is
	// all of it, not a bit less, so that in an open loop a queue builds up there, too.
	Times float64 `json:"times,omitempty" toml:"times"`
	// Rate is jobs a second, up to 100 million, where Times is 0.
	Rate float64 `json:"rate,omitempty" toml:"rate"`
	// Windows is for how many times Duration jobs are offered, up to 100. Default 1.
	Windows int `json:"windows,omitempty" toml:"windows"`
	// Memory is how many bytes a side may use, from 16 MiB; a watchdog ends it when it
	// takes more. Default 2 GiB.
	Memory int64 `json:"memory,omitempty" toml:"memory"`
	// Deadline is within which time from its submission a job has to end to be of use,
	// from 1 ms to an hour. Default 200 ms.
	Deadline time.Duration `json:"deadline,omitempty" toml:"deadline"`
	// Queue is how many jobs may wait in a side that has a queue, from 1 to 16,777,216.
	// Default 1,024.
	Queue int `json:"queue,omitempty" toml:"queue"`
}

// Side says how a subject is offered jobs. But for a Server its command understands the
// flags of "myriad offer", which are put behind it, and prints what that prints. In its
// command "{self}" is as in Subject.Command, and in that of a Server also "{addr}", "{port}",
// and "{workers}", a number of workers that keeps each CPU busy.
type Side struct {
	// Told says that it is told the best number of workers; others may have 5,000.
	Told bool `json:"told,omitempty" toml:"told"`
	// Own says that it is the pool of this repository, Variant that it is that pool
	// without a rule.
	Own     bool `json:"own,omitempty" toml:"own"`
	Variant bool `json:"variant,omitempty" toml:"variant"`
	// Server says that it is a server, which is offered lines of the shape "network".
	Server bool `json:"server,omitempty" toml:"server"`
	// Unbounded says that nothing bounds what it has under way: the report says how it
	// has ended.
	Unbounded bool `json:"unbounded,omitempty" toml:"unbounded"`
	// Measures says that it runs in a closed loop first, to measure the capacity: with
	// more and more workers if it is told how many, and the best of these is the number
	// that all are told.
	Measures bool `json:"measures,omitempty" toml:"measures"`
}

const (
	minMemory   = 16 << 20
	minDeadline = time.Millisecond
	maxDeadline = time.Hour
	maxWaiting  = 1 << 24
	maxTimes    = 1000
	maxRate     = 100e6
	maxWindows  = 100
	// maxOffered is a third of an hour, the most that "myriad offer" takes.
	maxOffered = 20 * time.Minute
)

// shapeNetwork is the shape of lines to a server.
const shapeNetwork = "network"

// shapes are those of "myriad offer --work", and that of the network.
var shapes = []string{"published", "cpu", "mixed", shapeNetwork}

// The names of the loads that the verdict speaks of.
const (
	unloaded = "unloaded"
	once     = "1x"
	tenfold  = "10x"
)

// network says whether lines are offered to a server.
func (f *Offer) network() bool { return f.Shape == shapeNetwork }

// load is what the load is called.
func (f *Offer) load() string {
	switch {
	case f.Times == 0:
		return thousands(f.Rate) + "/s"
	case f.Times < 1:
		return unloaded
	}
	return fmt.Sprintf("%gx", f.Times)
}

// filled is the offer with its defaults.
func (f Offer) filled() Offer {
	if f.Windows == 0 {
		f.Windows = 1
	}
	if f.Memory == 0 {
		f.Memory = 2 << 30
	}
	if f.Deadline == 0 {
		f.Deadline = 200 * time.Millisecond
	}
	if f.Queue == 0 {
		f.Queue = 1024
	}
	return f
}

// check returns a ScenarioError when the offer makes no sense.
func (f Offer) check(workload string) error {
	bad := func(format string, args ...any) error {
		return wrong("workload %s: %s", workload, fmt.Sprintf(format, args...))
	}
	f = f.filled()
	switch {
	case !slices.Contains(shapes, f.Shape):
		return bad("jobs of shape %q; expected %s", f.Shape, joined(shapes))
	case f.Times < 0 || f.Times > maxTimes:
		return bad("%g times the capacity; expected more than 0, to %d", f.Times, maxTimes)
	case f.Rate < 0 || f.Rate > maxRate || (f.Rate == 0) == (f.Times == 0):
		return bad("%g jobs a second, and %g times the capacity; expected one of the two above 0, at most %.0f a second", f.Rate, f.Times, maxRate)
	case f.Windows < 1 || f.Windows > maxWindows:
		return bad("%d windows; expected 1 to %d", f.Windows, maxWindows)
	case f.Memory < minMemory:
		return bad("a memory of %d bytes; expected at least %d", f.Memory, minMemory)
	case f.Deadline < minDeadline || f.Deadline > maxDeadline:
		return bad("a deadline of %v; expected %v to %v", f.Deadline, minDeadline, maxDeadline)
	case f.Queue < 1 || f.Queue > maxWaiting:
		return bad("a queue of %d; expected 1 to %d", f.Queue, maxWaiting)
	}
	return nil
}

// checkOffering is the check of a workload of kind Offering.
func checkOffering(w Workload) error {
	if w.Offer == nil {
		return wrong("workload %s: no offer; expected what jobs are offered, with kind %s", w.Name, Offering)
	}
	if err := w.Offer.check(w.Name); err != nil {
		return err
	}
	switch window := w.offered(); {
	case w.WarmUp < 0 || w.WarmUp > maxOffered:
		return wrong("workload %s: a warm-up of %v; expected up to %v", w.Name, w.WarmUp, maxOffered)
	case w.Duration < minDuration || window > maxOffered:
		return wrong("workload %s: a duration of %v; expected %v to %v", w.Name, w.Duration, minDuration, maxOffered/time.Duration(w.Offer.filled().Windows))
	case w.Offer.network() && (w.Connections < 1 || w.Pipeline < 1):
		return wrong("workload %s: %d connections with %d lines in flight on each; expected at least 1 of both", w.Name, w.Connections, w.Pipeline)
	}
	return nil
}

// offered is for how long jobs are offered and counted.
func (w Workload) offered() time.Duration {
	return w.Duration * time.Duration(max(w.Offer.Windows, 1))
}

// joined writes words as "a, b and c".
func joined(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
