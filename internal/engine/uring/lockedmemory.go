package uring

// The sizes of a ring's queues and of its ring of buffers, powers of two. Submissions that
// don't fit are submitted early, completions that don't fit are kept by the kernel and come
// later. A turn of a loop rarely has as many of either.
const (
	sqEntries  = 256
	cqEntries  = 1024
	maxBuffers = 64 // 4 MiB a loop at the most
)

// LockedMemory returns how many bytes the kernel counts against RLIMIT_MEMLOCK for the ring of
// one loop, with pages of this size: the queues of submissions and of completions and the ring
// of buffers, in whole pages each. The buffers themselves are not locked. Linux before 6.13
// counts less.
func LockedMemory(page int64) (bytes int64) {
	const submission, completion, buffer, counters = 64, 16, 16, 320
	for _, region := range [...]int64{sqEntries * submission, counters + cqEntries*completion, maxBuffers * buffer} {
		bytes += (region + page - 1) / page * page
	}
	return bytes
}
