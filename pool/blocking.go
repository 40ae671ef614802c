package pool

// blocking says whether jobs block, for a good part of their time: whether the workers
// that neither run nor are ready to run are more than a quarter of the busy ones, in the
// mean of recent readings.
type blocking struct{ share float64 }

// blocks is from which share of the busy workers on jobs block.
const blocks = 0.25

// look takes a reading into account.
func (b *blocking) look(r reading, procs int64) bool {
	share := 0.0
	if r.busy > 0 {
		share = max(0, 1-(1+r.crowd)*float64(procs)/float64(r.busy))
	}
	b.share += (share - b.share) / 8
	return b.share > blocks
}
