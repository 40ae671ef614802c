package lab

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/faults"
)

// soakAttacks are the attackers of Soak, all at the same time. Their connections
// are made again when the server has ended them.
var soakAttacks = []struct {
	name  string
	conns int
	make  func(target netip.AddrPort) *faults.Swarm
}{
	{"slowloris", 50, func(t netip.AddrPort) *faults.Swarm { return faults.Slowloris(t, 50, 500*time.Millisecond) }},
	{"never read", 5, func(t netip.AddrPort) *faults.Swarm {
		// As much as fills the kernel's buffers, some 4 MiB, within seconds.
		return faults.NeverRead(t, 5, []byte(strings.Repeat(strings.Repeat("r", 99)+"\n", 640)), 50*time.Millisecond)
	}},
	{"silent", 50, func(t netip.AddrPort) *faults.Swarm { return faults.HalfOpen(t, 50, nil) }},
	{"half a line", 50, func(t netip.AddrPort) *faults.Swarm { return faults.HalfOpen(t, 50, []byte("half")) }},
	{"idle", 50, func(t netip.AddrPort) *faults.Swarm { return faults.HalfOpen(t, 50, []byte("hello\n")) }},
	{"reset at once", 100, func(t netip.AddrPort) *faults.Swarm { return faults.ResetStorm(t, 100, 0, nil) }},
	{"reset in a line", 100, func(t netip.AddrPort) *faults.Swarm { return faults.ResetStorm(t, 100, 0, []byte("hello\n")) }},
	{"garbage", 20, func(t netip.AddrPort) *faults.Swarm { return faults.Garbage(t, 20, 1, 100*time.Millisecond) }},
	{"long lines", 20, func(t netip.AddrPort) *faults.Swarm { return faults.LongLines(t, 20, 'x', 200*time.Millisecond) }},
}

// describeAttacks names them.
func describeAttacks() string {
	var words []string
	for _, a := range soakAttacks {
		words = append(words, fmt.Sprintf("%d × %s", a.conns, a.name))
	}
	return "attackers: " + strings.Join(words, ", ")
}
