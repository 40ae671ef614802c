package procfs

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

func listenTCP(t *testing.T, addr string) (*net.TCPListener, uint16) {
	t.Helper()
	network := "tcp4" // "tcp" would make 0.0.0.0 the wildcard of both
	if addr == "[::]:0" {
		network = "tcp"
	}
	ln := testkit.Must(net.Listen(network, addr))(t)
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener), ln.Addr().(*net.TCPAddr).AddrPort().Port()
}

var local4, local6 = netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()

// TestListener finds this very process, by the address that it listens at and by the wildcards.
func TestListener(t *testing.T) {
	for _, c := range []struct {
		listen string
		find   netip.Addr
		ok     bool
	}{
		{"127.0.0.1:0", local4, true},
		{"127.0.0.1:0", netip.MustParseAddr("::ffff:127.0.0.1"), true},
		{"127.0.0.1:0", netip.MustParseAddr("127.0.0.2"), false},
		{"0.0.0.0:0", netip.MustParseAddr("127.0.0.2"), true},
		{"0.0.0.0:0", local6, false},
		{"[::]:0", local4, true},
		{"[::]:0", local6, true},
	} {
		_, port := listenTCP(t, c.listen)
		pids, err := FindListenerPIDs(port, c.find)
		if c.ok && (err != nil || !slices.Equal(pids, []int{os.Getpid()})) {
			t.Errorf("listening at %s, looking for %v: got %v, %v; want %d", c.listen, c.find, pids, err, os.Getpid())
		}
		if !c.ok && (err == nil || !strings.Contains(err.Error(), "no process")) {
			t.Errorf("listening at %s, looking for %v: got %v, %v; want an error", c.listen, c.find, pids, err)
		}
	}
}

func TestUnixListener(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "a b.sock"), "@myriad test " + filepath.Base(dir)} {
		if pids, err := FindUnixListenerPIDs(path); err == nil {
			t.Errorf("%q before it listens: got %v; want an error", path, pids)
		}
		ln := testkit.Must(net.Listen("unix", path))(t)
		defer ln.Close()
		if pids, err := FindUnixListenerPIDs(path); err != nil || !slices.Equal(pids, []int{os.Getpid()}) {
			t.Errorf("%q: got %v, %v; want %d", path, pids, err, os.Getpid())
		}
	}
}

// TestSearchIsBounded has a search end when it has looked at what it may.
func TestSearchIsBounded(t *testing.T) {
	s := socketOwnerSearch{links: map[string]bool{"none": true}, left: 3}
	for range 5 {
		s.searchMainDescriptorTable(os.Getpid())
	}
	if s.left != 0 {
		t.Errorf("%d descriptors are left to look at; want the search to end at 0", s.left)
	}
}

func TestRank(t *testing.T) {
	all4, all6 := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	for _, c := range []struct {
		bound, to netip.Addr
		want      int
	}{
		{local4, local4, 3}, {local6, local6, 3}, {all4, local4, 2}, {all6, local6, 2}, {all6, local4, 1}, {all4, local6, 0}, {local6, local4, 0},
	} {
		if got := addrMatchRankOrZero(c.bound, c.to); got != c.want {
			t.Errorf("bound to %v for %v: got %d, want %d", c.bound, c.to, got, c.want)
		}
	}
}
