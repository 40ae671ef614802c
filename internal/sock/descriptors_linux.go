package sock

import "golang.org/x/sys/unix"

// spareDescriptors is the number of descriptors that stay free, for example for files with connection records, while
// descriptors arrive from another process.
const spareDescriptors = 32

// MissingDescriptors returns how many of needed additional descriptors the calling thread could not open, because its
// table is limited. It returns 0 if there is no limit, or if the number of open descriptors is unknown (before Linux
// 6.2).
func MissingDescriptors(needed int) int {
	var table unix.Stat_t
	soft, _, limited := DescriptorLimit()
	if !limited || unix.Stat("/proc/thread-self/fd", &table) != nil || table.Size == 0 {
		return 0
	}
	return max(needed+int(table.Size)+spareDescriptors-int(min(soft, 1<<30)), 0)
}
