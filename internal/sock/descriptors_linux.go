package sock

import "golang.org/x/sys/unix"

// spareDescriptors is the number of descriptors that must stay free for files while a process takes over connections.
const spareDescriptors = 32

// DescriptorLimitShortfall returns how many descriptors the process lacks if it must open more descriptors. The
// argument additional is the number of descriptors to open. In addition, spareDescriptors descriptors must stay free.
// If the process's descriptor limit suffices, the result is 0. Before Linux 6.2, the result is also 0, because the
// number of open descriptors is unknown.
func DescriptorLimitShortfall(additional int) int {
	var table unix.Stat_t
	soft, _, limited := DescriptorLimit()
	if !limited || unix.Stat("/proc/thread-self/fd", &table) != nil || table.Size == 0 {
		return 0
	}
	return max(additional+int(table.Size)+spareDescriptors-int(min(soft, 1<<30)), 0)
}
