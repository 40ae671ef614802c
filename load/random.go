package load

import "math"

// random is the n-th random number of a sequence, which is known by a seed: the
// output function of SplitMix64 (Steele, Lea, Flood: "Fast Splittable
// Pseudorandom Number Generators", 2014). It keeps no state, so the same plan comes
// out whichever loop asks first.
func random(seed, n uint64) uint64 {
	z := seed*0xd1342543de82ef95 + (n+1)*0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// uniform is random as a number above 0 and at most 1.
func uniform(seed, n uint64) float64 { return float64(random(seed, n)>>11+1) / (1 << 53) }

// exponential is random as a time between events of a Poisson process of rate 1.
func exponential(seed, n uint64) float64 { return -math.Log(uniform(seed, n)) }

// seedOf is a seed of its own for one of many things that a run's seed decides.
func seedOf(seed, thing uint64) uint64 { return random(seed^0x6d797269, thing) }

// The things that a run's seed decides, besides what each connection says.
const (
	thingMasks = 1<<40 + iota // of WebSockets
	thingPlan                 // the times of an open loop
	thingRoll                 // the lines of roll calls
)
