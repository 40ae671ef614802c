package tcp

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/activation"
)

// NamedListener is a listener together with the name that the service manager gave it.
type NamedListener = activation.NamedListener

// ActivatedListeners returns the listeners that a service manager such as systemd has opened for this process. If there
// are none, it returns nil. Pass a listener to Server.Serve, or use it as the Listener field of a Listener. See
// sd_listen_fds(3) for how a service manager passes listeners.
//
// All calls return the same listeners. The first call removes LISTEN_FDS and related variables from the environment.
// Call ActivatedListeners before the program starts any other process, because that process would otherwise inherit
// these variables. In a process started by Server.Upgrade, ActivatedListeners returns the listeners of the old process.
func ActivatedListeners() ([]NamedListener, error) {
	l, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("myriad: %w", err)
	}
	return l, nil
}

// Notify sends the string state to the service manager, as sd_notify(3) does. If there is no service manager, sent is
// false. A program should send "READY=1" in Server.Listening. A program that exits when its server ends should send
// "STOPPING=1" in Server.Stopping.
func Notify(state string) (sent bool, err error) {
	if sent, err = activation.Notify(state); err != nil {
		return sent, fmt.Errorf("myriad: %w", err)
	}
	return sent, nil
}
