package sock

import "golang.org/x/sys/unix"

// DescriptorLimit is how many descriptors this process may open now (soft) and
// how far it may raise that by itself (hard). ok is false where there is no
// such limit to read.
func DescriptorLimit() (soft, hard uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, false
	}
	return r.Cur, r.Max, true
}
