//go:build !linux

package sock

import (
	"net"
	"time"
)

// ListenerUserTimeout does nothing here: the system has no such option.
func ListenerUserTimeout(net.Listener, time.Duration) {}
