package sock

import "net/netip"

// Queue is a listening TCP socket's queue of connections that wait to be accepted.
type Queue struct {
	At netip.AddrPort
	// Waiting connections are in it now. The kernel lets in one more than Most: the
	// least of what was asked for and net.core.somaxconn.
	Waiting, Most int64
}
