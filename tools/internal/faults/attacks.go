package faults

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"time"
)

// The functions below return attacks. The caller may change the fields of the Swarm before Start.

// Slowloris returns a Swarm whose connections each send an endless line, one byte per interval (RSnake, 2009).
func Slowloris(target netip.AddrPort, conns int, interval time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: bytes.Repeat([]byte("s"), 4096), PieceSize: 1}
}

// NeverRead returns a Swarm whose connections send the request at each interval and never read responses.
func NeverRead(target netip.AddrPort, conns int, request []byte, interval time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: request, NeverReads: true}
}

// Flood returns a Swarm that sends the requests as fast as the server reads them, and reads all responses. If
// maxInFlight is above 0, it limits the bytes sent minus the bytes received on each connection.
func Flood(target netip.AddrPort, conns int, requests []byte, maxInFlight int) *Swarm {
	return &Swarm{Target: target, Conns: conns, FullSpeed: true, MaxInFlight: maxInFlight, Stream: requests}
}

// NeverReadAtSpeed returns a Swarm that sends the requests as fast as the server reads them. It never reads responses.
func NeverReadAtSpeed(target netip.AddrPort, conns int, requests []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, FullSpeed: true, NeverReads: true, Stream: requests}
}

// HalfOpen returns a Swarm whose connections send the given bytes, if any, and then stay silent.
func HalfOpen(target netip.AddrPort, conns int, first []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, First: first}
}

// ResetStorm returns a Swarm that makes up to maxConns connections at the given rate. Each connection sends the given
// bytes, if any, and is then reset.
func ResetStorm(target netip.AddrPort, connsPerSecond int, maxConns int64, first []byte) *Swarm {
	const conns = 100
	return &Swarm{
		Target: target, Conns: conns, Interval: time.Second * conns / time.Duration(connsPerSecond), MaxDials: maxConns,
		First: first, MaxActs: 1, Redial: true,
	}
}

// ConnectStorm returns a Swarm that makes all connections at once. Each connection then sends the given bytes.
func ConnectStorm(target netip.AddrPort, conns int, first []byte) *Swarm {
	return &Swarm{Target: target, Conns: conns, ConnectAtOnce: true, First: first, Interval: 200 * time.Millisecond}
}

// Garbage returns a Swarm whose connections all send the same random bytes, including line ends. seed determines the
// bytes and the number of bytes that a connection sends per interval.
func Garbage(target netip.AddrPort, conns int, seed uint64, interval time.Duration) *Swarm {
	random := rand.New(rand.NewPCG(seed, seed))
	noise := make([]byte, 64<<10)
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: noise, PieceSize: 1 + random.IntN(4096)}
}

// LongLines returns a Swarm whose connections each send an endless line of fillByte, as much as the kernel accepts at
// each interval.
func LongLines(target netip.AddrPort, conns int, fillByte byte, interval time.Duration) *Swarm {
	return &Swarm{Target: target, Conns: conns, Interval: interval, Stream: bytes.Repeat([]byte{fillByte}, 16<<10)}
}
