package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What the test binary does to itself before it is the command, if these are in its
// environment, with a number each.
const (
	// refuseRing is an error: a seccomp filter has the kernel answer io_uring_setup
	// with that.
	refuseRing = "MYRIAD_TEST_REFUSE_IO_URING"
	// lockBytes is how much memory it may lock, without root's privilege to lock more.
	lockBytes = "MYRIAD_TEST_MEMLOCK"
)

// Both outlive exec, so that the command begins with it, like in a container; what
// the command starts has it too.
func init() {
	for name, restrict := range map[string]func(uint64) error{refuseRing: filterRing, lockBytes: limitLocks} {
		text, ok := os.LookupEnv(name)
		if !ok {
			continue
		}
		os.Unsetenv(name)
		number, err := strconv.ParseUint(text, 10, 32)
		if err == nil {
			err = restrict(number)
		}
		if err == nil {
			err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
		}
		fmt.Fprintf(os.Stderr, "%s=%s: %v\n", name, text, err)
		os.Exit(3)
	}
}

// limitLocks limits locked memory, for root too.
func limitLocks(bytes uint64) error {
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err != nil {
		return fmt.Errorf("no privilege to lock memory: %w", err)
	}
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: bytes})
}

// filterRing installs the filter. It can't be taken back.
func filterRing(errno uint64) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call: struct seccomp_data begins with it
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_IO_URING_SETUP},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	thread, _, e := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	switch {
	case e != 0:
		return fmt.Errorf("seccomp: %w", e)
	case thread != 0:
		return fmt.Errorf("seccomp: thread %d can't be put under the filter", thread)
	}
	return nil
}

// refusals are the answers to io_uring_setup that machines give which have no
// io_uring for us, and what is to be said of each.
var refusals = []struct {
	errno syscall.Errno
	says  string
}{
	{unix.EPERM, "io_uring is forbidden here, by sysctl kernel.io_uring_disabled or a seccomp filter: operation not permitted"},
	{unix.ENOSYS, "the kernel has no io_uring, or a seccomp filter hides it: function not implemented"},
	{unix.EINVAL, "the kernel's io_uring is too old: it needs Linux 6.6: invalid argument"},
	{unix.ENOMEM, "no memory for an io_uring, or over the limit of locked memory (ulimit -l): cannot allocate memory"},
}

// becauseOf is how the log says that it is epoll and why.
func becauseOf(why string) string {
	return fmt.Sprintf("INFO I/O model chosen model=epoll because=%q", why)
}

// restricted restricts a command that was prepared.
func restricted(cmd *exec.Cmd, how string, number int) *exec.Cmd {
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", how, number))
	return cmd
}

// refused puts a command that was prepared under the filter.
func refused(cmd *exec.Cmd, errno syscall.Errno) *exec.Cmd {
	return restricted(cmd, refuseRing, int(errno))
}

// serveRestricted runs `myriad serve --model auto` with a restriction until it is
// ready, and gives its ready line too.
func serveRestricted(t *testing.T, how string, number int, args ...string) (s *server, ready string) {
	t.Helper()
	args = append([]string{"serve", "--app", "echo", "--model", "auto", "--addr", "127.0.0.1:0"}, args...)
	s = &server{Cmd: restricted(command(t, args...), how, number), stderr: &lockedBuffer{}}
	s.Stderr = s.stderr
	out, err := s.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	if ready, err = bufio.NewReader(out).ReadString('\n'); err != nil {
		_ = s.Wait() // until all of its standard error is there
		t.Fatalf("%s=%d: no ready line: %v; stderr: %s", how, number, err, s.stderr)
	}
	_, after, _ := strings.Cut(ready, " on ")
	s.addr, _, _ = strings.Cut(after, " ")
	return s, ready
}

// echoes says what is wrong with the echo of an address, if anything is.
func echoes(addr string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	const said = "is anybody there?"
	io.WriteString(c, said)
	answer := make([]byte, len(said))
	if _, err := io.ReadFull(c, answer); err != nil {
		return err
	}
	if string(answer) != said {
		return errors.New("the answer is " + strconv.Quote(string(answer)))
	}
	return nil
}

