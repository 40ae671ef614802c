package tcp

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/activation"
)

// NamedListener is a listener together with the name that the service manager gave it.
type NamedListener = activation.NamedListener

// ActivatedListeners returns the listeners that a service manager such as systemd opened for this process (LISTEN_FDS,
// sd_listen_fds(3)), or nil if there are none. Pass them to Server.Serve or Listener.Listener. After Server.Upgrade,
// the new process gets the listeners of the old one. Further calls return the same listeners. Call ActivatedListeners
// before starting any process, because it removes LISTEN_FDS and related variables from the environment.
func ActivatedListeners() ([]NamedListener, error) {
	l, err := activation.Listeners()
	if err != nil {
		return nil, fmt.Errorf("myriad: %w", err)
	}
	return l, nil
}

// Notify sends a state to the service manager (sd_notify(3)). Call it with "READY=1" in Server.Listening and, if the
// program ends with the server, with "STOPPING=1" in Server.Stopping. sent is false if there is no service manager.
func Notify(state string) (sent bool, err error) {
	if sent, err = activation.Notify(state); err != nil {
		return sent, fmt.Errorf("myriad: %w", err)
	}
	return sent, nil
}
