package uring

// These are the sizes of a ring's queues and of its ring of buffers. They must be powers of two. Full queues are rare
// and lose nothing.
const (
	sqEntries  = 256
	cqEntries  = 1024
	maxBuffers = 64 // 4 MiB per loop
)

// LockedMemoryPerLoop returns the number of bytes that the kernel counts against RLIMIT_MEMLOCK for the ring of one
// loop: both queues and the ring of buffers, each in whole pages. The buffers are not locked. Linux before 6.13 counts
// fewer bytes.
func LockedMemoryPerLoop(pageSize int64) (bytes int64) {
	const submission, completion, buffer, counters = 64, 16, 16, 320
	for _, region := range [...]int64{sqEntries * submission, counters + cqEntries*completion, maxBuffers * buffer} {
		bytes += (region + pageSize - 1) / pageSize * pageSize
	}
	return bytes
}
