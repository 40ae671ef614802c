package sock

import "golang.org/x/sys/unix"

// spareDescriptors is the number of descriptors that stay free while descriptors arrive from another process. Files
// with connection records, for example, need some.
const spareDescriptors = 32

// MissingDescriptors returns how many free descriptors the calling thread's table lacks if needed more are to be
// opened. Without a limit it returns 0, and also before Linux 6.2, which does not report the table's size.
func MissingDescriptors(needed int) int {
	var table unix.Stat_t
	soft, _, limited := DescriptorLimit()
	if !limited || unix.Stat("/proc/thread-self/fd", &table) != nil || table.Size == 0 {
		return 0
	}
	return max(needed+int(table.Size)+spareDescriptors-int(min(soft, 1<<30)), 0)
}
