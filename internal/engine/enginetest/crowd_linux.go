package enginetest

import (
	"net/netip"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/testkit"
)

// crowdTable is the number of connections per descriptor table.
const crowdTable = 400

// DialCrowd opens n connections and holds them until the test's cleanup. Where possible their
// descriptors are in separate tables, so that they do not count for this process's limit.
func DialCrowd(t testing.TB, addr string, n int) {
	t.Helper()
	to := netip.MustParseAddrPort(addr)
	opened, end := make(chan error), make(chan struct{})
	var holding sync.WaitGroup
	t.Cleanup(func() {
		close(end)
		holding.Wait()
	})
	for n > 0 {
		some := min(n, crowdTable)
		n -= some
		holding.Go(func() { sock.RunOnNewThread(func() { dialAndHoldCrowd(to, some, opened, end) }) })
		testkit.RequireNoError(t, <-opened)
	}
}

// dialAndHoldCrowd holds n connections on a separate thread until end.
func dialAndHoldCrowd(to netip.AddrPort, n int, opened chan<- error, end <-chan struct{}) {
	if sock.CheckPrivateTables() == nil {
		release, err := sock.UnshareDescriptorTable(nil)
		if err != nil {
			opened <- err
			return
		}
		defer release()
	}
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			defer unix.Close(fd)
			err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		}
		if err != nil {
			opened <- err
			return
		}
	}
	opened <- nil
	<-end
}
