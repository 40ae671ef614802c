// Package admission decides which connections are accepted, by total number, number per source, rate and address.
//
// Several loops call a Controller at the same time. The total is an atomic word, updated by compare-and-swap, so no
// thread waits for a sleeping one. The counts of sources are in 64 maps, each with a mutex that is held for one
// look-up. A keyed hash selects the map, so that clients cannot choose it.
package admission

import (
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

type Config struct {
	// MaxConns limits the total number of connections. If it is 0, no connection is accepted.
	MaxConns int
	// MaxPerSource limits the number of connections from one source; 0 means no limit.
	MaxPerSource int
	// SourcePrefix is the length, in bits, of the IPv6 prefix that counts as one source: 1 to 128. The default, 0,
	// means 64. Every IPv4 address is a separate source, even if it is IPv4-mapped.
	SourcePrefix int
	// Rate limits the accepted connections per second; 0 means no limit. After a quiet second, up to Rate connections
	// may be accepted at once. The maximum is 1,000,000,000.
	Rate int
	// Deny contains the addresses to reject. If Allow is not empty, addresses outside Allow are rejected, too; see
	// Prefixes.
	Allow, Deny []netip.Prefix
}

// Controller enforces a Config. It is safe for concurrent use.
type Controller struct {
	max         int64
	allow, deny Prefixes
	sources     *sourceCounters // nil without a limit
	bucket      *tokenBucket    // nil without a limit

	_     [128]byte    // slots changes constantly; the fields above are read by all threads
	slots atomic.Int64 // lower half: open connections, upper half: reserved slots
	_     [128]byte
}

// NewController returns a Controller. It panics if validConfig contains an invalid number or prefix.
func NewController(validConfig Config) *Controller {
	if min(validConfig.MaxConns, validConfig.MaxPerSource, validConfig.SourcePrefix, validConfig.Rate) < 0 || validConfig.SourcePrefix > 128 {
		panic(fmt.Sprintf("admission: Config is %+v; expected no negative number, and a SourcePrefix of at most 128", validConfig))
	}
	a := &Controller{max: int64(validConfig.MaxConns), allow: mustSortAndMergePrefixes("Config.Allow", validConfig.Allow), deny: mustSortAndMergePrefixes("Config.Deny", validConfig.Deny)}
	if validConfig.MaxPerSource > 0 {
		a.sources = newSourceCounters(validConfig.MaxPerSource, validConfig.SourcePrefix)
	}
	if validConfig.Rate > 0 {
		a.bucket = newTokenBucket(validConfig.Rate)
	}
	return a
}

const reservedUnit = 1 << 32

// AcquireConn takes one of the MaxConns slots. It returns false if all slots, including reserved ones, are taken.
func (c *Controller) AcquireConn() bool { return c.acquireUpToSlots(1, 1) == 1 }

// ReserveConns reserves up to n slots for connections from another process, and returns the number reserved.
func (c *Controller) ReserveConns(n int) int { return c.acquireUpToSlots(n, reservedUnit) }

// acquireUpToSlots takes n free slots, or all free slots if there are fewer than n. For each slot taken, it adds
// slotIncrement to c.slots.
func (c *Controller) acquireUpToSlots(n int, slotIncrement int64) (acquired int) {
	for {
		v := c.slots.Load()
		n = max(min(n, int(c.max-int64(uint32(v))-v>>32)), 0)
		if n == 0 || c.slots.CompareAndSwap(v, v+int64(n)*slotIncrement) {
			return n
		}
	}
}

// AcquireReservedConn turns a reserved slot into the slot of an open connection.
func (c *Controller) AcquireReservedConn() { c.slots.Add(1 - reservedUnit) }

func (c *Controller) ReservedConns() int { return int(c.slots.Load() >> 32) }

func (c *Controller) CancelReservedConns(n int) { c.slots.Add(-reservedUnit * int64(n)) }

func (c *Controller) ReleaseConn() {
	if int32(c.slots.Add(-1)) < 0 {
		panic("admission: Release without Acquire")
	}
}

func (c *Controller) OpenConns() int64 { return int64(uint32(c.slots.Load())) }

func (c *Controller) MaxPerSource() int {
	if c.sources == nil {
		return 0
	}
	return c.sources.max
}

// IsAllowed reports whether Config.Allow and Config.Deny permit source. It ignores the zone of source. An invalid
// source, such as the address of a unix socket, is permitted. The cost is logarithmic in the lengths of Allow and Deny.
func (c *Controller) IsAllowed(source netip.Addr) bool {
	if !source.IsValid() {
		return true
	}
	return !c.deny.Contains(source) && (c.allow.isEmpty() || c.allow.Contains(source))
}

// AcquireSourceConn counts a connection from source, or returns false if source already has MaxPerSource connections.
// For an invalid source, it counts nothing and returns true.
func (c *Controller) AcquireSourceConn(source netip.Addr) (acquired bool) {
	if c.sources == nil || !source.IsValid() {
		return true
	}
	return c.sources.acquire(source)
}

func (c *Controller) ReleaseSourceConn(source netip.Addr) {
	if c.sources != nil && source.IsValid() {
		c.sources.release(source)
	}
}

// TakeRateToken takes a token to accept one connection, and returns 0. If no token is available, it instead returns the
// time until the next token, which is at most a second. The parameter now is the time since an instant that is the same
// for all callers. If now is less than in an earlier call, but by at most a minute, TakeRateToken ignores the
// difference.
func (c *Controller) TakeRateToken(now time.Duration) (wait time.Duration) {
	if c.bucket == nil {
		return 0
	}
	return c.bucket.takeToken(now)
}

// unitsPerToken is the number of units in one token. A rate of n tokens per second is therefore n units per nanosecond.
const unitsPerToken = int64(time.Second)

// maxRate limits the tokens per second, so that sums of units fit into 64 bits.
const maxRate = 1e9

// maxClockLag is the largest backward step of the clock that is ignored. A larger step means that the clock was reset.
const maxClockLag = time.Minute

// tokenBucket is a token bucket (RFC 2697). A full bucket holds the tokens of one second.
type tokenBucket struct {
	rate int64

	mu      sync.Mutex
	units   int64
	updated time.Duration
}

func newTokenBucket(rate int) *tokenBucket {
	r := int64(min(rate, maxRate))
	return &tokenBucket{rate: r, units: r * unitsPerToken}
}

func (b *tokenBucket) takeToken(now time.Duration) (wait time.Duration) {
	now = max(now, 0) // prevents an overflow of the difference
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
