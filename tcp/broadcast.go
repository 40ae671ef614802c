package tcp

import "github.com/myriad-go/myriad/internal/publish"

// Broadcast sends p to every connection that is open, from anywhere, and returns at once: it
// keeps one copy for all, and each loop walks through its connections, a few hundred at a
// time, so that others are served meanwhile. Broadcasts of one goroutine arrive in the order
// of its calls, those that wait together, in one send; between broadcasts and Ref.Send there
// is no order. A connection that opens meanwhile may get it or not. Server.SlowConsumer says
// what happens to one that has no room.
//
// At most 1,024 may be under way, of Limits.MaxMailBytes together: beyond that it answers
// ErrFull, and nobody gets p. It answers ErrTooLarge for more than Limits.MaxUnsent bytes, and
// ErrServerClosed before the start and after the end.
//
// While an Upgrade hands connections over, p is kept, and sent when that is done, and until the old
// process has ended it reaches the connections of both: see Publish, whose bounds hold then, too.
//
// With Server.Processes it reaches the connections of all worker processes, from any of them
// and from their supervisor, and in all of them in one order. Then p has at most 1 MiB, and 64
// may wait in each process on the way. A worker process that takes none of them for a second
// misses one, which is logged.
func (s *Server) Broadcast(p []byte) error {
	s.mu.Lock()
	_, err := s.started()
	w := s.worker
	s.mu.Unlock()
	switch {
	case err != nil:
		return err
	case len(p) > s.limits.MaxUnsent:
		return ErrTooLarge
	case w != nil:
		return named(w.Broadcast(p))
	}
	_, err = s.published.Load().Publish(publish.Message{All: true, Bytes: p})
	return err
}
