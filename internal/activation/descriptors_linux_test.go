package activation

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/testkit"
)

// childMode is the variable that makes this program the process that listeners are passed to. It sets
// LISTEN_PID itself, because its PID is not known before.
const childMode = "MYRIAD_TEST_ACTIVATION"

func TestMain(m *testing.M) {
	if os.Getenv(childMode) == "" {
		os.Exit(m.Run())
	}
	if os.Getenv("LISTEN_PID") == "" {
		os.Setenv("LISTEN_PID", fmt.Sprint(os.Getpid()))
	}
	if err := json.NewEncoder(os.Stdout).Encode(reportListeners()); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

type childReport struct {
	Err, Again string // of the first and the second call
	Same       bool   // both calls returned the same
	Left       []string
	Sockets    int   // number of socket descriptors
	Inherited  []int // descriptors without close-on-exec
	Listeners  []listenerReport
}

type listenerReport struct{ Name, Kind, Addr, Got string }

// reportListeners takes the listeners, and a waiting connection from each.
func reportListeners() (r childReport) {
	first, err := Listeners()
	r.Err = fmt.Sprint(err)
	second, err := Listeners()
	r.Again, r.Same = fmt.Sprint(err), slices.Equal(first, second)
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "LISTEN_") {
			r.Left = append(r.Left, v)
		}
	}
	for fd := range 64 {
		if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE); err != nil {
			continue
		}
		r.Sockets++
		if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
			r.Inherited = append(r.Inherited, fd)
		}
	}
	for _, l := range first {
		t := listenerReport{Name: l.Name, Kind: fmt.Sprintf("%T", l.Listener), Addr: l.Addr().String()}
		if c, err := l.Accept(); err != nil {
			t.Got = err.Error()
		} else {
			b := make([]byte, 16)
			n, _ := c.Read(b)
			t.Got = string(b[:n])
			c.Close()
		}
		l.Close()
		r.Listeners = append(r.Listeners, t)
	}
	return r
}

func runChild(t *testing.T, files []*os.File, env ...string) (r childReport) {
	t.Helper()
	exe, err := os.Executable()
	testkit.RequireNoError(t, err)
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "LISTEN_") }), env...)
	// with the race detector a process exits a second late, to report races in other goroutines; the
	// child has none
	cmd.Env = append(cmd.Env, childMode+"=1", "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles, cmd.Stderr = files, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if r.Err != r.Again || !r.Same {
		t.Errorf("the second call gave %s, the first %s; the same listeners: %v", r.Again, r.Err, r.Same)
	}
	if r.Left != nil {
		t.Errorf("variables are left: %q", r.Left)
	}
	return r
}

func dupFile(t *testing.T, from interface{ File() (*os.File, error) }, err error) *os.File {
	t.Helper()
	testkit.RequireNoError(t, err)
	f, err := from.File()
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func newSocket(t *testing.T, family, kind, protocol int) *os.File {
	t.Helper()
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol)
	testkit.RequireNoError(t, err)
	f := os.NewFile(uintptr(fd), "socket")
	t.Cleanup(func() { f.Close() })
	return f
}

