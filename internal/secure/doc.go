// Package secure runs TLS sessions, with crypto/tls, for an owner that must never block: an event
// loop, a worker, or the goroutine of a connection.
//
// # How crypto/tls runs without blocking
//
// A [tls.Conn] uses a net.Conn that is not a socket but the [Session] itself. After the handshake, a
// read without input returns a temporary error; crypto/tls keeps its state and continues with the
// next call. So the owner only makes plain calls. During the handshake, crypto/tls treats every error
// as final, so reads must block. Therefore a handshake has a goroutine, and a [HandshakeLimiter]
// limits their number.
//
// # Session states
//
//	       complete ClientHello     slot in the limiter     HandshakeContext returned
//	(hello) ───────────────▶ (queued) ───────────▶ (running) ──────────────▶ (done) ── AdvanceHandshake ──▶ open
//
// A server session without a complete ClientHello costs no goroutine and no slot. Input that cannot
// be a ClientHello fails immediately. A client session is queued by its first AdvanceHandshake.
//
// A goroutine holds one of the limiter's CPU tokens while it computes, and none while it waits for
// input. It keeps its slot until the handshake is done or the owner calls Abort; timeouts are up to
// the owner.
//
// # Ownership and concurrency
//
//   - A Session has one owner at a time; only the owner calls its methods.
//   - During the handshake, its input, output and result are in a handshake, under its lock, shared
//     by the goroutine and the owner. The goroutine calls Wake when there is something to fetch; the
//     owner fetches it with AdvanceHandshake.
//   - Owner.Emit is called only within the owner's own calls. Owner.Wake is called by the goroutine
//     with the handshake's lock held, so there are no more calls once Abort has returned. Wake must
//     not call the Session and must not block.
//   - When AdvanceHandshake reports an open session, the goroutine has left it and the handshake is
//     dropped: there is no lock and no goroutine any more.
//   - The limiter's lock guards its queue, slots and tokens. It is never taken with a handshake's
//     lock held.
//   - A goroutine ends with its handshake, or soon after Abort, which makes its reads and writes fail
//     and cancels the context of its callbacks. A callback (GetCertificate and the like) that blocks
//     and ignores its context keeps the goroutine, slot and token. [HandshakeLimiter.Wait] waits for
//     all goroutines.
//
// # Memory of a session
//
// crypto/tls never releases its input buffer and sizes it by the largest record. Therefore it is
// given exactly one record at a time, once that is complete: its buffer stays at 576 bytes as long
// as records are small. The ClientHello, the largest message on most connections, is first split into
// small records; unencrypted records may be split anywhere.
//
// A TLS 1.3 server session that has exchanged small messages takes 5.3 KB: 1.8 KB for two AES-GCM
// ciphers, 1.5 KB for the buffer that held the ClientHello, 0.9 KB for the tls.Conn, 0.6 KB for its
// other buffer, 0.1 KB for the Session, and secrets. With TLS 1.2 it takes 4.2 KB; the difference is
// the ClientHello, which is long with a post-quantum key share. A session that has received a record
// of 16 KiB keeps 18 KiB more, or up to 32 KiB if records grew step by step, as those of crypto/tls
// do. Only a new connection releases that.
package secure
