package faults

import (
	"cmp"
	"errors"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/sock"
)

const stepInterval = 5 * time.Millisecond

const neverReadBuffer = 80 << 10 // with less, the kernel drops even acknowledgements

// fullSpeedSendBuffer is the send buffer of FullSpeed connections with a Stream.
const fullSpeedSendBuffer = 32 << 10 // small, because net.ipv4.tcp_mem limits all connections together

// eventBatch is the number of FullSpeed connections that act between two checks of the clock.
const eventBatch = 64

type swarmConn struct {
	fd        int32 // 0 if there is none (descriptor 0 is standard input)
	sent      int32 // position in First and Stream together
	acts      int32
	inFlight  int32 // bytes sent minus bytes received
	connected bool
	answered  bool
	retired   bool // must not be redialled
	inputOnly bool // watched for input only, because it has nothing to send
}

type swarmLoop struct {
	*Swarm
	conns         []swarmConn
	started       time.Time
	firstDials    int        // number of connections that have been dialled once
	scheduledActs int        // number of scheduled acts of all connections
	poll          *sock.Poll // for FullSpeed, otherwise nil
	scratch       [64 << 10]byte
}

func (s *Swarm) startLoop() error {
	w := &swarmLoop{Swarm: s, conns: make([]swarmConn, s.Conns), started: time.Now()}
	if s.FullSpeed {
		var err error
		if w.poll, err = sock.NewEpoll(eventBatch); err != nil {
			return err
		}
	}
	if !s.OwnTable {
		s.ended.Go(w.runUntilStopped)
		return nil
	}
	started := make(chan error)
	s.ended.Go(func() {
		sock.RunOnNewThread(func() {
			unregister, err := sock.UnshareDescriptorTable(nil)
			if started <- err; err == nil {
				defer unregister()
				w.runUntilStopped()
			}
		})
	})
	return <-started
}

func (w *swarmLoop) runUntilStopped() {
	tick := time.NewTicker(stepInterval)
	defer tick.Stop()
	for {
		w.actOnSchedule(time.Since(w.started))
		if w.poll != nil {
			w.actOnEvents()
		}
		select {
		case <-w.stop:
			for i := range w.conns {
				w.closeDeliberately(&w.conns[i])
			}
			if w.poll != nil {
				w.poll.Close()
			}
			return
		case <-tick.C:
		}
	}
}

func (w *swarmLoop) actOnEvents() {
	for end := time.Now().Add(stepInterval); ; runtime.Gosched() {
		rest := time.Until(end)
		if rest <= 0 {
			return
		}
		for i := range w.poll.Wait(rest) {
			token, _ := w.poll.Event(i)
			w.actOnce(int(token))
		}
	}
}

// watchConn registers a FullSpeed connection for input and, if it has something to send, for output. The function
// change performs the registration. If it fails, watchConn closes the connection.
func (w *swarmLoop) watchConn(i int, change func(fd, token int32, events uint32) syscall.Errno) {
	m, events := &w.conns[i], sock.Out
	if m.inputOnly = len(w.nextOutput(m)) == 0; m.inputOnly {
		events = 0
	}
	if !w.NeverReads {
		events |= sock.In
	}
	if change(m.fd, int32(i), events) != 0 {
		w.closeLost(m)
	}
}

func (w *swarmLoop) actOnSchedule(elapsed time.Duration) {
	due := len(w.conns)
	if !w.ConnectAtOnce {
		due = min(due, int(elapsed.Seconds()*connectRate)+1)
	}
	for ; w.firstDials < due; w.firstDials++ {
		w.actOnce(w.firstDials)
	}
	// Acts that are late by more than a round are skipped.
	visits := int(elapsed.Seconds() / w.Interval.Seconds() * float64(len(w.conns)))
	w.scheduledActs = max(w.scheduledActs, visits-len(w.conns))
	for ; w.scheduledActs < visits; w.scheduledActs++ {
		if i := w.scheduledActs % len(w.conns); i < w.firstDials {
			w.actOnce(i)
		}
		if w.scheduledActs%256 == 0 {
			runtime.Gosched() // the calls below do not inform the scheduler
		}
	}
}

