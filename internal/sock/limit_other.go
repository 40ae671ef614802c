//go:build !linux

package sock

// DescriptorLimit is how many descriptors this process may open now (soft) and
// how far it may raise that by itself (hard). ok is false where there is no
// such limit to read.
func DescriptorLimit() (soft, hard uint64, ok bool) { return 0, 0, false }
