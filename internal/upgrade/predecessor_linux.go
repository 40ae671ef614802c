package upgrade

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/sock"
)

// Predecessor is the new process's view of the old process, which it replaces.
type Predecessor struct {
	controlSocket
	Listeners      []Inherited
	Paused         bool
	activatedNames []string   // of the service manager's sockets
	activatedFiles []*os.File // the sockets
	version        int
	WorkerTickets  []secure.TicketKey // see Hello
}

// Inherited is a listener that the old process has passed to this process.
type Inherited struct {
	Listener
	Sockets []net.Listener
}

var claimed atomic.Bool

// ClaimPredecessorOrNil returns the process that this process replaces, or nil if it replaces none. Further calls
// return nil.
func ClaimPredecessorOrNil() (*Predecessor, error) {
	p, err := connectPredecessor()
	if p == nil && err == nil || !claimed.CompareAndSwap(false, true) {
		return nil, nil
	}
	return p, err
}

var connectPredecessor = sync.OnceValues(func() (*Predecessor, error) {
	number := os.Getenv(upgradeEnv)
	if number == "" {
		return nil, nil
	}
	_ = os.Unsetenv(upgradeEnv) // cannot fail for a valid name; children must not inherit it
	p := new(Predecessor)
	fd, err := strconv.Atoi(number)
	if err == nil {
		p.controlSocket, err = inheritControlSocket(fd, "upgrade")
	}
	if err != nil {
		return nil, fmt.Errorf("%s is %.20q; expected the number of a descriptor: %w", upgradeEnv, number, err)
	}
	if err := p.receiveHelloAndListeners(); err != nil {
		p.file.Close()
		return nil, fmt.Errorf("the old process: %w", err)
	}
	return p, nil
})

func (p *Predecessor) receiveHelloAndListeners() error {
	var h Hello
	if _, err := p.readExpectedMessage(context.Background(), kindHello, &h, Timeout); err != nil {
		return err
	}
	p.version, p.Paused, p.WorkerTickets = h.Version, h.Paused, h.WorkerTickets
	if h.Version != Version {
		err := fmt.Errorf("the old process uses version %d of the upgrade protocol, the new one version %d; restart the server instead of upgrading it", h.Version, Version)
		_ = p.ReportFailure(err)
		return err
	}
	files, err := p.readExpectedMessage(context.Background(), kindListeners, new(struct{}), Timeout)
	if err != nil {
		return err
	}
	defer closeFiles(files)
	at := 0
	for _, l := range h.Listeners {
		in := Inherited{Listener: l}
		if l.Sockets < 0 || at+l.Sockets > len(files) {
			return errors.New("received fewer listeners than announced")
		}
		for _, f := range files[at : at+l.Sockets] {
			s, err := net.FileListener(f)
			if err != nil {
				return err
			}
			if u, ok := s.(*net.UnixListener); ok {
				u.SetUnlinkOnClose(false)
			}
			in.Sockets = append(in.Sockets, s)
		}
		at += l.Sockets
		p.Listeners = append(p.Listeners, in)
	}
	if len(h.Activated) > len(files)-at {
		return errors.New("received fewer sockets of the service manager than announced")
	}
	p.activatedNames = h.Activated
	for i := range p.activatedNames {
		p.activatedFiles = append(p.activatedFiles, files[at+i])
		files[at+i] = nil
	}
	if at += len(p.activatedNames); h.Kept && at < len(files) {
		ownStatusPipe.Store(&statusPipe{write: files[at]})
		files[at] = nil
	}
	return nil
}

// PredecessorActivationSockets returns the sockets that the service manager has opened and the old process has passed
// on, and the names of the sockets. It may be called only once. The caller must close the sockets.
func PredecessorActivationSockets() (names []string, files []*os.File, err error) {
	p, err := connectPredecessor()
	if p == nil {
		return nil, nil, err
	}
	return p.activatedNames, p.activatedFiles, nil
}

