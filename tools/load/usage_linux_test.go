package load

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/internal/sample"
)

// startListenerHeir starts an idle process that inherits the listener, as a server's process would have it.
func startListenerHeir(t testing.TB, ln interface{ File() (*os.File, error) }) *testkit.Process {
	t.Helper()
	file := testkit.Must(ln.File())(t)
	defer file.Close()
	cmd := exec.Command("cat") // until its input ends
	cmd.ExtraFiles = []*os.File{file}
	testkit.Must(cmd.StdinPipe())(t)
	return testkit.Start(t, cmd)
}

func listenLoopback(t testing.TB) *net.TCPListener {
	t.Helper()
	ln := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

func TestUsage(t *testing.T) {
	ln := listenLoopback(t)
	child := startListenerHeir(t, ln)
	u := newGeneratorAndServerSampler([]string{ln.Addr().String()})
	if !slices.Equal(u.server.pids, []int{child.Process.Pid}) {
		t.Fatalf("found %+v; want process %d, and not this one", u.server.pids, child.Process.Pid)
	}
	burnt := func() time.Duration { used := sample.OwnCPUTime(); return used.CPU() }
	for began := burnt(); burnt() < began+5*time.Millisecond; {
	}
	own, server := u.sampleSinceLastCall()
	if own.CPU() < 5*time.Millisecond || own.RSS < 1<<20 || own.Descriptors < 4 {
		t.Errorf("generator: %+v; want at least 5ms, 1 MiB and 4 descriptors", own)
	}
	runtime.GC()
	if again, _ := u.sampleSinceLastCall(); own.Goroutines < 1 || again.GCs <= own.GCs || again.GCPause <= own.GCPause {
		t.Errorf("generator: %+v, and %+v after a collection of garbage", own, again)
	}
	if server == nil || server.RSS < 1<<16 || server.Descriptors < 4 || server.CPU() < 0 {
		t.Fatalf("server: %+v; want at least 64 KiB and 4 descriptors", server)
	}
	child.Signal(os.Kill)
	child.WaitExitCode()
	if _, server := u.sampleSinceLastCall(); server != nil {
		t.Errorf("server: %+v after it has ended; want none", server)
	}
}

// TestUsageOfALateServer checks that a server is found at the first sample, has figures from the
// second on, and is not looked up forever.
func TestUsageOfALateServer(t *testing.T) {
	ln := listenLoopback(t)
	u := newGeneratorAndServerSampler([]string{ln.Addr().String()}) // this process alone is none
	never := newGeneratorAndServerSampler([]string{ln.Addr().String()})
	never.sampleSinceLastCall()
	startListenerHeir(t, ln)
	if _, server := u.sampleSinceLastCall(); server != nil {
		t.Errorf("first sample: %+v; want none, as its beginning isn't known", server)
	}
	if _, server := u.sampleSinceLastCall(); server == nil {
		t.Error("second sample: no server; want the one that the first has found")
	}
	never.sampleSinceLastCall()
	if _, server := never.sampleSinceLastCall(); server != nil {
		t.Errorf("a server that came after the first sample: %+v; want none", server)
	}
}

// TestUsageOf finds a server by the path of its unix socket, and at any address of this machine; a
// local port is not taken for another machine's.
func TestUsageOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	unix := testkit.Must(net.Listen("unix", path))(t)
	defer unix.Close()
	startListenerHeir(t, unix.(*net.UnixListener))
	ln := testkit.Must(net.Listen("tcp4", "0.0.0.0:0"))(t)
	defer ln.Close()
	startListenerHeir(t, ln.(*net.TCPListener))
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	for target, want := range map[string]int{
		"unix:" + path: 1, "127.0.0.9:" + port: 1, "0.0.0.0:" + port: 1, "192.0.2.1:" + port: 0,
		"unix:/nowhere": 0, "nonsense": 0, "": 0, "0.0.0.0:1": 0, "[fe80::1%eth0]:1": 0,
	} {
		u := newGeneratorAndServerSampler([]string{target})
		if len(u.server.pids) != want {
			t.Errorf("%q: found %+v; want %d processes", target, u.server.pids, want)
		}
		for range 3 {
			if _, server := u.sampleSinceLastCall(); (server != nil) != (want > 0) {
				t.Errorf("%q: got %+v; want %d servers", target, server, want)
			}
		}
	}
}
