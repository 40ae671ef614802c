package tcp

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/activation"
)

// NamedListener is a listener together with the name that the service manager gave it.
type NamedListener = activation.NamedListener

// ActivatedListeners returns the listeners that a service manager such as systemd opened for this process. It returns
// nil if there are none. Pass each of them to Server.Serve or set it as Listener.Listener. sd_listen_fds(3) describes
// how the service manager passes listeners.
//
// After Server.Upgrade, the new process gets the listeners of the old process. Further calls return the same listeners.
// Call ActivatedListeners before starting any process, because it removes LISTEN_FDS and related variables from the
// environment.
func ActivatedListeners() ([]NamedListener, error) {
	l, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("myriad: %w", err)
	}
	return l, nil
}

// Notify sends the string state to the service manager, as sd_notify(3) does. sent is false if there is no service
// manager. Send "READY=1" in Server.Listening. If the program ends with the server, send "STOPPING=1" in
// Server.Stopping.
func Notify(state string) (sent bool, err error) {
	if sent, err = activation.Notify(state); err != nil {
		return sent, fmt.Errorf("myriad: %w", err)
	}
	return sent, nil
}