// WaitStartedOrAborted waits until the channel started is closed. If the old process aborts the upgrade before that, it
// returns an error.
func (p *Predecessor) WaitStartedOrAborted(started <-chan struct{}) error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-started:
			_ = p.file.SetReadDeadline(time.Unix(1, 0)) // fails if it is closed, which also ends the wait
		case <-over:
		}
	})
	spoke := raw.Read(func(fd uintptr) bool {
		_, _, err = unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return err != unix.EAGAIN
	}) == nil
	close(over)
	watching.Wait()
	_ = p.file.SetReadDeadline(time.Time{})
	if spoke {
		word, _, _, err := p.readMessage()
		if err == nil && word == kindAbort {
			return errAborted
		}
		<-started // the old process has exited
	}
	return nil
}

// AnnounceReadyAndTakeOver takes over from the old process. It first tells the old process that this process can serve
// with the given number of loops. The old process replies with channels and, optionally, with a state file and a
// broadcast socket. AnnounceReadyAndTakeOver calls restoreState with the two files, of which each may be nil, and
// closes the files afterwards. It then calls takeOver with the channels.
//
// If the old process aborts the upgrade and continues to serve, the result is an error. If the old process exits,
// AnnounceReadyAndTakeOver returns nil, because this process must serve.
func (p *Predecessor) AnnounceReadyAndTakeOver(loops int, restoreState func(state, broadcastSocket *os.File), takeOver func(channels []*os.File) error) error {
	if err := p.sendMessage(kindReady, Ready{Version: Version, Loops: loops}); err != nil {
		return p.reportServingIfPredecessorExited(err)
	}
	var c Channels
	files, err := p.readExpectedMessage(context.Background(), kindChannels, &c, Timeout)
	if err != nil {
		return p.reportServingIfPredecessorExited(err)
	}
	if c.N < 0 || c.N > len(files) {
		closeFiles(files)
		return fmt.Errorf("received %d descriptors for %d channels; expected at least one for each channel", len(files), c.N)
	}
	files, more := files[:c.N], files[c.N:]
	defer closeFiles(more)
	at := 0
	next := func(comes bool) (f *os.File) {
		if comes && at < len(more) {
			f = more[at]
			at++
		}
		return f
	}
	restoreState(next(c.State), next(c.Link))
	if err := takeOver(files); err != nil {
		return err
	}
	ReportOwnPIDServing()
	return p.reportServingIfPredecessorExited(p.sendMessage(kindTaking, struct{}{}))
}

// ReportFailure tells the old process why this process cannot serve, and closes the connection.
func (p *Predecessor) ReportFailure(cause error) error {
	defer p.file.Close()
	return p.sendMessage(kindReady, Ready{Version: Version, Failed: cause.Error()})
}

// IsAborted reports whether err means that the old process continues to serve and this process must exit.
func IsAborted(err error) bool { return errors.Is(err, errAborted) }

// reportServingIfPredecessorExited is called with the result of sending or receiving a message. If err means that the
// old process has exited, it reports to the first process that this process serves, and returns nil. Otherwise, it
// returns err.
func (p *Predecessor) reportServingIfPredecessorExited(err error) (otherErr error) {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		ReportOwnPIDServing()
		return nil
	}
	return err
}

// AnswerProbesUntilDone replies to the liveness checks of the old process until the old process has handed
// over everything. It then returns the last message of the old process. If the old process exits earlier, it fails.
func (p *Predecessor) AnswerProbesUntilDone() (d Done, err error) {
	for {
		word, rest, fds, err := p.readMessage()
		sock.Close(fds...)
		switch {
		case err != nil:
			return d, err
		case word == kindDone:
			return d, json.Unmarshal(rest, &d)
		case word != kindAlive:
			return d, fmt.Errorf("received message %.20q; expected %q", word, kindDone)
		}
		if err := p.sendMessage(kindAlive, struct{}{}); err != nil {
			return d, err
		}
	}
}

// Close closes the connection to the old process. Other methods that wait for the old process then return.
func (p *Predecessor) Close() { _ = p.file.Close() }
