package overload

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Parameters of fairShares.
const (
	sketchRows      = 4
	rowBuckets      = 1024
	shareInterval   = 100 * time.Millisecond
	shareSmoothing  = 0.25 // weight of the latest interval in estimates
	sketchLifetime  = 5 * time.Second
	sketchWarmUp    = time.Second // during which a new sketch only counts
	fullProbability = 1 << 16     // the probability 1
	// headroom times the recently admitted requests may pass fairShares, so that the number of credits can grow.
	headroom = 1.2
)

// fairShares limits each source of requests or connections to its fair share during an overload. Every IPv4 address and
// every IPv6 prefix of 64 bits is a source.
//
// The algorithm is core-stateless fair queueing (Stoica, Shenker and Zhang, SIGCOMM 1998). At regular intervals,
// updateIfDue estimates the number of arrivals of each source. It then computes a threshold for the arrivals of a
// source. If each source were limited to the threshold, the sum of all sources would be the number that may be
// admitted. countAndAdmitByChance admits each arrival of a source with the probability min(1, threshold/arrivals).
//
// The memory is bounded, because a sketch of fixed size contains the estimates. In a sketch, two sources can share the
// same buckets. A new sketch with a new hash function therefore regularly replaces the old one, as in stochastic
// fairness queueing (McKenney, INFOCOM 1990). A sketch exists only during an overload.
type fairShares struct {
	weights       sourceWeights // immutable after the first arrival
	current, next atomic.Pointer[sourceSketch]
	admitted      atomic.Int64 // counted arrivals that were admitted in the interval

	switchAt     time.Duration // when next replaces current
	updateAt     time.Duration
	meanAdmitted float64 // per interval
}

// sourceSketch counts arrivals of sources in a fixed number of buckets, like a count-min sketch (Cormode and
// Muthukrishnan, 2005). In each row, the hash of a source selects one bucket. Several sources may share a bucket. The
// bucket with the fewest arrivals is therefore the best estimate for the source.
type sourceSketch struct {
	seed maphash.Seed
	rows [sketchRows]sketchRow
}

type sketchRow struct {
	arrivals    [rowBuckets]atomic.Uint32 // in the interval
	probability [rowBuckets]atomic.Uint32 // of being admitted
	estimate    [rowBuckets]float64       // smoothed arrivals per interval
}

// countAndAdmitByChance counts an arrival from source and decides at random whether to admit it. The more arrivals are
// estimated for source, the lower is the probability. If there is no estimate, the probability is flatProbability, in
// units of 1/fullProbability. If flatProbability is 0, no arrival is admitted. isCounted is false if shares are not
// being computed, or if source is invalid or has the weight 0.
func (f *fairShares) countAndAdmitByChance(source netip.Addr, flatProbability uint32) (admitted, isCounted bool) {
	weight, current, next := f.weights.weightOf(source), f.current.Load(), f.next.Load()
	if weight == 0 || !source.IsValid() || current == nil && next == nil {
		return isLucky(flatProbability), false
	}
	key := pickOneOfSourceKeys(source, weight)
	if next != nil {
		next.countAndGetProbability(&key)
	}
	if current == nil {
		return isLucky(flatProbability), true
	}
	probability := current.countAndGetProbability(&key)
	return flatProbability > 0 && isLucky(probability), true
}

// sourceKey identifies a source. It contains an IPv4 address or the first 64 bits of an IPv6 address. An address with a
// weight of n > 1 counts as n sources. The keys of these sources differ in the last four bytes.
type sourceKey [20]byte

// pickOneOfSourceKeys returns the key of source. If numKeys, the weight of source, exceeds 1, source has several keys,
// and pickOneOfSourceKeys returns one of them at random.
func pickOneOfSourceKeys(source netip.Addr, numKeys uint32) (k sourceKey) {
	address := source.As16()
	if copy(k[:], address[:]); source.Is6() && !source.Is4In6() {
		clear(k[8:16])
	}
	if numKeys > 1 {
		binary.NativeEndian.PutUint32(k[16:], rand.Uint32N(numKeys))
	}
	return k
}

