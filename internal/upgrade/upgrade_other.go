//go:build !linux

package upgrade

import (
	"context"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/myriad-go/myriad/internal/secure"
)

type Successor struct{}

const ListenersMessage = ""

func StartSuccessor(*exec.Cmd, time.Duration) (*Successor, error)          { return nil, ErrUnsupported }
func (*Successor) PID() int                                                { return 0 }
func (*Successor) SendHelloAndListeners(Hello, func(*os.File) error) error { return ErrUnsupported }
func (*Successor) WaitReady(context.Context) (r Ready, _ error)            { return r, ErrUnsupported }
func (*Successor) SendChannelsAndAwaitTakeOver(context.Context, int, int, *os.File, *os.File) ([]*os.File, error) {
	return nil, ErrUnsupported
}
func (*Successor) MonitorAndKillIfHung(context.Context) {}
func (*Successor) ProbeAndKillIfHung() (exited bool)    { return true }
func (*Successor) AbortOrKill()                         {}
func (*Successor) SendDone(Done) error                  { return ErrUnsupported }

func NewMemoryStateFile() (*os.File, error)            { return nil, ErrUnsupported }
func NewBroadcastSocketpair() (p [2]*os.File, _ error) { return p, ErrUnsupported }

type Predecessor struct {
	Listeners     []Inherited
	Paused        bool
	WorkerTickets []secure.TicketKey // see Hello
}

type Reaper struct{}

type OrderConn struct{}

type Inherited struct {
	Listener
	Sockets []net.Listener
}

func ClaimPredecessorOrNil() (*Predecessor, error) { return nil, nil }
func (*Predecessor) AnnounceReadyAndTakeOver(int, func(_, _ *os.File), func([]*os.File) error) error {
	return ErrUnsupported
}
func (*Predecessor) ReportFailure(error) error                       { return ErrUnsupported }
func (*Predecessor) AnswerProbesUntilDone() (d Done, err error)      { return d, ErrUnsupported }
func (*Predecessor) Close()                                          {}
func IsAborted(error) bool                                           { return false }
func (*Predecessor) WaitStartedOrAborted(<-chan struct{}) error      { return ErrUnsupported }
func PredecessorActivationSockets() ([]string, []*os.File, error)    { return nil, nil, nil }
func (*Successor) RelaySignalsIfFirstProcess() (reaperOrNil *Reaper) { return nil }
func (*Reaper) ReapUntilServerExits() error                          { return nil }
func EnableKeepRunningIfFirst() error                                { return nil }
func ReportOwnPIDServing()                                           {}