func (w *swarmLoop) actOnce(i int) {
	m := &w.conns[i]
	if m.fd == 0 && !w.dialConn(i) {
		return
	}
	if !m.connected {
		if _, err := unix.Getpeername(int(m.fd)); err == nil {
			m.connected = true
			w.addCount(&w.counts.Connected, 1)
		}
	}
	if !w.sendNext(m) || !w.NeverReads && !w.receiveInput(m) {
		return
	}
	if m.connected {
		m.acts++
	}
	if w.MaxActs > 0 && int(m.acts) >= w.MaxActs {
		w.closeDeliberately(m)
	} else if w.poll != nil && m.inputOnly != (len(w.nextOutput(m)) == 0) {
		w.watchConn(i, w.poll.Modify)
	}
}

// dialConn starts to connect unless MaxDials is used up or the connection is retired. It reports whether the connection
// now has a socket, which may still be connecting.
func (w *swarmLoop) dialConn(i int) bool {
	m := &w.conns[i]
	if m.retired || w.counts.Dials >= w.MaxDials {
		return false
	}
	w.addCount(&w.counts.Dials, 1)
	fd, err := w.startConnect()
	if err != nil {
		w.addCount(&w.counts.Failed, 1)
		m.retired = !w.Redial
		return false
	}
	*m = swarmConn{fd: fd}
	w.addCount(&w.counts.Open, 1)
	if w.poll != nil {
		w.watchConn(i, w.poll.Add)
	}
	return m.fd != 0
}

func (w *swarmLoop) startConnect() (int32, error) {
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
	if w.FullSpeed && len(w.Stream) > 0 || w.SocketBuffers > 0 {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, cmp.Or(w.SocketBuffers, fullSpeedSendBuffer))
	}
	if err == nil && (w.NeverReads || w.SocketBuffers > 0) {
		err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, cmp.Or(w.SocketBuffers, neverReadBuffer))
	}
	if err == nil && w.Source.IsValid() {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1),
			unix.Bind(fd, &unix.SockaddrInet4{Addr: w.Source.As4()}))
	}
	if err == nil {
		err = sock.SetResetOnClose(int32(fd)) // leaves no TIME_WAIT
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

// sendNext sends what the kernel accepts, and reports whether the connection is still open.
func (w *swarmLoop) sendNext(m *swarmConn) bool {
	next := w.nextOutput(m)
	if len(next) == 0 {
		return true
	}
	n, errno := sock.Send(m.fd, next)
	switch errno {
	case 0:
		w.addCount(&w.counts.Sent, n)
		m.sent += int32(n)
		m.inFlight += int32(n)
		if all := len(w.First) + len(w.Stream); int(m.sent) >= all && len(w.Stream) > 0 {
			m.sent = int32(len(w.First))
		}
		return true
	case unix.EAGAIN:
		return true
	}
	w.closeLost(m)
	return false
}

func (w *swarmLoop) nextOutput(m *swarmConn) []byte {
	at := int(m.sent)
	if at < len(w.First) {
		return w.First[at:]
	}
	if at -= len(w.First); at >= len(w.Stream) {
		return nil
	}
	next := w.Stream[at:]
	if w.PieceSize > 0 {
		next = next[:min(w.PieceSize, len(next))]
	}
	if w.MaxInFlight > 0 {
		next = next[:min(max(w.MaxInFlight-int(m.inFlight), 0), len(next))]
	}
	return next
}

// receiveInput reads what has arrived, and reports whether the connection is still open.
func (w *swarmLoop) receiveInput(m *swarmConn) bool {
	n, errno := sock.Recv(m.fd, w.scratch[:])
	switch {
	case errno == unix.EAGAIN:
		return true
	case errno != 0 || n == 0:
		w.closeLost(m)
		return false
	}
	w.addCount(&w.counts.Received, n)
	m.inFlight -= int32(n)
	if !m.answered {
		m.answered = true
		w.addCount(&w.counts.Answered, 1)
	}
	return true
}

// closeLost closes a failed connection, and counts it as Lost if it was established, otherwise as Failed.
func (w *swarmLoop) closeLost(m *swarmConn) {
	if m.connected {
		w.addCount(&w.counts.Lost, 1)
	} else {
		w.addCount(&w.counts.Failed, 1)
	}
	w.closeConn(m)
}

func (w *swarmLoop) closeDeliberately(m *swarmConn) {
	if m.fd != 0 {
		w.addCount(&w.counts.Closed, 1)
		w.closeConn(m)
	}
}

func (w *swarmLoop) closeConn(m *swarmConn) {
	sock.Close(m.fd)
	w.addCount(&w.counts.Open, -1)
	*m = swarmConn{retired: !w.Redial}
}
