package pool

// NewWithBacklog is New for a machine on which so many goroutines for each processor are
// runnable and do not run, whatever Go's scheduler says.
func NewWithBacklog(cfg Config, backlog float64) (*Pool, error) {
	return newPool(cfg, func() float64 { return backlog })
}

// Ticks is how often the controller has run.
func (p *Pool) Ticks() int { return int(p.control.ticks.Load()) }
