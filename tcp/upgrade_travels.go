package tcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/publish"
	"github.com/myriad-go/myriad/internal/upgrade"
)

// This file is what goes to the new process beside connections: counters, the handler's state, and
// broadcasts.
//
// The old process holds broadcasts, saves the state, and sends that with one end of a link. It hands
// the connections over, says its counters, and releases what was held, here and to the link. The new
// process has held broadcasts since its start. It runs what comes by the link at once, until it hears
// that there is no more of what was held, and then its own. After that both pass broadcasts on, until
// one of them ends. The old one says at its end what it has counted since.

// maxSavedState is the most bytes that SaveState writes.
const maxSavedState = 1 << 30

// broadcastTimeout bounds how long Hold waits for broadcasts in progress, and for how long more messages are held
// while those that were are run; holdTimeout how long they are held before.
var broadcastTimeout, holdTimeout = 10 * time.Second, 10 * time.Second

// travels is a Server's part in that.
type travels struct {
	base      engine.Counts            // of processes before; guarded by Server.mu, as the others
	listeners []upgrade.ListenerCounts // of them
	told      engine.Counts            // what the new process was told
	onward    *publish.Link            // to the new process; nil if there is none
	links     map[*publish.Link]bool   // those that are read
	ended     bool                     // there are to be no more
	reading   sync.WaitGroup
	released  sync.Once     // broadcasts, after a predecessor
	here      chan struct{} // closed when a predecessor has handed everything over; nil without
	caughtUp  chan struct{} // closed when what was held until then has been run; nil without
}

// departure is the old process's side of one upgrade.
type departure struct {
	s             *Server
	state, theirs *os.File // nil if there is none
	link          *publish.Link
	released      sync.Once
	late          *time.Timer // releases after holdTimeout
}

// awaitArrival waits until this server's own predecessor is done with it, if there was one.
func (s *Server) awaitArrival(ctx context.Context) error {
	if s.here == nil {
		return nil
	}
	for _, done := range []chan struct{}{s.here, s.caughtUp} {
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("the upgrade before has not ended: %w", context.Cause(ctx))
		}
	}
	return nil
}

// depart holds broadcasts, and saves the state.
func (s *Server) depart(ctx context.Context) (d *departure, err error) {
	d = &departure{s: s}
	waiting, cancel := context.WithTimeout(ctx, broadcastTimeout)
	defer cancel()
	if err = s.broadcasts.Load().Hold(waiting); err != nil {
		d.end(false)
		return nil, fmt.Errorf("broadcasts in progress do not end: %w", err)
	}
	if d.state, err = s.saveState(); err != nil {
		s.log().Error("the handler's state is lost", "error", err)
	}
	pair, err := upgrade.LinkPair()
	if err == nil {
		d.theirs = pair[1]
		d.link, err = publish.NewLink(pair[0], s.maxHeld(), false)
		_ = pair[0].Close()
	}
	if err != nil {
		d.end(false)
		return nil, err
	}
	return d, nil
}

// begin is called when the new process takes connections.
func (d *departure) begin() {
	d.late = time.AfterFunc(holdTimeout, func() { d.release(d.link) })
}

// release lets broadcasts go on.
func (d *departure) release(to *publish.Link) {
	d.released.Do(func() {
		if to != nil && !d.s.addLink(to, true) {
			to = nil
		}
		ctx, cancel := context.WithTimeout(context.Background(), broadcastTimeout)
		defer cancel()
		d.s.broadcasts.Load().Release(ctx, to)
	})
}

