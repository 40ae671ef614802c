package faults

import (
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
)

// walkStep is the time between two slices of a walk over all connections.
const walkStep = 5 * time.Millisecond

// deafBuffer is the receive buffer of those that never read. It takes one packet
// of loopback's size: with less the kernel throws packets away that it had told
// it would take, and with them it throws away acknowledgements, so that the
// connection is stuck in both directions.
const deafBuffer = 80 << 10

// sendBuffer is the send buffer of greedy ones that do not end. The kernel has a bound of the memory of all
// TCP connections (net.ipv4.tcp_mem), beyond which it resets those of others.
const sendBuffer = 32 << 10

// greedyBatch is how many greedy connections act between two looks at the clock.
const greedyBatch = 64

// member is one connection of a swarm.
type member struct {
	fd        int32 // 0 while there is none: that number is the standard input's
	at        int32 // bytes of First and Stream sent
	acts      int32
	ahead     int32 // bytes sent that have not come back, if there is a bound
	connected bool
	answered  bool
	gone      bool // and not to be made again
	quiet     bool // it is watched for input only, as it may send nothing
}

// walker is the goroutine of a swarm and all that it owns.
type walker struct {
	*Swarm
	members []member
	begun   time.Time
	dialled int        // members that have been dialled the first time
	visited int        // visits to all members together
	poll    *sock.Poll // of those that are greedy, or nil
	scratch [64 << 10]byte
}

func (s *Swarm) start() error {
	w := &walker{Swarm: s, members: make([]member, s.Conns), begun: time.Now()}
	if s.Greedy {
		var err error
		if w.poll, err = sock.NewPoll(greedyBatch); err != nil {
			return err
		}
	}
	s.ended.Go(w.walk)
	return nil
}

// walk goes on until the swarm is stopped.
func (w *walker) walk() {
	tick := time.NewTicker(walkStep)
	defer tick.Stop()
	for {
		w.step(time.Since(w.begun))
		if w.poll != nil {
			w.rush()
		}
		select {
		case <-w.stop:
			for i := range w.members {
				w.leave(&w.members[i])
			}
			if w.poll != nil {
				w.poll.Close()
			}
			return
		case <-tick.C:
		}
	}
}

// rush has greedy connections act until the next step.
func (w *walker) rush() {
	for end := time.Now().Add(walkStep); ; runtime.Gosched() {
		rest := time.Until(end)
		if rest <= 0 {
			return
		}
		for i := range w.poll.Wait(rest) {
			token, _ := w.poll.Event(i)
			w.visit(int(token))
		}
	}
}

// watch has the kernel say when a greedy connection can act: always when it can
// read, and when it can send unless it has nothing to send or is too far ahead.
func (w *walker) watch(i int, change func(fd, token int32, events uint32) syscall.Errno) {
	m, events := &w.members[i], sock.Out
	if m.quiet = len(w.next(m)) == 0; m.quiet {
		events = 0
	}
	if !w.Deaf {
		events |= sock.In
	}
	if change(m.fd, int32(i), events) != 0 {
		w.lose(m)
	}
}

// step does what is due when so much time has passed since the beginning.
func (w *walker) step(passed time.Duration) {
	due := len(w.members)
	if !w.AtOnce {
		due = min(due, int(passed.Seconds()*connectRate)+1)
	}
	for ; w.dialled < due; w.dialled++ {
		w.visit(w.dialled)
	}
	// Visits that are late by more than a round are left out.
	visits := int(passed.Seconds() / w.Every.Seconds() * float64(len(w.members)))
	w.visited = max(w.visited, visits-len(w.members))
	for ; w.visited < visits; w.visited++ {
		if i := w.visited % len(w.members); i < w.dialled {
			w.visit(i)
		}
		if w.visited%256 == 0 {
			runtime.Gosched() // the calls below do not tell the scheduler
		}
	}
}

