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

	"github.com/myriad-go/myriad/internal/sock"
)

// Predecessor is the old process, for the new one.
type Predecessor struct {
	control
	Listeners []Inherited
	Paused    bool
	names     []string   // of the service manager's sockets
	activated []*os.File // they
	// version is what the old process speaks.
	version int
}

// Inherited is a listener of the old process.
type Inherited struct {
	Listener
	Sockets []net.Listener
}

// taken is whether a server has taken the place of the old process.
var taken atomic.Bool

// Take gives the process that this one is to take the place of, nil if there is none, or
// another server of this process has taken it.
func Take() (*Predecessor, error) {
	p, err := predecessor()
	if p == nil && err == nil || !taken.CompareAndSwap(false, true) {
		return nil, nil
	}
	return p, err
}

var predecessor = sync.OnceValues(func() (*Predecessor, error) {
	number := os.Getenv(variable)
	if number == "" {
		return nil, nil
	}
	_ = os.Unsetenv(variable) // a valid name does not fail; it is not for the children of this process
	p := new(Predecessor)
	fd, err := strconv.Atoi(number)
	if err == nil {
		p.control, err = inherit(fd, "upgrade")
	}
	if err != nil {
		return nil, fmt.Errorf("%s is %.20q; expected the number of a descriptor: %w", variable, number, err)
	}
	if err := p.greet(); err != nil {
		p.file.Close()
		return nil, fmt.Errorf("the old process: %w", err)
	}
	return p, nil
})

// greet takes the listeners.
func (p *Predecessor) greet() error {
	var h Hello
	if _, err := p.expect(context.Background(), hello, &h, Timeout); err != nil {
		return err
	}
	p.version, p.Paused = h.Version, h.Paused
	if h.Version != Version {
		err := fmt.Errorf("it speaks version %d of the protocol; expected %d", h.Version, Version)
		_ = p.Fail(err)
		return err
	}
	files, err := p.expect(context.Background(), sockets, new(struct{}), Timeout)
	if err != nil {
		return err
	}
	defer closeAll(files)
	at := 0
	for _, l := range h.Listeners {
		in := Inherited{Listener: l}
		if l.Sockets < 0 || at+l.Sockets > len(files) {
			return errors.New("it sends fewer listeners than it says")
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
		return errors.New("it sends fewer of the service manager's sockets than it says")
	}
	p.names = h.Activated
	for i := range p.names {
		p.activated = append(p.activated, files[at+i])
		files[at+i] = nil
	}
	if at += len(p.names); h.Kept && at < len(files) {
		own.Store(&line{write: files[at]})
		files[at] = nil
	}
	return nil
}

// Activated gives the sockets that the service manager had passed to the old process, with their
// names; none where there is no old process. They are the caller's, who calls it once.
func Activated() (names []string, files []*os.File, err error) {
	p, err := predecessor()
	if p == nil {
		return nil, nil, err
	}
	return p.names, p.activated, nil
}

// Starting waits for started. It fails where the old process says meanwhile that it goes on.
func (p *Predecessor) Starting(started <-chan struct{}) error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	over := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-started:
			_ = p.file.SetReadDeadline(time.Unix(1, 0)) // fails when it is closed, which ends the wait, too
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
		word, _, _, err := p.read()
		if err == nil && word == abort {
			return errAborted
		}
		<-started // the old process has gone
	}
	return nil
}

// Ready says that this process serves, with so many loops. It gives begin the state and the link
// that the old process then sends, each nil if there is none, and closed after the call, and takes
// over what comes by the channels. It fails where the old process goes on.
func (p *Predecessor) Ready(loops int, begin func(state, link *os.File), takeOver func(channels []*os.File) error) error {
	if err := p.send(ready, Ready{Version: Version, Loops: loops}); err != nil {
		return p.gone(err)
	}
	var c Channels
	files, err := p.expect(context.Background(), channels, &c, Timeout)
	if err != nil {
		return p.gone(err)
	}
	if c.N < 0 || c.N > len(files) {
		closeAll(files)
		return fmt.Errorf("%d descriptors of %d channels", len(files), c.N)
	}
	files, more := files[:c.N], files[c.N:]
	defer closeAll(more)
	at := 0
	next := func(comes bool) (f *os.File) {
		if comes && at < len(more) {
			f = more[at]
			at++
		}
		return f
	}
	begin(next(c.State), next(c.Link))
	if err := takeOver(files); err != nil {
		return err
	}
	Serves()
	return p.gone(p.send(taking, struct{}{}))
}

// Fail says why this process can't serve.
func (p *Predecessor) Fail(why error) error {
	defer p.file.Close()
	return p.send(ready, Ready{Version: Version, Failed: why.Error()})
}

// Aborted says whether an error of Ready means that the old process goes on, and this one is
// to end.
func Aborted(err error) bool { return errors.Is(err, errAborted) }

// gone makes no error of the end of the old process: this one goes on with what it has.
func (p *Predecessor) gone(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		Serves()
		return nil
	}
	return err
}

// Wait waits until the old process has handed everything over, and answers meanwhile that this one
// is alive. It fails if the old one has gone.
func (p *Predecessor) Wait() (d Done, err error) {
	for {
		word, rest, fds, err := p.read()
		sock.Close(fds...)
		switch {
		case err != nil:
			return d, err
		case word == done:
			return d, json.Unmarshal(rest, &d)
		case word != alive:
			return d, fmt.Errorf("got %.20q; expected %q", word, done)
		}
		if err := p.send(alive, struct{}{}); err != nil {
			return d, err
		}
	}
}

// Close ends Wait and Ready.
func (p *Predecessor) Close() { _ = p.file.Close() }
