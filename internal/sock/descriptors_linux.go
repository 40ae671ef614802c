package sock

import "golang.org/x/sys/unix"

// spareDescriptors are left where others come from another process: for their records in files,
// and for what else is opened meanwhile.
const spareDescriptors = 32

// DescriptorsShort is how many descriptors are missing in the calling thread's table for so many
// that are to come. The kernel says how many there are since Linux 6.2; before that, and without a
// limit, none are missing.
func DescriptorsShort(coming int) int {
	var table unix.Stat_t
	soft, _, limited := DescriptorLimit()
	if !limited || unix.Stat("/proc/thread-self/fd", &table) != nil || table.Size == 0 {
		return 0
	}
	return max(coming+int(table.Size)+spareDescriptors-int(min(soft, 1<<30)), 0)
}
