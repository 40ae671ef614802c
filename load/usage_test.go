package load

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"
)

// heir starts a process that does nothing and has the listener too, as the
// server's process would. end ends it.
func heir(t testing.TB, ln interface{ File() (*os.File, error) }) (pid int, end func()) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("no /proc")
	}
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
	ended := false
	end = func() {
		if !ended {
			ended = true
			input.Close()
			_ = child.Wait()
		}
	}
	t.Cleanup(end)
	return child.Process.Pid, end
}

func listenLocal(t testing.TB) *net.TCPListener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

func TestUsage(t *testing.T) {
	ln := listenLocal(t)
	pid, end := heir(t, ln)
	u := newUsage([]string{ln.Addr().String()})
	if !slices.Equal(u.server.pids, []int{pid}) {
		t.Fatalf("found %+v; want process %d, and not this one", u.server.pids, pid)
	}
	burnt := func() time.Duration { user, system := cpuTime(); return user + system }
	for began := burnt(); burnt() < began+5*time.Millisecond; {
	}
	own, server := u.sample()
	if own.CPU < 5*time.Millisecond || own.Resident < 1<<20 || own.Descriptors < 4 {
		t.Errorf("generator: %+v; want at least 5ms, 1 MiB and 4 descriptors", own)
	}
	runtime.GC()
	if again, _ := u.sample(); own.Goroutines < 1 || again.GCs <= own.GCs || again.GCPause <= own.GCPause {
		t.Errorf("generator: %+v, and %+v after a collection of garbage", own, again)
	}
	if server == nil || server.Resident < 1<<16 || server.Descriptors < 4 || server.CPU < 0 {
		t.Fatalf("server: %+v; want at least 64 KiB and 4 descriptors", server)
	}
	end()
	if _, server := u.sample(); server != nil {
		t.Errorf("server: %+v after it has ended; want none", server)
	}
}

// TestUsageOfAUnixServer finds it by its path.
func TestUsageOfAUnixServer(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	pid, _ := heir(t, ln.(*net.UnixListener))
	if u := newUsage([]string{"unix:" + path}); !slices.Equal(u.server.pids, []int{pid}) {
		t.Errorf("found %+v; want process %d", u.server.pids, pid)
	}
}

// TestUsageOfALateServer finds it at the first sample, has its figures from the
// second on, and doesn't look for ever.
func TestUsageOfALateServer(t *testing.T) {
	ln := listenLocal(t)
	u := newUsage([]string{ln.Addr().String()}) // this process alone is none
	never := newUsage([]string{ln.Addr().String()})
	never.sample()
	heir(t, ln)
	if _, server := u.sample(); server != nil {
		t.Errorf("first sample: %+v; want none, as its beginning isn't known", server)
	}
	if _, server := u.sample(); server == nil {
		t.Error("second sample: no server; want the one that the first has found")
	}
	never.sample()
	if _, server := never.sample(); server != nil {
		t.Errorf("a server that came after the first sample: %+v; want none", server)
	}
}

func TestUsageWithoutServer(t *testing.T) {
	for _, target := range []string{"192.0.2.1:9000", "unix:/nowhere", "nonsense", "", "0.0.0.0:1", "[::]:1", "[fe80::1%eth0]:1"} {
		u := newUsage([]string{target})
		for range 3 {
			if _, server := u.sample(); server != nil {
				t.Errorf("%q: got %+v; want no server", target, server)
			}
		}
	}
}

// TestUsageOfAnotherMachine has a port of this machine that listens everywhere: it
// is not who listens on that port elsewhere.
func TestUsageOfAnotherMachine(t *testing.T) {
	ln, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	pid, _ := heir(t, ln.(*net.TCPListener))
	port := ln.Addr().(*net.TCPAddr).AddrPort().Port()
	for addr, want := range map[string]int{"127.0.0.9": 1, "0.0.0.0": 1, "192.0.2.1": 0} {
		u := newUsage([]string{netip.AddrPortFrom(netip.MustParseAddr(addr), port).String()})
		if len(u.server.pids) != want {
			t.Errorf("%s: found %+v; want %d processes, %d", addr, u.server.pids, want, pid)
		}
	}
}
