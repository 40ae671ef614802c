package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine/uring"
)

// refuseRing makes the test binary, before it is the command, have a seccomp filter answer io_uring_setup with the
// error that is its value. That outlives exec, so that the command begins with it, like in a container; what the
// command starts has it too.
const refuseRing = "MYRIAD_TEST_REFUSE_IO_URING"

func init() {
	text, ok := os.LookupEnv(refuseRing)
	if !ok {
		return
	}
	os.Unsetenv(refuseRing)
	number, err := strconv.ParseUint(text, 10, 16)
	if err = errors.Join(err, blockIOUring(uint32(number))); err == nil {
		err = syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	fmt.Fprintf(os.Stderr, "%s=%s: %v\n", refuseRing, text, err)
	os.Exit(3)
}

// blockIOUring installs a seccomp filter that makes io_uring_setup fail with errno. It can't be
// removed.
func blockIOUring(errno uint32) error {
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call: struct seccomp_data begins with it
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_IO_URING_SETUP},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | errno},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("no new privileges: %w", err)
	}
	thread, _, e := syscall.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&program)))
	if e != 0 || thread != 0 {
		return fmt.Errorf("seccomp: %w, at thread %d", e, thread)
	}
	return nil
}

// ringBytes is what a loop's ring locks.
var ringBytes = uint64(uring.LockedMemoryPerLoop(int64(os.Getpagesize())))

func noMemoryText(limit uint64) string {
	return fmt.Sprintf("not enough memory for an io_uring, or the locked-memory limit is exceeded: ulimit -l %d is enough for %d loops "+
		"across all processes of a user; run fewer loops, raise the limit (LimitMEMLOCK), or use the model epoll: cannot allocate memory",
		limit/1024, limit/ringBytes)
}

// restriction prepares a command so that it cannot have some ring.
type restriction func(cmd *exec.Cmd) *exec.Cmd

func refuseRings(errno syscall.Errno) restriction {
	return func(cmd *exec.Cmd) *exec.Cmd {
		cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", refuseRing, errno))
		return cmd
	}
}

// limitLockedMemory lets a command lock some memory, without root's privilege to lock more.
func limitLockedMemory(bytes uint64) restriction {
	return func(cmd *exec.Cmd) *exec.Cmd {
		words := []string{"prlimit", fmt.Sprint("--memlock=", bytes), "setpriv", "--bounding-set=-ipc_lock", cmd.Path}
		cmd.Args = append(words, cmd.Args[1:]...)
		cmd.Path = "/usr/bin/prlimit"
		return cmd
	}
}

// checkFallsBackToEpoll checks that serve and load work with a restriction, and that serve explains once why it
// uses epoll.
func checkFallsBackToEpoll(t *testing.T, restrict restriction, why string, args ...string) {
	t.Helper()
	s := startProcess(t, restrict(newCommandProcess(t, append([]string{"serve", "--app", "lines", "--addr", "127.0.0.1:0"}, args...)...)))
	if ready := s.stdout.String(); !strings.Contains(ready, "(model epoll, ") {
		t.Errorf("%s: it said %q, want model epoll", why, ready)
	}
	runToEnd(t, restrict(newCommandProcess(t, "load", "-c", "20", "--messages", "2", "--loops", "8", s.addr))).
		checkOutcome(t, "load", 0, "20 of 20", "epoll, ")
	code, because := s.signalAndWait(syscall.SIGTERM), fmt.Sprintf("INFO I/O model chosen model=epoll reason=%q\n", why)
	said := s.stderr.String()
	draining := strings.Count(said, " INFO draining ") // if it does not yet know that the clients have gone
	if code != 0 || strings.Count(said, because) != 1 || strings.Count(said, "\n")-draining != 2 {
		t.Errorf("exit code %d, stderr %q, want one line on why it is epoll, %q, and one of the signal", code, said, because)
	}
}

// Where the kernel refuses io_uring, auto serves over epoll, in worker processes too. Where
// uring was asked for it is not replaced: the answer names the cause.
func TestFallback(t *testing.T) {
	skipIfShort(t)
	for _, c := range []struct { // what machines answer to io_uring_setup that have none for us
		errno syscall.Errno
		says  string
		args  []string
	}{
		{unix.EPERM, "io_uring is forbidden by sysctl kernel.io_uring_disabled or by a seccomp filter: operation not permitted", []string{"--processes", "2"}},
		{unix.ENOSYS, "the kernel does not support io_uring, or a seccomp filter hides io_uring: function not implemented", []string{"--loops", "8"}},
		{unix.EINVAL, "the kernel's io_uring is too old; expected Linux 6.6 or later: invalid argument", nil},
	} {
		checkFallsBackToEpoll(t, refuseRings(c.errno), c.says, c.args...)
		for line, asked := range map[string]string{
			"serve --addr 127.0.0.1:0 --model uring": "--model", "load -c 1 127.0.0.1:1 --model uring": "load",
		} {
			got := runToEnd(t, refuseRings(c.errno)(newCommandProcess(t, strings.Fields(line)...)))
			got.checkOutcome(t, line, 2, "myriad: "+asked+": "+c.says)
		}
	}
}

// One ring is within what may be locked, and one for each loop is not: auto takes epoll for
// all, and does not end. Where there is exactly enough for all loops they run on io_uring,
// although the kernel frees the ring of the probe some time later.
func TestFallbackOfSomeLoops(t *testing.T) {
	skipIfShort(t)
	if os.Geteuid() != 0 {
		t.Skip("needs root: the rings of an ordinary user's other processes count too")
	}
	checkFallsBackToEpoll(t, limitLockedMemory(2*ringBytes), noMemoryText(2*ringBytes), "--loops", "8")
	serve := strings.Fields("serve --addr 127.0.0.1:0 --model uring --loops 8")
	enough := 8 * ringBytes
	s := startProcess(t, limitLockedMemory(enough)(newCommandProcess(t, serve...)))
	if ready := s.stdout.String(); !strings.Contains(ready, "(model uring, loops 8,") {
		t.Errorf("with room for 8 rings it said %q", ready)
	}
	s.signalAndWait(syscall.SIGTERM)
	runToEnd(t, limitLockedMemory(enough-1)(newCommandProcess(t, serve...))).checkOutcome(t, "with room for 7 rings", 1, noMemoryText(enough-1))
}
