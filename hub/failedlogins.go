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

var errTooManyFailedLogins = errors.New("hub: too many failed logins")

const (
	// The limit of failed logins from one address in failedLoginWindow is addrLoginFactor times MaxFailedLogins.
	addrLoginFactor   = 10
	failedLoginWindow = time.Minute
	// failedLoginCloseDelay is the delay before a connection with too many failed logins is closed.
	failedLoginCloseDelay  = time.Second
	failedLoginLogInterval = 10 * time.Second
)

type failedLoginLimiter struct {
	rates addrRateLimits

	mu         sync.Mutex // guards the fields below
	lastLogged time.Time
	notLogged  int // connections closed without a log line
}

// recordFailedLogin counts a failed login of the client c from addr. If the client or addr has too many failed logins,
// it returns a closeReason, and the caller must close the connection. For an HTTP request, c is nil.
func (h *Hub) recordFailedLogin(srv *tcp.Server, c *client, addr netip.Addr) (closeReason error) {
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
		h.failedLogins.logClosedConnRateLimited(srv.Log, reason, addr, now)
	}
	return reason
}

func (f *failedLoginLimiter) logClosedConnRateLimited(logger *slog.Logger, reason error, addr netip.Addr, now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if now.Sub(f.lastLogged) < failedLoginLogInterval {
		f.notLogged++
		return
	}
	if logger == nil {
		logger = slog.Default()
	}
	logger.Warn("client closed after failed logins", "error", reason, "peer", addr, "suppressed", f.notLogged)
	f.lastLogged, f.notLogged = now, 0
}

// countFailedLoginCloseLaterIfMany counts a failed login. If the client or its address has too many failed logins, the
// hub reads no more input from the connection and closes it after failedLoginCloseDelay.
func (b *commandBatch) countFailedLoginCloseLaterIfMany() {
	addrPort, _ := b.ref.RemoteAddr()
	if b.hub.recordFailedLogin(b.conn.Server(), &b.client, addrPort.Addr()) == nil {
		return
	}
	if b.flushReplies(); !b.closing {
		b.stopped = true
		b.conn.Pause()
		b.conn.SetTimer(failedLoginCloseDelay)
	}
}

// Timer implements tcp.TimerHandler. It closes a client after too many failed logins.
func (h redisOrHTTPHandler) Timer(c *tcp.Conn) { c.CloseWith(errTooManyFailedLogins) }
