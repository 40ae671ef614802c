package pool

// NewWithRunnable is New with a fixed count of goroutines that wait for a processor.
func NewWithRunnable(cfg Config, runnable int) (*Pool, error) {
	return newPool(cfg, func() int { return runnable })
}

func (p *Pool) Ticks() int { return int(p.control.ticks.Load()) }
