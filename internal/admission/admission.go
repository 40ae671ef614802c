// Package admission decides who is let in: how many connections there are, in all and
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
package admission

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Config is what a Controller enforces.
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

// Controller decides who is let in. Its methods are safe for concurrent use.
type Controller struct {
	max         int64
	allow, deny Prefixes
	sources     *sources // nil without a bound
	bucket      *bucket  // nil without a bound

	_     [128]byte    // places change all the time; what is above is read by all threads
	slots atomic.Int64 // in the lower half how many are open, in the upper one how many are promised
	_     [128]byte
}

// NewController makes a Controller. It panics if a number is out of its range or a prefix is
// not valid; the caller has checked what came from outside.
func NewController(c Config) *Controller {
	if min(c.MaxConns, c.MaxPerSource, c.SourcePrefix, c.Rate) < 0 || c.SourcePrefix > 128 {
		panic(fmt.Sprintf("admission: Config is %+v; expected no number below zero, and a SourcePrefix of 128 at most", c))
	}
	a := &Controller{max: int64(c.MaxConns), allow: newPrefixes("Config.Allow", c.Allow), deny: newPrefixes("Config.Deny", c.Deny)}
	if c.MaxPerSource > 0 {
		a.sources = newSources(c.MaxPerSource, c.SourcePrefix)
	}
	if c.Rate > 0 {
		a.bucket = newBucket(c.Rate)
	}
	return a
}

// reservedUnit is one place that is promised.
const reservedUnit = 1 << 32

// Acquire counts a connection, unless MaxConns are open or promised. It never counts more,
// not for a moment.
func (c *Controller) Acquire() bool { return c.acquireSlots(1, 1) == 1 }

// Reserve keeps up to n places free for connections that come from another process, and says
// how many.
func (c *Controller) Reserve(n int) int { return c.acquireSlots(n, reservedUnit) }

// acquireSlots takes up to n of the places that are free, for so much each.
func (c *Controller) acquireSlots(n int, unit int64) int {
	for {
		v := c.slots.Load()
		n = max(min(n, int(c.max-int64(uint32(v))-v>>32)), 0)
		if n == 0 || c.slots.CompareAndSwap(v, v+int64(n)*unit) {
			return n
		}
	}
}

// AcquireReserved counts a connection that has a place by Promise.
func (c *Controller) AcquireReserved() { c.slots.Add(1 - reservedUnit) }

// Reserved is how many places are kept free.
func (c *Controller) Reserved() int { return int(c.slots.Load() >> 32) }

// CancelReserved takes back what Promise has said of n places.
func (c *Controller) CancelReserved(n int) { c.slots.Add(-reservedUnit * int64(n)) }

// Release gives back what Acquire has counted.
func (c *Controller) Release() {
	if int32(c.slots.Add(-1)) < 0 {
		panic("admission: Release without Acquire")
	}
}

// OpenConns is how many connections are counted.
func (c *Controller) OpenConns() int64 { return int64(uint32(c.slots.Load())) }

// MaxPerSource is the most connections from one source; 0 without a bound.
func (c *Controller) MaxPerSource() int {
	if c.sources == nil {
		return 0
	}
	return c.sources.max
}

// IsAllowed reports whether Allow and Deny let an address in. Its zone does not matter.
// An invalid address, as a unix socket has, is let in. The time it takes grows
// with the logarithm of the lists' lengths.
func (c *Controller) IsAllowed(source netip.Addr) bool {
	if !source.IsValid() {
		return true
	}
	return !c.deny.Contains(source) && (c.allow.isEmpty() || c.allow.Contains(source))
}

// AcquireSource counts a connection from a source, unless there are MaxPerSource of
// it. An invalid address is not counted.
func (c *Controller) AcquireSource(source netip.Addr) bool {
	if c.sources == nil || !source.IsValid() {
		return true
	}
	return c.sources.acquire(source)
}

// ReleaseSource gives back what AcquireSource has counted for the same address.
func (c *Controller) ReleaseSource(source netip.Addr) {
	if c.sources != nil && source.IsValid() {
		c.sources.release(source)
	}
}

// TakeToken allows one connection to be accepted now, or says how long to wait for
// the next token: more than 0, at most a second. now is the time since a
// start that all callers share. One that is before that of another call counts
// as that: its caller has looked at the clock earlier. A clock that goes back by
// more than a minute is followed.
func (c *Controller) TakeToken(now time.Duration) (wait time.Duration) {
	if c.bucket == nil {
		return 0
	}
	return c.bucket.takeToken(now)
}

// A token in the bucket is so many units, so that a nanosecond brings a whole
// number of them, the rate, and none are lost by rounding.
const unitsPerToken = int64(time.Second)

// maxRate keeps the sums of units in 64 bits.
const maxRate = 1e9

// maxClockLag is how far a clock goes back before it is followed. A thread that is
// late by so much does not come; if it does, the cost is one burst.
const maxClockLag = time.Minute

// bucket is a token bucket, as in RFC 2697 (the one called C there). Full, it
// holds a second's worth.
type bucket struct {
	rate int64

	mu      sync.Mutex
	units   int64
	updated time.Duration // when units was right
}

func newBucket(rate int) *bucket {
	r := int64(min(rate, maxRate))
	return &bucket{rate: r, units: r * unitsPerToken}
}

// takeToken takes a token, or says when there is one.
func (b *bucket) takeToken(now time.Duration) (wait time.Duration) {
	now = max(now, 0) // so that no difference overflows
	b.mu.Lock()
	defer b.mu.Unlock()
	switch passed := now - b.updated; {
	case passed > 0:
		b.units = min(b.units+b.rate*int64(min(passed, time.Second)), b.rate*unitsPerToken)
		b.updated = now
	case passed < -maxClockLag:
		b.updated = now
	}
	if b.units >= unitsPerToken {
		b.units -= unitsPerToken
		return 0
	}
	return time.Duration((unitsPerToken - b.units + b.rate - 1) / b.rate)
}
