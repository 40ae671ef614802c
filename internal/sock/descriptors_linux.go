package sock

import "golang.org/x/sys/unix"

// spareDescriptors is the number of descriptors that must stay free for files while a process takes over connections.
const spareDescriptors = 32

// DescriptorLimitShortfall returns by how much the process's descriptor limit must grow before needed more descriptors
// can be opened. The calculation leaves spareDescriptors descriptors free. If the limit suffices, the result is 0. The
// result is also 0 before Linux 6.2, because the number of open descriptors is then unknown.
func DescriptorLimitShortfall(needed int) int {
	var table unix.Stat_t
	soft, _, limited := DescriptorLimit()
	if !limited || unix.Stat("/proc/thread-self/fd", &table) != nil || table.Size == 0 {
		return 0
	}
	return max(needed+int(table.Size)+spareDescriptors-int(min(soft, 1<<30)), 0)
}