// Where the kernel refuses io_uring, auto says why, once, and serves over epoll.
func TestFallback(t *testing.T) {
	for _, c := range refusals {
		s, ready := serveRestricted(t, refuseRing, int(c.errno))
		if !strings.Contains(ready, "(model epoll, ") {
			t.Errorf("%v: it said %q, want model epoll", c.errno, ready)
		}
		if err := echoes(s.addr); err != nil {
			t.Errorf("%v: it does not echo: %v", c.errno, err)
		}
		if code := s.end(t, syscall.SIGTERM); code != 0 {
			t.Errorf("%v: after SIGTERM: exit code %d, want 0", c.errno, code)
		}
		lines := strings.Split(s.stderr.String(), "\n")
		if len(lines) != 3 || !strings.HasSuffix(lines[0], becauseOf(c.says)) ||
			!strings.Contains(lines[1], "draining") || lines[2] != "" {
			t.Errorf("%v: stderr %q, want one line on why it is epoll, %q, and one of draining", c.errno, lines, c.says)
		}
	}
}

// A model that was asked for is not replaced: the answer names the cause.
func TestNoFallbackFromUring(t *testing.T) {
	for _, c := range refusals {
		for asked, args := range map[string][]string{
			"myriad: --model: ": {"serve", "--addr", "127.0.0.1:0"},
			"myriad: load: ":    {"load", "-c", "1", "127.0.0.1:1"},
		} {
			cmd := refused(command(t, append(args, "--model", "uring")...), c.errno)
			out, err := cmd.CombinedOutput()
			if err != nil && cmd.ProcessState == nil {
				t.Fatal(err)
			}
			said, want := string(out), asked+c.says
			if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.HasPrefix(said, want) || strings.Count(said, "\n") != 1 {
				t.Fatalf("%v: %s: exit code %d, it said %q; want 2 and one line that begins with %q", c.errno, args[0], code, said, want)
			}
		}
	}
}

// The load generator falls back too, and its report says to what.
func TestLoadFallback(t *testing.T) {
	s := startServer(t, "serve")
	cmd := refused(command(t, "load", "-c", "20", "--messages", "2", s.addr), unix.EPERM)
	out, err := cmd.CombinedOutput()
	if said := string(out); err != nil || !strings.Contains(said, "20 of 20") || !strings.Contains(said, "epoll, ") {
		t.Errorf("load: %v, it said %q; want all 20 connected, by epoll", err, said)
	}
}

// So do worker processes, which are under the filter as well.
func TestProcessesFallback(t *testing.T) {
	s, ready := serveRestricted(t, refuseRing, int(unix.EPERM), "--processes", "2")
	if !strings.Contains(ready, "(model epoll, ") || !strings.Contains(ready, ", processes 2,") {
		t.Errorf("it said %q, want model epoll and 2 processes", ready)
	}
	if err := echoes(s.addr); err != nil {
		t.Errorf("it does not echo: %v", err)
	}
	if code := s.end(t, syscall.SIGTERM); code != 0 {
		t.Errorf("after SIGTERM: exit code %d, stderr %q; want 0", code, s.stderr)
	}
	if said := s.stderr.String(); !strings.Contains(said, becauseOf(refusals[0].says)) || strings.Count(said, "I/O model chosen") != 1 {
		t.Errorf("stderr %q, want why it is epoll, once for all processes", said)
	}
}

// One ring is within what may be locked, and one for each loop is not: auto takes
// epoll for all, and does not end.
func TestFallbackOfSomeLoops(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to give up its privilege to lock memory")
	}
	const enough, loops = 500_000, 8 // bytes, for one or two rings
	s, ready := serveRestricted(t, lockBytes, enough, "--loops", strconv.Itoa(loops))
	if !strings.Contains(ready, "(model epoll, ") {
		t.Errorf("it said %q, want model epoll", ready)
	}
	if err := echoes(s.addr); err != nil {
		t.Errorf("it does not echo: %v", err)
	}
	if code := s.end(t, syscall.SIGTERM); code != 0 {
		t.Errorf("after SIGTERM: exit code %d, stderr %q; want 0", code, s.stderr)
	}
	if said := s.stderr.String(); !strings.Contains(said, becauseOf(refusals[3].says)) {
		t.Errorf("stderr %q, want why it is epoll", said)
	}
	to := startServer(t, "serve")
	cmd := restricted(command(t, "load", "-c", "20", "--messages", "2", "--loops", strconv.Itoa(loops), to.addr), lockBytes, enough)
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "20 of 20") || !strings.Contains(string(out), "epoll, ") {
		t.Errorf("load: %v, it said %q; want all 20 connected, by epoll", err, out)
	}
}
