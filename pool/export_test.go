package pool

// NewWithRunnable is New with a function that counts the goroutines that wait for a processor.
func NewWithRunnable(cfg Config, runnable func() int) (*Pool, error) { return newPool(cfg, runnable) }

func (p *Pool) Ticks() int { return int(p.control.ticks.Load()) }

// Enqueue queues a job in the first shard with space, even if a worker is parked.
func Enqueue(p *Pool, job Func) error {
	return p.enqueueInAnyShard(&Task{Job: job})
}