func listenAt(t *testing.T, network, addr string) net.Listener {
	t.Helper()
	l, err := net.Listen(network, addr)
	testkit.RequireNoError(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

func TestListeners(t *testing.T) {
	tcp := listenAt(t, "tcp", "127.0.0.1:0")
	path := filepath.Join(t.TempDir(), "socket")
	local := listenAt(t, "unix", path)
	files := []*os.File{dupFile(t, tcp.(*net.TCPListener), nil), dupFile(t, local.(*net.UnixListener), nil)}
	for _, l := range []net.Listener{tcp, local} {
		c, err := net.Dial(l.Addr().Network(), l.Addr().String())
		testkit.RequireNoError(t, err)
		testkit.NewConn(t, c).Send("hello " + l.Addr().Network())
	}
	r := runChild(t, files, "LISTEN_FDS=2", "LISTEN_FDNAMES=web:admin")
	want := []listenerReport{
		{"web", "*net.TCPListener", tcp.Addr().String(), "hello tcp"},
		{"admin", "*net.UnixListener", path, "hello unix"},
	}
	if r.Err != "<nil>" || !slices.Equal(r.Listeners, want) {
		t.Errorf("got %+v, %s; want %+v", r.Listeners, r.Err, want)
	}
	if r.Sockets != 2*len(want) {
		t.Errorf("%d descriptors of %d sockets, want one of the listener and one that is kept for each", r.Sockets, len(want))
	}
	if r.Inherited != nil {
		t.Errorf("descriptors %v would be inherited", r.Inherited)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the manager's socket file is gone: %v", err)
	}
}

func TestListenersNone(t *testing.T) {
	tcp := listenAt(t, "tcp", "127.0.0.1:0")
	f := dupFile(t, tcp.(*net.TCPListener), nil)
	for name, env := range map[string][]string{
		"another process": {"LISTEN_PID=1", "LISTEN_FDS=1"},
		"wrong count":     {"LISTEN_FDS=x"},
	} {
		r := runChild(t, []*os.File{f}, env...)
		if wrong := name == "wrong count"; r.Listeners != nil || (r.Err != "<nil>") != wrong {
			t.Errorf("%s: got %+v, %s", name, r.Listeners, r.Err)
		}
		if !slices.Equal(r.Inherited, []int{3}) {
			t.Errorf("%s: without close-on-exec are %v; want descriptor 3 left alone", name, r.Inherited)
		}
	}
}

func TestListenersRefuses(t *testing.T) {
	tcp := listenAt(t, "tcp", "127.0.0.1:0")
	good := dupFile(t, tcp.(*net.TCPListener), nil)
	udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	datagrams := dupFile(t, udp, err)
	defer udp.Close()
	conn, err := net.Dial("tcp", tcp.Addr().String())
	testkit.RequireNoError(t, err)
	connected := dupFile(t, conn.(*net.TCPConn), nil)
	defer conn.Close()
	pipe, other, err := os.Pipe()
	testkit.RequireNoError(t, err)
	defer pipe.Close()
	defer other.Close()
	packets := newSocket(t, unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	for _, c := range []struct {
		name  string
		files []*os.File
		says  string
	}{
		{"datagrams", []*os.File{good, datagrams}, `descriptor 4 ("b") is a socket of family 2, type 2, protocol 17; expected TCP`},
		{"a connection", []*os.File{good, connected}, `descriptor 4 ("b") is a socket that does not listen`},
		{"a pipe", []*os.File{pipe, good}, `descriptor 3 ("a") is not a socket`},
		{"packets", []*os.File{packets, good}, `descriptor 3 ("a") is a socket of family 1, type 5`},
		{"another family", []*os.File{good, newSocket(t, unix.AF_NETLINK, unix.SOCK_RAW, 0)}, `descriptor 4 ("b") is a socket of family 16`},
	} {
		r := runChild(t, c.files, "LISTEN_FDS=2", "LISTEN_FDNAMES=a:b")
		if !strings.Contains(r.Err, c.says) || r.Listeners != nil {
			t.Errorf("%s: got %+v, %s; want an error that says %s", c.name, r.Listeners, r.Err, c.says)
		}
		if n := len(r.Inherited); c.name == "datagrams" && n != 2 {
			t.Errorf("%s: without close-on-exec are %v; want both left alone", c.name, r.Inherited)
		}
	}
}

// TestCheckNotOpen cannot pass a closed descriptor to a child: one of Go's own may have its number.
func TestCheckNotOpen(t *testing.T) {
	fd := 1 << 20
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != syscall.EBADF {
		t.Fatalf("descriptor %d: %v", fd, err)
	}
	if err := checkListeningSocket(fd); err == nil || !strings.Contains(err.Error(), "is not open") {
		t.Errorf("got %v", err)
	}
}
