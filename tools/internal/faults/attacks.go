package faults

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"time"
)

// The functions below create attacks. The fields of the returned Swarm can still be changed.

// Slowloris sends an endless line, one byte per interval (RSnake, 2009).
func Slowloris(target netip.AddrPort, conns int, interval time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: bytes.Repeat([]byte("s"), 4096), PieceSize: 1}
}

// NeverRead sends requests and never reads responses.
func NeverRead(target netip.AddrPort, conns int, request []byte, interval time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: request, NeverReads: true}
}

// Flood sends requests as fast as the server reads them, and reads all responses. If maxInFlight is above 0, it limits
// the bytes that were sent and have not come back.
func Flood(target netip.AddrPort, conns int, requests []byte, maxInFlight int) *Swarm {
	return &Swarm{Target: target, Conns: conns, FullSpeed: true, MaxInFlight: maxInFlight, Stream: requests}
}

// NeverReadAtSpeed sends requests as fast as the server reads them. It never reads responses.
func NeverReadAtSpeed(target netip.AddrPort, conns int, requests []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, FullSpeed: true, NeverReads: true, Stream: requests}
}

// HalfOpen connects, sends some bytes or none, and then stays silent.
func HalfOpen(target netip.AddrPort, conns int, first []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, First: first}
}

// ResetStorm makes up to maxConns connections at the given rate. It sends some bytes or none on each connection, and
// then resets the connection.
func ResetStorm(target netip.AddrPort, connsPerSecond int, maxConns int64, first []byte) *Swarm {
	const conns = 100
	return &Swarm{
		Target: target, Conns: conns, Interval: time.Second * conns / time.Duration(connsPerSecond), MaxDials: maxConns,
		First: first, MaxActs: 1, Redial: true,
	}
}

// ConnectStorm makes all connections at once. Each connection then sends some bytes.
func ConnectStorm(target netip.AddrPort, conns int, first []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, ConnectAtOnce: true, First: first, Interval: 200 * time.Millisecond}
}

// Garbage sends random bytes, including line ends, in pieces of random size. All connections send the same bytes.
func Garbage(target netip.AddrPort, conns int, seed uint64, interval time.Duration) *Swarm {
	random := rand.New(rand.NewPCG(seed, seed))
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: noise, PieceSize: 1 + random.IntN(4096)}
}

// LongLines sends endless lines, which consist of fillByte, as fast as the server reads them.
func LongLines(target netip.AddrPort, conns int, fillByte byte, interval time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: bytes.Repeat([]byte{fillByte}, 16<<10)}
}
