package sock

import (
	"net/netip"
	"time"
)

// Queue is a listening TCP socket's queue of connections that wait to be accepted.
type Queue struct {
	At netip.AddrPort
	// Waiting connections are in it now. The kernel lets in one more than Most: the
	// least of what was asked for and net.core.somaxconn.
	Waiting, Most int64
	// Inode is the socket's, as in "socket:[123]" of /proc/PID/fd.
	Inode uint32
}

// Segments are TCP segments of sockets, since each was made.
type Segments struct {
	// Sockets is how many sockets there are. Those that wait to be accepted are not
	// among them, nor do they count below.
	Sockets int
	// In and Out are segments that carry data.
	In, Out int64
}

// Talk is what the kernel has counted of a TCP connection.
type Talk struct {
	// Cookie tells it from all others that there are or have been.
	Cookie        uint64
	Local, Remote netip.AddrPort
	// In and Out are the bytes received, and sent and acknowledged, since it began.
	In, Out int64
	// Unread bytes wait for the program, Unsent for the peer to take them, those on
	// their way among them.
	Unread, Unsent int64
	// Heard is how long ago the peer last sent something, RTT the time to it and back.
	Heard, RTT time.Duration
}
