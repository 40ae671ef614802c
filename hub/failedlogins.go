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

var errTooManyFailedLogins = errors.New("hub: too many failed logins")

const (
	// addrLoginFactor is how many times MaxFailedLogins an address has in failedLoginWindow.
	addrLoginFactor   = 10
	failedLoginWindow = time.Minute
	// failedLoginCloseDelay is how long a connection with too many failed logins stays, and is not read.
	failedLoginCloseDelay = time.Second
	// failedLoginLogInterval is the least time between two lines of the log.
	failedLoginLogInterval = 10 * time.Second
)

// failedLoginLimiter are failed logins.
type failedLoginLimiter struct {
	rates addrRateLimits // addresses

	mu         sync.Mutex // guards what follows
	lastLogged time.Time
	notLogged  int // connections closed since, for which there is no line
}

// recordFailedLogin counts a failed login of a client, which is nil for one that comes with each request, at an
// address. It returns an error if the connection is to close for it.
func (h *Hub) recordFailedLogin(srv *tcp.Server, c *client, addr netip.Addr) error {
	limit, now := h.Limits.maxFailedLogins(), time.Now()
	var reason error
	if c != nil {
		if c.consecutiveErrors < maxFailedLoginsLimit {
			c.consecutiveErrors++
		}
		if int(c.consecutiveErrors) >= limit {
			reason = fmt.Errorf("%w: %d on one connection", errTooManyFailedLogins, limit)
		}
	}
	if !h.failedLogins.rates.allow(addr, now, addrLoginFactor*limit, failedLoginWindow) && reason == nil {
		reason = fmt.Errorf("%w: %d in a minute from one address", errTooManyFailedLogins, addrLoginFactor*limit)
	}
	if reason != nil {
		_ = h.countRefusal(errTooManyFailedLogins)
		h.failedLogins.logClosedConn(srv.Log, reason, addr, now)
	}
	return reason
}

// logClosedConn logs a connection that closes, unless there was a line a short time ago.
func (f *failedLoginLimiter) logClosedConn(logger *slog.Logger, reason error, addr netip.Addr, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.lastLogged) < failedLoginLogInterval {
		f.notLogged++
		return
	}
	if logger == nil {
		logger = slog.Default()
	}
	logger.Warn("a client is closed that fails to log in", "error", reason, "peer", addr, "others", f.notLogged)
	f.lastLogged, f.notLogged = now, 0
}

// recordFailedLogin counts a failed login. If there are too many, the client is not read any more, and
// closes after a while.
func (b *commandBatch) handleFailedLogin() {
	addr, _ := b.ref.RemoteAddr()
	if b.hub.recordFailedLogin(b.conn.Server(), &b.client, addr.Addr()) == nil {
		return
	}
	if b.flushReplies(); !b.closing {
		b.stopped = true
		b.conn.Pause()
		b.conn.SetTimer(failedLoginCloseDelay)
	}
}

// Timer implements tcp.TimerHandler: the delay of a client with too many failed logins is over.
func (h handler) Timer(c *tcp.Conn) { c.CloseWith(errTooManyFailedLogins) }
