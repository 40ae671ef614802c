package admission

import (
	"fmt"
	"hash/maphash"
	"net/netip"
	"sync"
)

// shardCount is the number of maps in sourceCounters.
const shardCount = 64

// source is the prefix that identifies the source of connections, padded with zeros. It contains no pointers, so the
// garbage collector does not scan a map with source keys.
type source [16]byte

// sourceCounters counts the open connections of each source. A source without connections has no entry. The maps never
// shrink. A map permanently uses 35 to 56 bytes for each of the entries that it had at its largest size.
type sourceCounters struct {
	max    int
	bits   int
	seed   maphash.Seed
	shards [shardCount]shard
}

// shard counts the connections of some of the sources. Padding prevents two shards from sharing a cache line.
type shard struct {
	mu    sync.Mutex
	count map[source]int
	_     [128 - 16]byte
}

func newSourceCounters(maxPerSource, prefixBits int) *sourceCounters {
	if prefixBits == 0 {
		prefixBits = 64
	}
	s := &sourceCounters{max: maxPerSource, bits: prefixBits, seed: maphash.MakeSeed()}
	for i := range s.shards {
		s.shards[i].count = make(map[source]int)
	}
	return s
}

func (s *sourceCounters) sourceAndShardOf(a netip.Addr) (source, *shard) {
	from := source(a.As16())
	if a.Is6() && !a.Is4In6() {
		whole := s.bits / 8
		if whole < len(from) {
			from[whole] &= ^byte(0xff >> (s.bits % 8))
			clear(from[whole+1:])
		}
	}
	return from, &s.shards[maphash.Bytes(s.seed, from[:])%shardCount]
}

func (s *sourceCounters) acquire(a netip.Addr) (acquired bool) {
	from, in := s.sourceAndShardOf(a)
	in.mu.Lock()
	defer in.mu.Unlock()
	n := in.count[from]
	if n >= s.max {
		return false
	}
	in.count[from] = n + 1
	return true
}

func (s *sourceCounters) release(a netip.Addr) {
	from, in := s.sourceAndShardOf(a)
	in.mu.Lock()
	defer in.mu.Unlock()
	switch n := in.count[from]; n {
	case 0:
		panic(fmt.Sprintf("admission: ReleaseSourceConn of %v without AcquireSourceConn", a))
	case 1:
		delete(in.count, from)
	default:
		in.count[from] = n - 1
	}
}
