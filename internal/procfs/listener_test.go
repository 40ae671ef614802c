package procfs

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

func onlyLinux(t *testing.T) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
}

func listenTCP(t *testing.T, addr string) (*net.TCPListener, uint16) {
	t.Helper()
	ln, err := net.Listen("tcp4", addr) // "tcp" would make 0.0.0.0 the wildcard of both
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener), ln.Addr().(*net.TCPAddr).AddrPort().Port()
}

var local4, local6 = netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()

// TestListener finds this very process, by the address that it listens at and by
// the wildcards.
func TestListener(t *testing.T) {
	onlyLinux(t)
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
	} {
		_, port := listenTCP(t, c.listen)
		pids, err := Listener(port, c.find)
		if c.ok && (err != nil || !slices.Equal(pids, []int{os.Getpid()})) {
			t.Errorf("listening at %s, looking for %v: got %v, %v; want %d", c.listen, c.find, pids, err, os.Getpid())
		}
		if !c.ok && (err == nil || !strings.Contains(err.Error(), "no process")) {
			t.Errorf("listening at %s, looking for %v: got %v, %v; want an error", c.listen, c.find, pids, err)
		}
	}
}

func TestListenerOfIP6(t *testing.T) {
	onlyLinux(t)
	ln, err := net.Listen("tcp", "[::]:0")
	if err != nil {
		t.Skip("no IPv6 here: ", err)
	}
	defer ln.Close()
	for _, addr := range []netip.Addr{local4, local6} {
		pids, err := Listener(ln.Addr().(*net.TCPAddr).AddrPort().Port(), addr)
		if err != nil || !slices.Equal(pids, []int{os.Getpid()}) {
			t.Errorf("looking for %v: got %v, %v; want %d", addr, pids, err, os.Getpid())
		}
	}
}

// TestListenerOfAGroup has another process inherit the socket.
func TestListenerOfAGroup(t *testing.T) {
	onlyLinux(t)
	ln, port := listenTCP(t, "127.0.0.1:0")
	file, err := ln.File()
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	child := exec.Command("cat") // until its input ends
	child.ExtraFiles = []*os.File{file}
	input, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { input.Close(); _ = child.Wait() }()
	want := []int{os.Getpid(), child.Process.Pid}
	slices.Sort(want)
	if pids, err := Listener(port, local4); err != nil || !slices.Equal(pids, want) {
		t.Errorf("got %v, %v; want %v", pids, err, want)
	}
}

func TestUnixListener(t *testing.T) {
	onlyLinux(t)
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "a b.sock"), "@myriad test " + filepath.Base(dir)} {
		if pids, err := UnixListener(path); err == nil {
			t.Errorf("%q before it listens: got %v; want an error", path, pids)
		}
		ln, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		if pids, err := UnixListener(path); err != nil || !slices.Equal(pids, []int{os.Getpid()}) {
			t.Errorf("%q: got %v, %v; want %d", path, pids, err, os.Getpid())
		}
	}
}

