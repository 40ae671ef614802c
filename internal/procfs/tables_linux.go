package procfs

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// kcmpFiles asks kcmp(2) for descriptor tables (KCMP_FILES).
const kcmpFiles = 2

// sameTable says whether two threads share one descriptor table.
func sameTable(a, b int) (bool, error) {
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, uintptr(a), uintptr(b), kcmpFiles, 0, 0, 0)
	if errno != 0 {
		return false, fmt.Errorf("procfs: descriptor tables of threads %d and %d: kcmp: %w", a, b, errno)
	}
	return order == 0, nil
}
