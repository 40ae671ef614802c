// Package secure runs TLS sessions for an owner that must never block: an event loop, worker or connection's goroutine.
//
// # How crypto/tls runs without blocking
//
// A [tls.Conn] uses the [Session] itself as its net.Conn. After the handshake, a read without input returns a temporary
// error, and crypto/tls continues with the next call. During the handshake, crypto/tls treats every error as final, so
// reads must block. A handshake therefore has a goroutine. A [HandshakeLimiter] limits the number of goroutines.
//
// # Session states
//
//	       complete ClientHello     slot in the limiter     HandshakeContext returned
//	(hello) ───────────────▶ (queued) ───────────▶ (running) ──────────────▶ (done) ── AdvanceHandshake ──▶ open
//
// A server session without a complete ClientHello uses no goroutine and no slot. A client session is queued by its
// first AdvanceHandshake. A goroutine holds one of the limiter's CPU tokens while it computes, and none while it waits
// for input. It keeps its slot until the handshake is done or the owner calls Abort. The owner is responsible for
// timeouts.
//
// # Ownership and concurrency
//
//   - A Session has one owner at a time. Only the owner calls its methods.
//   - During the handshake, a handshake object holds input, output and result. The goroutine and the owner share it
//     under its lock. The goroutine calls Wake when there is output or a result; the owner then calls AdvanceHandshake.
//   - The session calls Owner.Emit only within the owner's own calls. The goroutine calls Owner.Wake with the
//     handshake's lock held, so there are no more calls once Abort has returned.
//   - When AdvanceHandshake reports an open session, the goroutine has ended and the handshake object is dropped. From
//     then on the session has no lock.
//   - The limiter's lock guards its queue, slots and tokens. It is never taken with a handshake's lock held.
//   - Abort makes reads and writes of the goroutine fail and cancels the context of its callbacks. A callback (such as
//     GetCertificate) that blocks and ignores its context keeps the goroutine, slot and token. [HandshakeLimiter.Wait]
//     waits for all goroutines.
//
// # Memory of a session
//
// crypto/tls never releases its input buffer, whose size depends on the largest record. The session therefore passes
// crypto/tls exactly one complete record at a time, and the buffer stays at 576 bytes as long as records are small. The
// ClientHello, the largest message on most connections, is first split into small records.
//
// After the handshake, [Session.TakeOver] hands most sessions of TLS 1.3 to package tls13, which needs about 100 bytes.
// The rest of this section is about the other sessions.
//
// A TLS 1.3 server session that has exchanged small messages takes 5.3 KB. A session that has received a record of 16
// KiB keeps 18 KiB more, or up to 32 KiB if record sizes grew step by step. Only a new connection releases that memory.
package secure
