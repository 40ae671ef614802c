package doctor

import (
	"cmp"
	"maps"
	"slices"
	"time"
)

// Reading is what Watch saw in one turn. It is plain data; durations are
// nanoseconds in JSON.
type Reading struct {
	At time.Time `json:"at"`
	// Processes are those whose descriptors are followed.
	Processes []int `json:"processes,omitempty"`
	// Connections counts the connected TCP sockets of the network namespace
	// (CurrEstab of /proc/net/snmp): a connection whose two ends are both on
	// this machine counts twice. Rate is by how many they grew a second since
	// the last reading.
	Connections int64   `json:"connections"`
	Rate        float64 `json:"rate"`
	// Levels are the walls that can be read, the fullest first.
	Levels []Level `json:"walls"`
	// Rose says by how much counters that tell of a wall which was met rose
	// since the last reading: those that did.
	Rose map[string]int64 `json:"rose,omitempty"`
	// Warnings are what is to be known now: each once, see Warning.
	Warnings []Warning `json:"warnings,omitempty"`
	// Unknown says what could not be read, and why.
	Unknown []string `json:"unknown,omitempty"`
	// Took is how long the reading took.
	Took time.Duration `json:"took"`
}

// Level is how far a wall is.
type Level struct {
	// Wall is its name, as Wall.Name. Of says whose it is where there are
	// several, processes or addresses: the fullest's.
	Wall string `json:"wall"`
	Of   string `json:"of,omitempty"`
	// Used of Limit are in use, Unit says what of: "descriptors", "bytes", …
	Used  int64  `json:"used"`
	Limit int64  `json:"limit"`
	Unit  string `json:"unit"`
	// Share is Used / Limit.
	Share float64 `json:"share"`
	// Rate is by how many Used grew a second over the last minute, or since it
	// is followed; In is when the limit is reached at that rate, 0 for never or
	// not within a day. From less than 3 s there is no such forecast, nor of
	// what grows by moments only, the queue of a listener.
	Rate float64       `json:"rate"`
	In   time.Duration `json:"in,omitempty"`
}

const (
	// rateOver is the time over which rates are taken.
	rateOver = time.Minute
	// rateLeast is the least time from which the future is told.
	rateLeast = 3 * time.Second
	// farthest is how far.
	farthest = 24 * time.Hour
)

// sample is what was read off the machine at one moment.
type sample struct {
	at          time.Time
	processes   []int
	connections int64
	levels      []level
	counters    map[string]int64
	unknown     []string
	events      []Warning // what is no level
}

// level is a Level as it is read.
type level struct {
	wall, of, unit string
	used, limit    int64
	moments        bool // it grows by moments only
}

// key tells it from other levels, and from another's of the same wall: when one thing
// becomes the fullest in place of another, that is no growth.
func (l *level) key() string { return l.wall + " of " + l.of }

// outlook makes readings from samples. It does no input or output.
type outlook struct {
	past   []moment // of the last minute, and one that is older, the oldest first
	last   map[string]int64
	alarms alarms
}

// moment is what is kept of a sample.
type moment struct {
	at          time.Time
	connections int64
	used        map[string]int64 // by level.key
}

// next is the reading of a sample, which is to be later than those before.
func (o *outlook) next(s sample) Reading {
	o.forget(s.at)
	r := Reading{At: s.at, Processes: s.processes, Connections: s.connections, Unknown: s.unknown}
	if n := len(o.past); n > 0 {
		before := &o.past[n-1]
		r.Rate = perSecond(s.connections-before.connections, s.at.Sub(before.at))
	}
	for i := range s.levels {
		r.Levels = append(r.Levels, o.level(s.at, &s.levels[i]))
	}
	slices.SortStableFunc(r.Levels, func(a, b Level) int { return cmp.Compare(b.Share, a.Share) })
	r.Rose = o.rose(s.counters)
	r.Warnings = append(s.events, o.alarms.of(&r)...)
	o.keep(&s)
	return r
}

// level is how far a wall is, by what is known of the past.
func (o *outlook) level(now time.Time, l *level) Level {
	level := Level{Wall: l.wall, Of: l.of, Used: l.used, Limit: l.limit, Unit: l.unit}
	if l.limit > 0 {
		level.Share = float64(l.used) / float64(l.limit)
	}
	first := slices.IndexFunc(o.past, func(m moment) bool {
		_, known := m.used[l.key()]
		return known
	})
	if first < 0 {
		return level
	}
	over := now.Sub(o.past[first].at)
	level.Rate = perSecond(l.used-o.past[first].used[l.key()], over)
	if l.moments || over < rateLeast || level.Rate <= 0 || l.used >= l.limit {
		return level
	}
	if in := float64(l.limit-l.used) / level.Rate; in < farthest.Seconds() {
		level.In = max(time.Duration(in*float64(time.Second)), 1)
	}
	return level
}

// perSecond is a rate, 0 of no time.
func perSecond(n int64, over time.Duration) float64 {
	if over <= 0 {
		return 0
	}
	return float64(n) / over.Seconds()
}

// rose is by how much counters rose since they were last read. One that is missing, or
// less than before, as in a process that has begun anew, has not risen.
func (o *outlook) rose(counters map[string]int64) map[string]int64 {
	var rose map[string]int64
	for name, n := range counters {
		before, known := o.last[name]
		if !known || n <= before {
			continue
		}
		if rose == nil {
			rose = make(map[string]int64)
		}
		rose[name] = n - before
	}
	if o.last == nil {
		o.last = make(map[string]int64)
	}
	maps.Copy(o.last, counters) // one that can't be read now may be later
	return rose
}

// forget forgets what is not needed to look back a minute from now.
func (o *outlook) forget(now time.Time) {
	old := 0
	for old+1 < len(o.past) && now.Sub(o.past[old+1].at) >= rateOver {
		old++
	}
	o.past = slices.Delete(o.past, 0, old)
}

// keep keeps a sample.
func (o *outlook) keep(s *sample) {
	m := moment{at: s.at, connections: s.connections, used: make(map[string]int64, len(s.levels))}
	for i := range s.levels {
		m.used[s.levels[i].key()] = s.levels[i].used
	}
	o.past = append(o.past, m)
}
