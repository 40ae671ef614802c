package hub

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// This file slows down guessing of passwords and tokens.

var errLogins = errors.New("hub: too many failed logins")

const (
	// failureAddress is how many times MaxFailedLogins an address has in failureTime.
	failureAddress = 10
	failureTime    = time.Minute
	// failureDelay is how long a connection with too many failed logins stays, and is not read.
	failureDelay = time.Second
	// failureLog is the least time between two lines of the log.
	failureLog = 10 * time.Second
)

// failures are failed logins.
type failures struct {
	of paces // addresses

	mu     sync.Mutex // guards what follows
	logged time.Time
	silent int // connections closed since, for which there is no line
}

// failedLogin counts a failed login of a client, which is nil for one that comes with each request, at an
// address. It returns an error if the connection is to close for it.
func (h *Hub) failedLogin(srv *tcp.Server, c *client, from netip.Addr) error {
	most, now := h.Limits.maxFailedLogins(), time.Now()
	var why error
	if c != nil {
		if c.mistakes < maxFailedLogins {
			c.mistakes++
		}
		if int(c.mistakes) >= most {
			why = fmt.Errorf("%w: %d on one connection", errLogins, most)
		}
	}
	if !h.failures.of.take(from, now, failureAddress*most, failureTime) && why == nil {
		why = fmt.Errorf("%w: %d in a minute from one address", errLogins, failureAddress*most)
	}
	if why != nil {
		_ = h.refuse(errLogins)
		h.failures.log(srv.Log, why, from, now)
	}
	return why
}

// log logs a connection that closes, unless there was a line a short time ago.
func (f *failures) log(to *slog.Logger, why error, from netip.Addr, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.logged) < failureLog {
		f.silent++
		return
	}
	if to == nil {
		to = slog.Default()
	}
	to.Warn("a client is closed that fails to log in", "error", why, "peer", from, "others", f.silent)
	f.logged, f.silent = now, 0
}

// failedLogin counts a failed login. If there are too many, the client is not read any more, and
// closes after a while.
func (t *turn) failedLogin() {
	from, _ := t.ref.RemoteAddr()
	if t.h.failedLogin(t.c.Server(), &t.client, from.Addr()) == nil {
		return
	}
	if t.flush(); !t.gone {
		t.over = true
		t.c.Pause()
		t.c.SetTimer(failureDelay)
	}
}

// Timer implements tcp.TimerHandler: the delay of a client with too many failed logins is over.
func (h handler) Timer(c *tcp.Conn) { c.CloseWith(errLogins) }
