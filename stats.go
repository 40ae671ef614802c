package myriad

// Stats are a server's counters at one moment. They count since the start,
// but for Open.
type Stats struct {
	// Model is the I/O model that serves, "" before the start.
	Model string
	// Loops is the number of its event loops, 0 for a model without them.
	Loops int
	// Processes is how many worker processes run now, 0 without
	// Server.Processes. All that follows, and Loops, is then the sum over
	// them, up to 100 ms old. Of a worker that has ended the counts remain,
	// but for Open; one that was killed has taken the last 100 ms with it.
	Processes int
	// Restarts counts the worker processes that were started again.
	Restarts int64
	// MaxConns is Limits.MaxConns with its default filled in.
	MaxConns int
	// Open is the number of connections that are open now.
	Open int64
	// Accepted counts connections that were opened, Refused those that were
	// closed at once because of Limits.MaxConns.
	Accepted, Refused int64
	// AcceptErrors counts failures to accept, such as for want of
	// descriptors.
	AcceptErrors int64
	// Reads counts receive calls that brought bytes, Writes send calls.
	Reads, Writes int64
	// BytesIn and BytesOut count bytes received and sent.
	BytesIn, BytesOut int64
	// Panics counts panics in the handler.
	Panics int64
	// OnWorkers is the number of loops whose handlers are called by workers
	// now, and Moved counts how often Auto has moved the handlers of a loop
	// there, because they held it.
	OnWorkers, Moved int64
}

// Stats gives the counters. It is safe for concurrent use.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return Stats{}
	}
	n := s.engine.Counters()
	processes, restarts := s.processes()
	return Stats{
		Model: s.model, Loops: s.engine.Loops(), MaxConns: s.maxConns(s.limits.MaxConns),
		Processes: processes, Restarts: restarts,
		Open: n.Open, Accepted: n.Accepted, Refused: n.Refused, AcceptErrors: n.AcceptErrors,
		Reads: n.Reads, Writes: n.Writes, BytesIn: n.BytesIn, BytesOut: n.BytesOut,
		Panics: n.Panics, OnWorkers: n.Away, Moved: n.Moved,
	}
}
