package pool

// SetBacklog has a pool take it that so many goroutines for each processor are runnable
// and do not run, whatever Go's scheduler says.
func (p *Pool) SetBacklog(n float64) {
	p.control.mu.Lock()
	defer p.control.mu.Unlock()
	p.control.backlog = func() float64 { return n }
}

// Ticks is how often the controller has run.
func (p *Pool) Ticks() int {
	p.control.mu.Lock()
	defer p.control.mu.Unlock()
	return p.control.ticks
}
