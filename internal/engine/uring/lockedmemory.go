package uring

// Number of entries in the queues and the buffer ring of each loop. Each must be a power of two.
const (
	sqEntries  = 256
	cqEntries  = 1024
	maxBuffers = 64 // 4 MiB per loop
)

// LockedMemoryPerLoop returns the number of bytes that the io_uring of one loop adds to the memory limited by
// RLIMIT_MEMLOCK. Linux before 6.13 counts fewer bytes.
func LockedMemoryPerLoop(pageSize int64) (bytes int64) {
	const submission, completion, buffer, counters = 64, 16, 16, 320
	for _, region := range [...]int64{sqEntries * submission, counters + cqEntries*completion, maxBuffers * buffer} {
		bytes += (region + pageSize - 1) / pageSize * pageSize
	}
	return bytes
}
