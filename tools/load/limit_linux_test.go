package load

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestBacklogLimit connects to a listener that never accepts: the kernel counts when its queue is
// full, and the result reports it.
func TestBacklogLimit(t *testing.T) {
	t.Parallel()
	ln := testkit.Must(net.Listen("tcp4", "127.0.0.1:0"))(t)
	defer ln.Close()
	raw, err := ln.(*net.TCPListener).SyscallConn()
	testkit.RequireNoError(t, err)
	const queue = 4
	if e := raw.Control(func(fd uintptr) { err = unix.Listen(int(fd), queue) }); e != nil || err != nil {
		t.Fatal(e, err)
	}
	for times := range growingFactors(t) {
		result := runToEnd(t, Config{
			Target: ln.Addr().String(), Connections: 10 * queue, ConnectTimeout: times * 100 * time.Millisecond, Hold: true, Duration: time.Millisecond,
		})
		i := slices.IndexFunc(result.Limits, func(l Limit) bool { return l.Wall == "backlog" })
		if i < 0 {
			t.Logf("limits %+v of %d connections out of %d, want one that is the backlog", result.Limits, result.Connected, result.Connections)
			continue
		}
		if e := result.Limits[i].Evidence; !strings.Contains(e, "TcpExtListenOverflows") || strings.Contains(e, "unknown") {
			t.Errorf("the evidence is %q, want the counter and the setting", e)
		}
		break
	}
}
