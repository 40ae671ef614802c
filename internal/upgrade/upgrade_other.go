//go:build !linux

package upgrade

import (
	"context"
	"net"
	"os"
	"os/exec"
	"time"
)

// Successor and Predecessor are for Linux.
type Successor struct{}

// SocketsWord is for Linux.
const SocketsWord = ""

func Start(*exec.Cmd, time.Duration) (*Successor, error)         { return nil, ErrUnsupported }
func (*Successor) PID() int                                      { return 0 }
func (*Successor) Greet(Hello, func(*os.File) error) error       { return ErrUnsupported }
func (*Successor) AwaitReady(context.Context) (r Ready, _ error) { return r, ErrUnsupported }
func (*Successor) Channels(context.Context, int, int, *os.File, *os.File) ([]*os.File, error) {
	return nil, ErrUnsupported
}
func (*Successor) Watch(context.Context) {}
func (*Successor) Died() bool            { return true }
func (*Successor) Abort()                {}
func (*Successor) Done(Done) error       { return ErrUnsupported }

func StateFile() (*os.File, error)       { return nil, ErrUnsupported }
func LinkPair() (p [2]*os.File, _ error) { return p, ErrUnsupported }

// Predecessor is for Linux.
type Predecessor struct {
	Listeners []Inherited
	Paused    bool
}

// Link is for Linux.
type Link struct{}

// Inherited is a listener of the old process.
type Inherited struct {
	Listener
	Sockets []net.Listener
}

func Take() (*Predecessor, error) { return nil, nil }
func (*Predecessor) Ready(int, func(_, _ *os.File), func([]*os.File) error) error {
	return ErrUnsupported
}
func (*Predecessor) Fail(error) error               { return ErrUnsupported }
func (*Predecessor) Wait() (d Done, err error)      { return d, ErrUnsupported }
func (*Predecessor) Close()                         {}
func Aborted(error) bool                            { return false }
func (*Predecessor) Starting(<-chan struct{}) error { return ErrUnsupported }
