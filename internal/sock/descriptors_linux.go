package sock

import "golang.org/x/sys/unix"

// spareDescriptors is the number of descriptors that stay free for files during a handover of connections.
const spareDescriptors = 32

// DescriptorLimitShortfall returns how far the descriptor limit is too low for the needed further descriptors plus
// spareDescriptors. It returns 0 if the limit suffices, or if the use is unknown (before Linux 6.2).
func DescriptorLimitShortfall(needed int) int {
	var table unix.Stat_t
	soft, _, limited := DescriptorLimit()
	if !limited || unix.Stat("/proc/thread-self/fd", &table) != nil || table.Size == 0 {
		return 0
	}
	return max(needed+int(table.Size)+spareDescriptors-int(min(soft, 1<<30)), 0)
}
