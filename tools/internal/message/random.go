package message

import (
	"math/bits"
	"slices"
)

// splitMix is a splitmix64 generator (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).
type splitMix struct{ counter uint64 }

// gamma is the increment of a splitMix counter: 2^64 divided by the golden ratio, rounded to an odd number.
const gamma = 0x9e3779b97f4a7c15

// mix64 is the output function of splitmix64, with the constants of David Stafford's variant 13.
func mix64(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

func messageKey(id ID) uint64 {
	return mixKey(mixKey(mixKey(0, id.Seed), id.Connection), id.Message)
}

func mixKey(parent, number uint64) uint64 { return mix64(parent ^ number + gamma) }

func (p *templatePiece) newRandom(messageKey uint64) splitMix {
	return splitMix{mixKey(messageKey, ^uint64(p.index))}
}

func (r *splitMix) next() uint64 {
	r.counter += gamma
	return mix64(r.counter)
}

// belowN returns a random number from 0 to n-1, with a bias of at most n/2^64.
func (r *splitMix) belowN(n uint64) uint64 {
	// Lemire, Fast Random Integer Generation in an Interval (2019), without the rejection step.
	high, _ := bits.Mul64(r.next(), n)
	return high
}

// charsPerDraw is the number of characters that are generated from 64 random bits.
const charsPerDraw = 6 // bias at most 2^-16 for 256 different characters

// appendChars appends n random characters of a class. The class must contain at most 256 characters.
func (r *splitMix) appendChars(dst []byte, n int, alphabet string) []byte {
	dst = slices.Grow(dst, n)
	to := dst[len(dst) : len(dst)+n]
	size := uint64(len(alphabet))
	for len(to) > 0 {
		var at uint64
		left := r.next()
		some := to[:min(charsPerDraw, len(to))]
		for i := range some {
			at, left = bits.Mul64(left, size)
			some[i] = alphabet[at]
		}
		to = to[len(some):]
	}
	return dst[:len(dst)+n]
}
