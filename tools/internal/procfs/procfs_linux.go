package procfs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kcmpFiles asks kcmp(2) for descriptor tables (KCMP_FILES).
const kcmpFiles = 2

// sameTable reports whether two threads share one descriptor table.
func sameTable(a, b int) (bool, error) {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	if errno != 0 {
		return false, fmt.Errorf("procfs: descriptor tables of threads %d and %d: kcmp: %w", a, b, errno)
	}
	return order == 0, nil
}

// writable reports whether this process may write a file.
func writable(path string) bool {
	return unix.Faccessat(unix.AT_FDCWD, path, unix.W_OK, unix.AT_EACCESS) == nil
}

// tasksIn counts the threads of a process by its directory of them, which has two
// links more, and its effective user.
func tasksIn(dir string) (user uint32, tasks int, err error) {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return 0, 0, err
	}
	return st.Uid, int(st.Nlink) - 2, nil
}

// ReadRlimits reads limits of a process, of which only its owner may.
func ReadRlimits(pid int) (r Rlimits, err error) {
	for resource, to := range map[int]*Rlimit{
		unix.RLIMIT_NOFILE: &r.Nofile, unix.RLIMIT_MEMLOCK: &r.Memlock, unix.RLIMIT_NPROC: &r.Nproc,
	} {
		var limit unix.Rlimit
		if err := unix.Prlimit(pid, resource, nil, &limit); err != nil {
			return Rlimits{}, fmt.Errorf("procfs: limits of process %d: %w", pid, err)
		}
		*to = Rlimit{Soft: fromKernel(limit.Cur), Hard: fromKernel(limit.Max)}
	}
	return r, nil
}

// fromKernel is a limit, of which none is the largest number, or nearly so.
func fromKernel(limit uint64) int64 {
	if limit > 1<<62 {
		return -1
	}
	return int64(limit)
}
