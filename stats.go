package myriad

// Stats are a server's counters at one moment. They count since the start,
// but for Open.
type Stats struct {
	// Model is the I/O model that serves, "" before the start.
	Model string
	// Loops is the number of its event loops, 0 for a model without them.
	Loops int
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
}

// Stats gives the counters. It is safe for concurrent use.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.engine == nil {
		return Stats{}
	}
	n := s.engine.Counters()
	return Stats{
		Model: s.model, Loops: s.engine.Loops(), MaxConns: s.limits.MaxConns,
		Open: n.Open, Accepted: n.Accepted, Refused: n.Refused, AcceptErrors: n.AcceptErrors,
		Reads: n.Reads, Writes: n.Writes, BytesIn: n.BytesIn, BytesOut: n.BytesOut,
		Panics: n.Panics,
	}
}