func (s *sourceSketch) countAndGetProbability(key *sourceKey) (probability uint32) {
	hash := maphash.Bytes(s.seed, key[:])
	for i := range s.rows {
		r, bucket := &s.rows[i], hash%rowBuckets
		hash /= rowBuckets
		r.arrivals[bucket].Add(1)
		probability = max(probability, r.probability[bucket].Load())
	}
	return probability
}

func isLucky(probability uint32) bool {
	return probability >= fullProbability || rand.Uint32()>>16 < probability
}

// updateIfDue updates the estimates and probabilities at the end of each interval. flatProbability is the share of all
// arrivals that may be admitted. The constant certain means all arrivals. If hasCredits is true, the number of admitted
// arrivals is also limited to the recent number of admitted requests, multiplied by the constant headroom.
func (f *fairShares) updateIfDue(now time.Duration, flatProbability uint32, hasCredits bool) {
	if now < f.updateAt {
		return
	}
	f.meanAdmitted += shareSmoothing * (float64(f.admitted.Swap(0)) - f.meanAdmitted)
	limit := math.Inf(1)
	if hasCredits {
		limit = headroom*f.meanAdmitted + 1
	}
	current, next := f.current.Load(), f.next.Load()
	for _, s := range []*sourceSketch{current, next} {
		if s != nil {
			s.updateRows(float64(flatProbability)/fullProbability, limit)
		}
	}
	switch {
	case next == nil && (current == nil || now >= f.switchAt-sketchWarmUp):
		f.next.Store(&sourceSketch{seed: maphash.MakeSeed()})
	case next != nil && (current == nil || now >= f.switchAt):
		f.current.Store(next)
		f.next.Store(nil)
		f.switchAt = now + sketchLifetime
	}
	f.updateAt = now + shareInterval
}

func (s *sourceSketch) updateRows(share, limit float64) {
	for i := range s.rows {
		r, sum := &s.rows[i], 0.
		for b := range r.estimate {
			r.estimate[b] += shareSmoothing * (float64(r.arrivals[b].Swap(0)) - r.estimate[b])
			sum += r.estimate[b]
		}
		threshold := fairThreshold(r.estimate, min(share*sum, limit))
		for b, arrivals := range r.estimate {
			r.probability[b].Store(uint32(fullProbability * min(1, threshold/max(arrivals, math.SmallestNonzeroFloat32))))
		}
	}
}

func (f *fairShares) discardSketches() {
	f.current.Store(nil)
	f.next.Store(nil)
	f.admitted.Store(0)
	f.updateAt, f.meanAdmitted = 0, 0
}

// fairThreshold returns the threshold for which the sum of min(arrivals[i], threshold) equals limit. If all arrivals
// together are within the limit, it returns +Inf.
func fairThreshold(arrivals [rowBuckets]float64, limit float64) float64 {
	slices.Sort(arrivals[:])
	for i, n := range arrivals {
		if left := float64(len(arrivals) - i); n*left > limit {
			return limit / left
		}
		limit -= n
	}
	return math.Inf(1)
}

// sourceWeights contains the weights of prefixes. It is immutable.
type sourceWeights struct {
	byPrefix map[netip.Prefix]uint32
	lengths  []int // of the prefixes, in descending order
}

func newSourceWeights(all map[netip.Prefix]int) (w sourceWeights) {
	for p, weight := range all {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		if w.byPrefix == nil {
			w.byPrefix = make(map[netip.Prefix]uint32)
		}
		w.byPrefix[p.Masked()] = uint32(weight)
		if !slices.Contains(w.lengths, p.Bits()) {
			w.lengths = append(w.lengths, p.Bits())
		}
	}
	slices.SortFunc(w.lengths, func(a, b int) int { return b - a })
	return w
}

// weightOf returns the weight of the longest prefix that contains source, or 1 if there is none.
func (w *sourceWeights) weightOf(source netip.Addr) uint32 {
	if len(w.lengths) == 0 {
		return 1
	}
	source = source.Unmap().WithZone("")
	for _, bits := range w.lengths {
		if p, err := source.Prefix(bits); err == nil {
			if weight, ok := w.byPrefix[p]; ok {
				return weight
			}
		}
	}
	return 1
}
