package faults

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"time"
)

// The attacks. Each is a Swarm whose fields can still be changed.

// Slowloris drips a line that never ends, a byte each time: so a server that
// only looks for silence never finds any. (RSnake, 2009.)
func Slowloris(target netip.AddrPort, conns int, every time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Every: every, Stream: bytes.Repeat([]byte("s"), 4096), Piece: 1}
}

// NeverRead sends requests and reads no answer.
func NeverRead(target netip.AddrPort, conns int, request []byte, every time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Every: every, Stream: request, Deaf: true}
}

// Flood sends requests as fast as the server takes them, and reads all answers.
// With ahead above 0 it waits while so many bytes of them are under way.
func Flood(target netip.AddrPort, conns int, requests []byte, ahead int) *Swarm {
	return &Swarm{Target: target, Conns: conns, Greedy: true, Ahead: ahead, Stream: requests}
}

// NeverReadAtSpeed sends requests as fast as the server takes them, and reads no
// answer.
func NeverReadAtSpeed(target netip.AddrPort, conns int, requests []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, Greedy: true, Deaf: true, Stream: requests}
}

// HalfOpen connects, says first, which may be nothing, and falls silent.
func HalfOpen(target netip.AddrPort, conns int, first []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, First: first}
}

// ResetStorm makes most connections, at a rate in each second, and resets each
// one: at once if first is empty, otherwise when it has sent that.
func ResetStorm(target netip.AddrPort, rate int, most int64, first []byte) *Swarm {
	const conns = 100
	return &Swarm{
		Target: target, Conns: conns, Every: time.Second * conns / time.Duration(rate), Most: most,
		First: first, Acts: 1, Redial: true,
	}
}

// ConnectStorm connects all at once; each connection then sends first.
func ConnectStorm(target netip.AddrPort, conns int, first []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, AtOnce: true, First: first, Every: 200 * time.Millisecond}
}

// Garbage sends random bytes, in pieces of a random size that is the same for
// all. Every byte occurs, ends of lines too.
func Garbage(target netip.AddrPort, conns int, seed uint64, every time.Duration) *Swarm {
	random := rand.New(rand.NewPCG(seed, seed))
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	return &Swarm{Target: target, Conns: conns, Every: every, Stream: noise, Piece: 1 + random.IntN(4096)}
}

// LongLines sends lines without an end, as fast as the server takes them. Their
// bytes are all fill, which can be 0.
func LongLines(target netip.AddrPort, conns int, fill byte, every time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Every: every, Stream: bytes.Repeat([]byte{fill}, 16<<10)}
}
