package pool

// Shards is how many parts the queue will be in, of a Config without a default.
func (c Config) Shards() int { return c.shards() }

// Crowd has a pool take it that so many goroutines for each processor are ready to
// run and don't, whatever Go's scheduler says.
func (p *Pool) Crowd(n float64) {
	p.tender.mu.Lock()
	defer p.tender.mu.Unlock()
	p.tender.crowd = func() float64 { return n }
}
