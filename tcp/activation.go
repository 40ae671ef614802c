package tcp

import (
	"fmt"

	"github.com/myriad-go/myriad/internal/activation"
)

// NamedListener is a listener with the name that a service manager has for it.
type NamedListener = activation.NamedListener

// ActivatedListeners are the listeners that a service manager such as systemd has
// opened for this process (LISTEN_FDS, sd_listen_fds(3)), or for the one whose place it takes
// (Server.Upgrade), for Serve and Listener.Listener; nil if there are none. Further calls give the same ones. It is to be called before anything
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
