//go:build !linux

package sock

import (
	"net"
	"time"
)

// Gone is after which time without a word an idle peer that answers no keepalive
// probe is given up.
const Gone = 3 * time.Minute

// ListenerPatience does nothing here: the system has no such option.
func ListenerPatience(net.Listener, time.Duration, bool) {}
