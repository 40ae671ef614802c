package sock

import "golang.org/x/sys/unix"

// spareDescriptors remain free while descriptors arrive from another process: for the files that hold connection
// records and for anything else opened meanwhile.
const spareDescriptors = 32

// MissingDescriptors returns how many descriptors the calling thread's table lacks for needed more. It returns 0
// without a limit, and before Linux 6.2, which does not report the table's size.
func MissingDescriptors(needed int) int {
	var table unix.Stat_t
	soft, _, limited := DescriptorLimit()
	if !limited || unix.Stat("/proc/thread-self/fd", &table) != nil || table.Size == 0 {
		return 0
	}
	return max(needed+int(table.Size)+spareDescriptors-int(min(soft, 1<<30)), 0)
}
