package procfs

import (
	"fmt"
	"os"
	"time"

	prom "github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
)

// kcmpFiles is KCMP_FILES, which makes kcmp(2) compare the descriptor tables of two threads.
const kcmpFiles = 2

func sharesDescriptorTable(a, b int) (bool, error) {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	if errno != 0 {
		return false, fmt.Errorf("procfs: descriptor tables of threads %d and %d: kcmp: %w", a, b, errno)
	}
	return order == 0, nil
}

func isWritable(path string) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil
}

// threadCountAndOwner returns a process's effective user ID and number of threads. taskDir is /proc/PID/task.
func threadCountAndOwner(taskDir string) (user uint32, tasks int, err error) {
	var st unix.Stat_t
	if err := unix.Stat(taskDir, &st); err != nil {
		return 0, 0, err
	}
	return st.Uid, int(st.Nlink) - 2, nil
}

// ReadRlimits reads resource limits of a process. It needs the right to trace the process.
func ReadRlimits(pid int) (r Rlimits, err error) {
	for resource, to := range map[int]*Rlimit{
		unix.RLIMIT_NOFILE: &r.Nofile, unix.RLIMIT_MEMLOCK: &r.Memlock, unix.RLIMIT_NPROC: &r.Nproc,
	} {
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, resource, nil, &limit); err != nil {
			return Rlimits{}, fmt.Errorf("procfs: limits of process %d: %w", pid, err)
		}
		*to = Rlimit{Soft: minusOneIfUnlimited(limit.Cur), Hard: minusOneIfUnlimited(limit.Max)}
	}
	return r, nil
}

// minusOneIfUnlimited returns -1 for a limit above 2^62, and any other limit unchanged.
func minusOneIfUnlimited(limit uint64) int64 {
	if limit > 1<<62 {
		return -1
	}
	return int64(limit)
}

// ReadExactRSSAndPSS reads the exact memory of a process from its page tables. If n processes share a page, pss counts
// 1/n of the page. Reading takes 3 ms per GiB. Meanwhile, the process cannot map memory.
func ReadExactRSSAndPSS(pid int) (rss, pss int64, err error) {
	s, err := parseProcessFS(pid, prom.Proc.ProcSMapsRollup)
	return int64(s.Rss), int64(s.Pss), err
}

// ReadCPUTimeOfProcess returns the processor time that a process has used, with nanosecond resolution. In some
// sandboxes, it fails for every process except the calling one. See clock_getcpuclockid(3).
func ReadCPUTimeOfProcess(pid int) (time.Duration, error) {
	var clock unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|2), &clock); err != nil {
		return 0, fmt.Errorf("procfs: clock of process %d: %w", pid, err)
	}
	return time.Duration(clock.Nano()), nil
}

// CallInNetworkNamespace calls f in the network namespace of a process. If the caller is in another network namespace,
// CallInNetworkNamespace calls f on a temporary thread. The caller needs the right to trace the process.
func CallInNetworkNamespace(pid int, f func()) error {
	theirs, err := os.Readlink(NetworkNamespaceFile(pid))
	if err != nil {
		return err
	}
	own, err := os.Readlink(NetworkNamespaceFile(0))
	if err != nil {
		return err
	}
	if own == theirs {
		f()
		return nil
	}
	sock.RunOnNewThread(func() {
		var file *os.File
		if file, err = os.Open(NetworkNamespaceFile(pid)); err != nil {
			return
		}
		err = os.NewSyscallError("setns", unix.Setns(int(file.Fd()), unix.CLONE_NEWNET))
		file.Close()
		if err == nil {
			f()
		}
	})
	return err
}