// TestSearchIsBounded has a search end when it has looked at what it may.
func TestSearchIsBounded(t *testing.T) {
	onlyLinux(t)
	s := search{links: map[string]bool{"none": true}, left: 3}
	if err := eachName("/proc", s.process); err != errEnough || s.left != 0 {
		t.Errorf("got %v with %d descriptors left to look at; want the search to end at 0", err, s.left)
	}
	path := filepath.Join(t.TempDir(), "rows")
	if err := os.WriteFile(path, []byte("1\n2\n3\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rows := 0
	if err := eachLine(path, 2, func(string) bool { rows++; return true }); err != errRows || rows != 2 {
		t.Errorf("three rows where 2 are the most: got %v after %d; want %v after 2", err, rows, errRows)
	}
}

const tcpHeading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode"

func TestParseTCP(t *testing.T) {
	if !littleEndian {
		t.Skip("the rows are those of a little-endian machine")
	}
	for line, want := range map[string]tcpSocket{
		"   0: 0100007F:2328 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1077 1 0 100 0 0 10 0": {netip.MustParseAddrPort("127.0.0.1:9000"), listens, "1077"},
		"   0: 00000000000000000000000001000000:2328 00000000000000000000000000000000:0000 0A 0:0 00:0 0 0 0 9 1 0":        {netip.MustParseAddrPort("[::1]:9000"), listens, "9"},
		"   0: 0000000000000000FFFF00000100007F:2328 00000000000000000000000000000000:0000 01 0:0 00:0 0 0 0 9 1 0":        {netip.MustParseAddrPort("127.0.0.1:9000"), 1, "9"},
	} {
		if s, ok := parseTCP(line); !ok || s != want {
			t.Errorf("%q: got %+v, %v; want %+v", line, s, ok, want)
		}
	}
	for _, line := range []string{
		"", tcpHeading,
		"0: 0100007F 0:0 0A 0:0 00:0 0 0 0 9 1", "0: 0100:2328 0:0 0A 0:0 00:0 0 0 0 9 1", "0: xx00007F:2328 0:0 0A 0:0 00:0 0 0 0 9 1",
		"0: 0100007F:12328 0:0 0A 0:0 00:0 0 0 0 9 1", "0: 0100007F:2328 0:0 AAA 0:0 00:0 0 0 0 9 1", "0: 0100007F:2328 0:0 0A 0:0 00:0 0 0 0 x 1",
	} {
		if s, ok := parseTCP(line); ok {
			t.Errorf("%q: got %+v; want none", line, s)
		}
	}
}

func TestParseUnix(t *testing.T) {
	for line, want := range map[string]unixSocket{
		"00000000b5284930: 00000002 00000000 00010000 0001 01  1073 /run/a b.sock": {true, "1073", "/run/a b.sock"},
		"00000000b5284930: 00000003 00000000 00000000 0001 03 21073 @x":            {false, "21073", "@x"},
	} {
		if s, ok := parseUnix(line); !ok || s != want {
			t.Errorf("%q: got %+v, %v; want %+v", line, s, ok, want)
		}
	}
	for _, line := range []string{
		"", "Num       RefCount Protocol Flags    Type St Inode Path",
		"00000000b5284930: 00000003 00000000 00000000 0001 03  1073", "b: 3 0 x 0001 03 1073 /a", "b: 3 0 0 0001 03 x /a",
	} {
		if s, ok := parseUnix(line); ok {
			t.Errorf("%q: got %+v; want none", line, s)
		}
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
		if got := rank(c.bound, c.to); got != c.want {
			t.Errorf("bound to %v for %v: got %d, want %d", c.bound, c.to, got, c.want)
		}
	}
	var l listening
	for _, r := range []int{1, 2, 2, 0, 1} {
		l.add(r, fmt.Sprint(r))
	}
	if !slices.Equal(l.inodes, []string{"2", "2"}) {
		t.Errorf("got %v, want the two of the best rank", l.inodes)
	}
}

func TestCountDescriptors(t *testing.T) {
	onlyLinux(t)
	before, _, err := CountDescriptors(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		listenTCP(t, "127.0.0.1:0")
	}
	after, cheap, err := CountDescriptors(os.Getpid())
	// Where it is not cheap it reads a directory, which is one more descriptor,
	// both times.
	if err != nil || after != before+3 {
		t.Errorf("got %d, %v (cheap: %v) with 3 descriptors more than %d", after, err, cheap, before)
	}
	if _, _, err := CountDescriptors(1 << 30); !Gone(err) {
		t.Errorf("no process: got %v, want an error that says gone", err)
	}
}

func FuzzParseTCP(f *testing.F) {
	f.Add("   0: 0100007F:2328 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1077 1 0 100 0 0 10 0")
	f.Add(tcpHeading)
	f.Add("0: 0000000000000000FFFF00000100007F:2328 0:0 01 0:0 00:0 0 0 0 9")
	f.Fuzz(func(t *testing.T, line string) {
		if s, ok := parseTCP(line); ok && (!s.at.IsValid() || s.at.Addr().Is4In6() || !isNumber(s.inode)) {
			t.Errorf("%q: got %+v", line, s)
		}
	})
}

func FuzzParseUnix(f *testing.F) {
	f.Add("00000000b5284930: 00000002 00000000 00010000 0001 01  1073 /run/a b.sock")
	f.Add("b: 3 0 0 0001 03 1 @")
	f.Fuzz(func(t *testing.T, line string) {
		if s, ok := parseUnix(line); ok && (s.path == "" || !strings.HasSuffix(line, s.path) || !isNumber(s.inode)) {
			t.Errorf("%q: got %+v", line, s)
		}
	})
}
