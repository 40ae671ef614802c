package pool

// NewWithRunnable is New for a machine on which so many goroutines are runnable and do not
// run, whatever Go's scheduler says.
func NewWithRunnable(cfg Config, runnable int) (*Pool, error) {
	return newPool(cfg, func() int { return runnable })
}

// Ticks is how often the controller has run.
func (p *Pool) Ticks() int { return int(p.control.ticks.Load()) }
