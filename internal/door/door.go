// Package door decides who is let in: how many connections there are, in all and
// from one source, how fast they come, and from where.
//
// # Concurrency
//
// Everything is called by several loops at the same time. The count of all
// connections is one atomic word: the threads that want in at one moment try in
// turn, and none of them waits for one that sleeps. The counts of sources are in
// 64 maps, each under a mutex of its own that is held for one look-up; a source
// belongs to one of them by a hash that nobody outside can foresee. The rate is a
// few numbers under a mutex. The lists of addresses never change, so they have no
// lock. No lock is held while another is taken, and nothing here starts a
// goroutine.
package door

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
)

// Config is what a Door keeps to.
type Config struct {
	// MaxConns is the most connections in all. With 0 nobody gets in.
	MaxConns int
	// MaxPerSource is the most connections from one source; 0 is no bound.
	MaxPerSource int
	// SourcePrefix is how many bits of an IPv6 address tell sources apart, 1
	// to 128; 0 is 64. An IPv4 address, in the form of IPv6 too, is a source
	// by itself.
	SourcePrefix int
	// Rate is the most connections accepted in a second, and as many at once
	// after a quiet second; 0 is no bound. More than 1,000,000,000 is taken
	// for that.
	Rate int
	// Deny are the addresses that are kept out, and Allow those that are let
	// in of the others; an empty Allow lets in all others. See Prefixes for
	// what is in a prefix.
	Allow, Deny []netip.Prefix
}

// Verdict is whether an address is let in.
type Verdict uint8

// The verdicts.
const (
	Let Verdict = iota
	Denied
)

func (v Verdict) String() string {
	switch v {
	case Let:
		return "let in"
	case Denied:
		return "denied"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Door lets connections in. Its methods are safe for concurrent use.
type Door struct {
	max         int64
	allow, deny Prefixes
	sources     *sources // nil without a bound
	bucket      *bucket  // nil without a bound

	_    [128]byte // open changes all the time; what is above is read by all threads
	open atomic.Int64
	_    [128]byte
}

// New makes a Door. It panics if a number is out of its range or a prefix is
// not valid; the caller has checked what came from outside.
func New(c Config) *Door {
	for _, n := range []struct {
		name        string
		value, most int
	}{
		{"MaxConns", c.MaxConns, maxInt}, {"MaxPerSource", c.MaxPerSource, maxInt},
		{"SourcePrefix", c.SourcePrefix, 128}, {"Rate", c.Rate, maxInt},
	} {
		if n.value < 0 || n.value > n.most {
			panic(fmt.Sprintf("door: Config.%s is %d; expected 0 to %d", n.name, n.value, n.most))
		}
	}
	d := &Door{max: int64(c.MaxConns), allow: newPrefixes("Config.Allow", c.Allow), deny: newPrefixes("Config.Deny", c.Deny)}
	if c.MaxPerSource > 0 {
		d.sources = newSources(c.MaxPerSource, c.SourcePrefix)
	}
	if c.Rate > 0 {
		d.bucket = newBucket(c.Rate)
	}
	return d
}

const maxInt = int(^uint(0) >> 1)

// Enter counts one connection in, unless MaxConns are. It never counts more, not
// for a moment.
func (d *Door) Enter() bool {
	for {
		n := d.open.Load()
		if n >= d.max {
			return false
		}
		if d.open.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Leave counts one out that has entered.
func (d *Door) Leave() {
	if d.open.Add(-1) < 0 {
		panic("door: Leave without Enter")
	}
}

// Open is how many are in.
func (d *Door) Open() int64 { return d.open.Load() }

// MaxPerSource is the most connections from one source; 0 without a bound.
func (d *Door) MaxPerSource() int {
	if d.sources == nil {
		return 0
	}
	return d.sources.max
}

// Check says whether Allow and Deny let an address in. Its zone does not matter.
// An invalid address, as a unix socket has, is let in. The time it takes grows
// with the logarithm of the lists' lengths.
func (d *Door) Check(source netip.Addr) Verdict {
	if !source.IsValid() {
		return Let
	}
	if d.deny.contain(source) || !d.allow.empty() && !d.allow.contain(source) {
		return Denied
	}
	return Let
}

// Register counts a connection from a source, unless there are MaxPerSource of
// it. An invalid address is not counted.
func (d *Door) Register(source netip.Addr) bool {
	if d.sources == nil || !source.IsValid() {
		return true
	}
	return d.sources.add(source)
}

// Unregister takes back what Register has counted for the same address.
func (d *Door) Unregister(source netip.Addr) {
	if d.sources != nil && source.IsValid() {
		d.sources.remove(source)
	}
}

// Ready takes leave to accept one connection now, or says how long to wait until
// there is one to take: more than 0, at most a second. now is the time since a
// start that all callers share. One that is before that of another call counts
// as that: its caller has looked at the clock earlier. A clock that goes back by
// more than a minute is followed.
func (d *Door) Ready(now time.Duration) (wait time.Duration) {
	if d.bucket == nil {
		return 0
	}
	return d.bucket.take(now)
}