// end ends it: the connections have moved, or all goes on here.
func (d *departure) end(moved bool) {
	if d.late != nil {
		d.late.Stop()
	}
	if moved {
		d.release(d.link)
	} else {
		d.release(nil)
		if d.link != nil {
			d.link.Abort()
			d.link.Close()
		}
	}
	for _, f := range []*os.File{d.state, d.theirs} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// done is what the new process is told.
func (d *departure) done() (done upgrade.Done) {
	s := d.s
	for _, l := range s.ListenerStats() {
		done.Listeners = append(done.Listeners, upgrade.ListenerCounts{Accepted: l.Accepted, Refused: l.Refused})
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, at := range s.engine.ListenerStats() {
		done.Listeners[i].Network, done.Listeners[i].Addr = at.Addr.Network(), listenerKey(&s.where[i], at.Addr)
	}
	s.told = s.engine.Counters()
	s.told.Add(&s.base)
	done.Counters = s.told.ByName()
	return done
}

// addBase has counters begin where the old process's were.
func (s *Server) addBase(counters map[string]int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.base.AddByName(counters)
}

// baseOf is what processes before have counted of a listener.
func (s *Server) baseOf(l *Listener, at net.Addr) upgrade.ListenerCounts {
	for _, base := range s.listeners {
		if base.Network == at.Network() && base.Addr == listenerKey(l, at) {
			return base
		}
	}
	return upgrade.ListenerCounts{}
}

// awaitDone takes what the old process has counted, when it has handed everything over.
func (s *Server) awaitDone(p *upgrade.Predecessor) {
	d, err := p.Wait()
	if err != nil {
		return // it has gone, or this server has ended
	}
	s.addBase(d.Counters)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listeners = d.Listeners
}

// arrive takes what comes before the first connection.
func (s *Server) arrive(state, socket *os.File) {
	if state != nil {
		if err := s.restoreState(state); err != nil {
			s.log().Error("the handler's state is lost", "error", err)
		}
	}
	if socket == nil {
		return
	}
	l, err := publish.NewLink(socket, s.maxHeld(), true)
	if err != nil {
		s.log().Error("broadcasts of the old process do not come here", "error", err)
		return
	}
	s.addLink(l, false)
}

// arrived ends the taking over.
func (s *Server) arrived() {
	s.mu.Lock()
	linked := len(s.links) > 0
	s.mu.Unlock()
	if !linked { // otherwise the link says when
		s.release(nil)
	}
	close(s.here)
}

// release runs what was held here until what was held in the old process has come.
func (s *Server) release(to *publish.Link) {
	s.released.Do(func() {
		defer close(s.caughtUp)
		ctx, cancel := context.WithTimeout(context.Background(), broadcastTimeout)
		defer cancel()
		s.broadcasts.Load().Release(ctx, to)
	})
}

// addLink reads what comes by a link, to a successor or from a predecessor, until it ends.
func (s *Server) addLink(l *publish.Link, successor bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		l.Abort()
		return false
	}
	if s.links == nil {
		s.links = make(map[*publish.Link]bool)
	}
	s.links[l] = true
	if successor {
		s.onward = l
	}
	s.reading.Go(func() { s.readLink(l, successor) })
	return true
}

func (s *Server) readLink(l *publish.Link, successor bool) {
	g, ahead := s.broadcasts.Load(), !successor
	err := l.Receive(publish.Receiver{
		Message: func(m publish.Broadcast) {
			if ahead {
				g.RunNow(m)
			} else {
				g.Forwarded(m, l)
			}
		},
		Released: func() {
			if ahead {
				ahead = false
				s.release(l)
			}
		},
		Counters: func(p []byte) {
			var counters map[string]int64
			if json.Unmarshal(p, &counters) == nil {
				s.addBase(counters)
			}
		},
	})
	if err != nil {
		s.log().Error("broadcasts of the other process do not come here any more", "error", err)
	}
	if !successor {
		s.release(nil) // it has died before
	}
	g.Unlink(l)
	l.Close()
	s.mu.Lock()
	delete(s.links, l)
	s.mu.Unlock()
}

// endLinks ends all links, when the engine has ended.
func (s *Server) endLinks() {
	s.mu.Lock()
	s.ended = true
	if s.onward != nil {
		since := s.engine.Counters()
		since.Add(&s.base)
		for i := range since {
			since[i] -= s.told[i]
		}
		p, _ := json.Marshal(since.ByName()) // numbers by name can be written
		s.onward.SendCounters(p)
	}
	var all []*publish.Link
	for l := range s.links {
		all = append(all, l)
	}
	s.mu.Unlock()
	for _, l := range all {
		l.Close()
	}
	s.reading.Wait()
}

// saveState has the handler write its state into a file in memory; nil if it has none.
func (s *Server) saveState() (f *os.File, err error) {
	h, ok := extension[StateMigrator](s.Handler)
	if !ok || s.preforks() {
		return nil, nil
	}
	if f, err = upgrade.StateFile(); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = f.Close()
			f = nil
		}
	}()
	out := bufio.NewWriterSize(&boundedWriter{f, maxSavedState}, 1<<16)
	if err = contained(func() error { return h.SaveState(out) }); err == nil {
		err = out.Flush()
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	return f, err
}

func (s *Server) restoreState(f *os.File) error {
	h, ok := extension[StateMigrator](s.Handler)
	if !ok || s.preforks() {
		return errors.New("there is no StateMigrator in this process")
	}
	return contained(func() error { return h.RestoreState(bufio.NewReaderSize(f, 1<<16)) })
}

// contained makes an error of a panic.
func contained(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return f()
}

// boundedWriter writes so many bytes at most.
type boundedWriter struct {
	w    io.Writer
	left int
}

func (b *boundedWriter) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, fmt.Errorf("the state has more than %d bytes", maxSavedState)
	}
	b.left -= len(p)
	return b.w.Write(p)
}
