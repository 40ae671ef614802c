package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/engine/uring"
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
	for name, restrict := range map[string]func(uint64) error{refuseRing: blockIOUring, lockBytes: limitLockedMemory} {
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

// limitLockedMemory limits locked memory, for root, too.
func limitLockedMemory(bytes uint64) error {
	if err := unix.Prctl(unix.PR_CAPBSET_DROP, unix.CAP_IPC_LOCK, 0, 0, 0); err != nil {
		return fmt.Errorf("no privilege to lock memory: %w", err)
	}
	return unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: bytes, Max: bytes})
}

// blockIOUring installs a seccomp filter that makes io_uring_setup fail with errno. It can't be
// removed.
func blockIOUring(errno uint64) error {
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
}

// wantNoMemoryText returns the expected message with a limit of locked memory.
func wantNoMemoryText(limit uint64) string {
	return fmt.Sprintf("no memory for an io_uring, or over the limit of locked memory: ulimit -l %d is enough for %d loops "+
		"in all processes of a user; run fewer loops, raise the limit (LimitMEMLOCK), or use the model epoll: cannot allocate memory",
		limit/1024, limit/ringBytes)
}

// ringBytes is what a loop's ring locks.
var ringBytes = uint64(uring.LockedMemoryPerLoop(int64(os.Getpagesize())))

// newRestrictedCommand returns a command that starts with a restriction.
func newRestrictedCommand(t *testing.T, restriction string, number int, args ...string) *exec.Cmd {
	t.Helper()
	cmd := newCommandProcess(t, args...)
	cmd.Env = append(cmd.Env, fmt.Sprintf("%s=%d", restriction, number))
	return cmd
}

// checkFallsBackToEpoll checks that serve --model auto, and with 8 loops load, too, work with a
// restriction and explain once why they use epoll.
func checkFallsBackToEpoll(t *testing.T, restriction string, number int, why string, args ...string) {
	t.Helper()
	s := startProcess(t, newRestrictedCommand(t, restriction, number, append([]string{"serve", "--app", "lines", "--addr", "127.0.0.1:0"}, args...)...))
	if ready := s.stdout.String(); !strings.Contains(ready, "(model epoll, ") {
		t.Errorf("%s: it said %q, want model epoll", why, ready)
	}
	sendAndExpect(t, dial(t, s.addr), "is anybody there?\n", "is anybody there?\n")
	if slices.Contains(args, "8") {
		got := runToEnd(t, newRestrictedCommand(t, restriction, number, "load", "-c", "20", "--messages", "2", "--loops", "8", s.addr))
		if got.code != 0 || !strings.Contains(got.stdout, "20 of 20") || !strings.Contains(got.stdout, "epoll, ") {
			t.Errorf("load: %+v; want all 20 connected, by epoll", got)
		}
	}
	code, because := s.signalAndWait(t, syscall.SIGTERM), fmt.Sprintf("INFO I/O model chosen model=epoll reason=%q\n", why)
	if said := s.stderr.String(); code != 0 || strings.Count(said, because) != 1 || strings.Count(said, "\n") != 2 {
		t.Errorf("exit code %d, stderr %q, want one line on why it is epoll, %q, and one of draining", code, said, because)
	}
}

// Where the kernel refuses io_uring, auto serves over epoll, in worker processes too. Where
// uring was asked for it is not replaced: the answer names the cause.
func TestFallback(t *testing.T) {
	skipIfShort(t)
	for i, c := range refusals {
		args := [][]string{{"--processes", "2"}, {"--loops", "8"}, nil}[i]
		checkFallsBackToEpoll(t, refuseRing, int(c.errno), c.says, args...)
		for asked, args := range map[string][]string{
			"myriad: --model: ": {"serve", "--addr", "127.0.0.1:0"},
			"myriad: load: ":    {"load", "-c", "1", "127.0.0.1:1"},
		} {
			got := runToEnd(t, newRestrictedCommand(t, refuseRing, int(c.errno), append(args, "--model", "uring")...))
			if got.code != 2 || !strings.HasPrefix(got.stderr, asked+c.says) || strings.Count(got.output(), "\n") != 1 {
				t.Errorf("%v: %s: %+v; want 2 and one line that begins with %q", c.errno, args[0], got, asked+c.says)
			}
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
	const loops = 8
	some := 2 * ringBytes
	checkFallsBackToEpoll(t, lockBytes, int(some), wantNoMemoryText(some), "--loops", strconv.Itoa(loops))

	serve := []string{"serve", "--addr", "127.0.0.1:0", "--model", "uring", "--loops", strconv.Itoa(loops)}
	enough := loops * ringBytes
	s := startProcess(t, newRestrictedCommand(t, lockBytes, int(enough), serve...))
	if ready := s.stdout.String(); !strings.Contains(ready, "(model uring, loops 8,") {
		t.Errorf("with room for %d rings it said %q", loops, ready)
	}
	s.signalAndWait(t, syscall.SIGTERM)
	got := runToEnd(t, newRestrictedCommand(t, lockBytes, int(enough-1), serve...))
	if want := wantNoMemoryText(enough - 1); got.code == 0 || !strings.Contains(got.stderr, want) {
		t.Errorf("with room for %d rings: %+v; want an error with %q", loops-1, got, want)
	}
}
