// Package secure runs TLS sessions, with crypto/tls, for an owner that must
// never wait: an event loop, a worker, or the goroutine of a connection.
//
// # How crypto/tls runs without waiting
//
// A [tls.Conn] stands on a net.Conn that is no socket but the [Session] itself.
// Once the handshake is over, a read that finds no bytes there answers with a
// temporary error; crypto/tls keeps its state and goes on with the next call.
// So all of it is done by plain calls of the owner. During the handshake every
// error is final for crypto/tls, so a read there has to wait. The handshake
// therefore has a goroutine, and a [Gate] says how many of those there are.
//
// # The life of a session
//
//	          a whole ClientHello      a place in the Gate       HandshakeContext returned
//	(hello) ───────────────▶ (queued) ───────────▶ (running) ──────────────▶ (over) ── Step ──▶ open
//
// A server's session that has said nothing, or half a ClientHello, costs no
// goroutine and no place. What cannot be a ClientHello is an error at once. A
// client's session is queued by its first Step.
//
// A goroutine holds one of the Gate's tokens while it computes, and none while
// it waits for bytes. It keeps its place until the handshake is over or the
// owner calls Abort: the owner has the clock.
//
// # Who owns what
//
//   - A Session has one owner at a time, and only the owner calls its methods.
//   - Until the handshake is over, its input, output and result are in a
//     handshake, under its lock; the goroutine and the owner share it. The
//     goroutine tells the owner with Wake that there is something to fetch, and
//     the owner fetches with Step.
//   - Owner.Emit is called by the owner's own calls only. Owner.Wake is called
//     by the goroutine, with the lock of the handshake held: so when Abort has
//     returned, there are no more of these calls. Wake must not call the Session
//     and must not wait.
//   - When Step has said that the session is open, the goroutine has left it,
//     the handshake is dropped, and there is no lock and no goroutine any more.
//   - The queue, the count of places and the tokens are the Gate's, under its
//     lock. It is taken while no lock of a handshake is held.
//   - A goroutine ends when its handshake is over, or soon after Abort: its reads
//     and writes then fail and the context of its callbacks ends. A callback
//     (GetCertificate and the like) that waits without heeding its context keeps
//     goroutine, place and token. [Gate.Wait] waits for all goroutines.
//
// # What a session costs
//
// crypto/tls never gives its input buffers back, and sizes them by the largest
// record. So it is given exactly one record at a time, and only when that is
// whole: then its buffer stays at 576 bytes as long as records are small. The
// ClientHello, the largest thing that most connections ever send, is cut into
// smaller records first; records that are not encrypted may be cut anywhere.
//
// A server's session of TLS 1.3 that has exchanged
// small messages takes 5.3 KB: 1.8 KB for two AES-GCM ciphers, 1.5 KB for the
// buffer that held the ClientHello, 0.9 KB for the tls.Conn, 0.6 KB for its other
// buffer, 0.1 KB for the Session, and secrets. Of TLS 1.2 it takes 4.2 KB; the
// difference is the ClientHello, which is long with a post-quantum key share. One
// that has received a record of 16 KiB keeps 18 KiB more, and up to 32 KiB if the
// records before grew step by step, as those of crypto/tls do. There is no means
// to change that from outside but a new connection.
package secure
