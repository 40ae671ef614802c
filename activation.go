package myriad

import (
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/myriad-go/myriad/internal/activation"
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// NamedListener is a listener with the name that a service manager has for it.
type NamedListener = activation.Named

// ActivatedListeners are the listeners that a service manager such as systemd has
// opened for this process (LISTEN_FDS, sd_listen_fds(3)), for Serve; nil if there
// are none. Further calls give the same ones. It is to be called before anything
// that starts processes, because it takes the variables out of the environment.
func ActivatedListeners() ([]NamedListener, error) {
	l, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("myriad: %w", err)
	}
	return l, nil
}

// Notify tells the service manager a state (sd_notify(3)), such as "READY=1" in
// Server.Listening and "STOPPING=1" in Server.Stopping, if the program ends with the
// server. sent is false where nobody wants to know.
func Notify(state string) (sent bool, err error) {
	if sent, err = activation.Notify(state); err != nil {
		return sent, fmt.Errorf("myriad: %w", err)
	}
	return sent, nil
}

// listenUnix listens on a unix socket; done removes its file, unless another one is
// in its place by then, such as that of a successor that listens there while our
// last connections drain.
func (s *Server) listenUnix() (l *net.UnixListener, done func(), err error) {
	if s.Processes > 1 {
		return nil, nil, badConfig("Server.Network is unix and Processes %d; expected 0 or 1: worker processes can't share a unix socket", s.Processes)
	}
	if l, err = sock.ListenUnix(s.Addr); err != nil {
		return nil, nil, fmt.Errorf("myriad: %w", err)
	}
	l.SetUnlinkOnClose(false) // the engine goes on with descriptors of its own
	if strings.HasPrefix(s.Addr, "@") {
		return l, func() {}, nil
	}
	ours, err := os.Lstat(s.Addr)
	if err != nil {
		l.Close()
		return nil, nil, fmt.Errorf("myriad: the socket that was just made: %w", err)
	}
	return l, func() {
		if now, err := os.Lstat(s.Addr); err == nil && sameSocket(ours, now) {
			_ = os.Remove(s.Addr) // an error says that somebody has done it
		}
	}, nil
}

// sameSocket says whether two looks were at one file. The time tells, too: a file
// that takes the place of one that was removed may get its number.
func sameSocket(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime())
}

// starter is a listener with an engine of its own, in place of a model: that of package
// myriadtest, which has no sockets.
type starter interface {
	net.Listener
	Start(engine.Config) (engine.Engine, error)
}

// listenerConfig is what the engine needs to serve on a caller's listener.
func (s *Server) listenerConfig(l net.Listener) (engine.Config, error) {
	switch l := l.(type) {
	case *net.TCPListener:
		if l != nil {
			return engine.Config{Listener: l}, nil
		}
	case *net.UnixListener:
		if l != nil {
			l.SetUnlinkOnClose(false)
			return engine.Config{Listener: l}, nil
		}
	case starter:
		return engine.Config{Listener: l}, nil
	case NamedListener:
		return s.listenerConfig(l.Listener)
	}
	return engine.Config{}, badConfig("Serve: listener of type %T; expected a *net.TCPListener or *net.UnixListener that is not nil", l)
}