// visit is one act of a connection.
func (w *walker) visit(i int) {
	m := &w.members[i]
	if m.fd == 0 && !w.dial(i) {
		return
	}
	if !m.connected {
		if _, err := unix.Getpeername(int(m.fd)); err == nil {
			m.connected = true
			w.add(&w.counts.Connected, 1)
		}
	}
	if !w.send(m) || !w.Deaf && !w.receive(m) {
		return
	}
	if m.connected {
		m.acts++
	}
	if w.Acts > 0 && int(m.acts) >= w.Acts {
		w.leave(m)
	} else if w.poll != nil && m.quiet != (len(w.next(m)) == 0) {
		w.watch(i, w.poll.Modify)
	}
}

// dial makes the connection, if it is to be made.
func (w *walker) dial(i int) bool {
	m := &w.members[i]
	if m.gone || w.counts.Made >= w.Most {
		return false
	}
	w.add(&w.counts.Made, 1)
	fd, err := w.connect()
	if err != nil {
		w.add(&w.counts.Failed, 1)
		m.gone = !w.Redial
		return false
	}
	*m = member{fd: fd}
	w.add(&w.counts.Open, 1)
	if w.poll != nil {
		w.watch(i, w.poll.Add)
	}
	return m.fd != 0
}

// connect starts to connect a socket of the swarm's kind.
func (w *walker) connect() (int32, error) {
	family, to := unix.AF_INET, unix.Sockaddr(nil)
	if ip := w.Target.Addr().Unmap(); ip.Is4() {
		to = &unix.SockaddrInet4{Addr: ip.As4(), Port: int(w.Target.Port())}
	} else {
		family, to = unix.AF_INET6, &unix.SockaddrInet6{Addr: ip.As16(), Port: int(w.Target.Port())}
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if w.Greedy && len(w.Stream) > 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
	}
	if err == nil && w.Deaf {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, deafBuffer)
	}
	if err == nil {
		err = sock.SetResetOnClose(int32(fd)) // which leaves no TIME_WAIT behind
	}
	if err == nil {
		err = unix.Connect(fd, to)
	}
	if err != nil && err != unix.EINPROGRESS {
		unix.Close(fd)
		return 0, err
	}
	return int32(fd), nil
}

// send sends what is next, as far as the kernel takes it, and says whether the
// connection lives on.
func (w *walker) send(m *member) bool {
	next := w.next(m)
	if len(next) == 0 {
		return true
	}
	n, errno := sock.Send(m.fd, next)
	switch errno {
	case 0:
		w.add(&w.counts.Sent, n)
		m.at += int32(n)
		m.ahead += int32(n)
		if all := len(w.First) + len(w.Stream); int(m.at) >= all && len(w.Stream) > 0 {
			m.at = int32(len(w.First))
		}
		return true
	case unix.EAGAIN:
		return true
	}
	w.lose(m)
	return false
}

// next is what a connection sends in its next act.
func (w *walker) next(m *member) []byte {
	at := int(m.at)
	if at < len(w.First) {
		return w.First[at:]
	}
	if at -= len(w.First); at >= len(w.Stream) {
		return nil
	}
	next := w.Stream[at:]
	if w.Piece > 0 {
		next = next[:min(w.Piece, len(next))]
	}
	if w.Ahead > 0 {
		next = next[:min(max(w.Ahead-int(m.ahead), 0), len(next))]
	}
	return next
}

// receive reads what is there, and says whether the connection lives on.
func (w *walker) receive(m *member) bool {
	n, errno := sock.Recv(m.fd, w.scratch[:])
	switch {
	case errno == unix.EAGAIN:
		return true
	case errno != 0 || n == 0:
		w.lose(m)
		return false
	}
	w.add(&w.counts.Received, n)
	m.ahead -= int32(n)
	if !m.answered {
		m.answered = true
		w.add(&w.counts.Answered, 1)
	}
	return true
}

// lose counts a connection that was ended or never established.
func (w *walker) lose(m *member) {
	if m.connected {
		w.add(&w.counts.Lost, 1)
	} else {
		w.add(&w.counts.Failed, 1)
	}
	w.close(m)
}

// leave ends a connection, if there is one.
func (w *walker) leave(m *member) {
	if m.fd != 0 {
		w.add(&w.counts.Left, 1)
		w.close(m)
	}
}

func (w *walker) close(m *member) {
	sock.Close(m.fd)
	w.add(&w.counts.Open, -1)
	*m = member{gone: !w.Redial}
}
