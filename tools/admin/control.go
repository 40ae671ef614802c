package admin

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tcp"
)

// Control requests of an operator exist only with Config.Token. A control request must be a POST from the same site
// (see guard.go). It needs the token, and a header that other sites cannot make a browser send. Requests with wrong
// tokens are rate-limited, but a request with the right token always passes. Therefore an attacker who guesses tokens
// can neither lock out the operator nor fill the log.
//
// Commands run on the goroutine of their request. Commands that close connections run one at a time, because a counter
// measures their effect. A drain request is answered immediately, but its handler returns only after the drain. The
// handler of an upgrade request takes over the connection (http.Hijacker), because the page's HTTP server ends during
// the upgrade. The answer is sent on this connection after the upgrade.

// Controller is a Source with control methods. A *tcp.Server is a Controller.
type Controller interface {
	Source
	PauseAccepting() error
	ResumeAccepting() error
	CloseConns(remote netip.AddrPort) error
	Drain() error
}

const (
	// MinToken is the minimum length of Config.Token in bytes.
	MinToken = 16
	// TokenHeader is the request header for the token. Control requests also need ActionHeader, with any value.
	TokenHeader  = "Myriad-Token"
	ActionHeader = "Myriad-Action"

	maxWrongTokens     = 10
	wrongTokenForgiven = 6 * time.Second
	// closeTimeout limits the wait until the server has counted a closed connection.
	closeTimeout      = time.Second
	closePollInterval = 10 * time.Millisecond
)

func validateTokenIfSet(cfg *Config) error {
	if cfg.Token == "" {
		return nil
	}
	if _, ok := cfg.Source.(Controller); !ok {
		return fmt.Errorf("admin: Config.Token is set, but Config.Source is a %T, which has no control methods; expected a *tcp.Server", cfg.Source)
	}
	if len(cfg.Token) < MinToken {
		return fmt.Errorf("admin: Config.Token has %d bytes; expected at least %d, such as the result of crypto/rand.Text", len(cfg.Token), MinToken)
	}
	return nil
}

type controlAPI struct {
	server       Controller
	upgrade      func(done func(tcp.Upgraded, error))
	token        [sha256.Size]byte
	log          *slog.Logger
	rejectionLog *rateLimitedRejectionLog

	mu             sync.Mutex
	wrongTokens    float64 // recent wrong tokens; the number decreases with time
	lastWrongToken time.Time
	closing        sync.Mutex // held while a connection is being closed
	draining       atomic.Bool
}

func newControlAPI(cfg *Config, rejectionLog *rateLimitedRejectionLog) *controlAPI {
	return &controlAPI{server: cfg.Source.(Controller), upgrade: cfg.Upgrade, token: sha256.Sum256([]byte(cfg.Token)), log: cfg.Log, rejectionLog: rejectionLog}
}

func (c *controlAPI) addControlRoutes(routes routeHandlers) {
	for path, do := range map[string]func(http.ResponseWriter, *http.Request) error{
		"pause":  c.newSimpleCommandHandler(c.server.PauseAccepting, "accepting is paused"),
		"resume": c.newSimpleCommandHandler(c.server.ResumeAccepting, "accepting goes on"),
		"drain":  c.replyAndDrainUntilDone,
		"close":  c.closeConnsOfRemote,
	} {
		routes["POST /control/"+path] = func(w http.ResponseWriter, r *http.Request) { c.authorizeAndExecute(w, r, do) }
	}
	if c.upgrade != nil {
		routes["POST /control/upgrade"] = func(w http.ResponseWriter, r *http.Request) {
			c.authorizeAndExecute(w, r, c.startUpgradeReplyingWhenDone)
		}
	}
}

func (c *controlAPI) authorizeAndExecute(w http.ResponseWriter, r *http.Request, execute func(http.ResponseWriter, *http.Request) error) {
	if status, reason := c.checkTokenHeadersLimitingAttempts(r); status != 0 {
		c.rejectionLog.logRejection(r, reason)
		replyText(w, status, reason)
		return
	}
	if err := execute(w, r); err != nil {
		c.logAndReplyError(w, r, http.StatusConflict, err)
	}
}

func (c *controlAPI) logAndReplyError(w http.ResponseWriter, r *http.Request, status int, err error) {
	c.log.Warn("admin: request failed", "path", r.URL.Path, "from", r.RemoteAddr, "error", err)
	replyText(w, status, err.Error())
}

// checkTokenHeadersLimitingAttempts checks the headers of a control request, and counts wrong tokens. If the request is
// authorized, errorStatus is 0. If the token is wrong and there were too many wrong tokens before, errorStatus is 429.
func (c *controlAPI) checkTokenHeadersLimitingAttempts(r *http.Request) (errorStatus int, errorText string) {
	if r.Header.Get(ActionHeader) == "" {
		return http.StatusForbidden, "expected the header " + ActionHeader + ": 1"
	}
	sum := sha256.Sum256([]byte(r.Header.Get(TokenHeader)))
	if subtle.ConstantTimeCompare(sum[:], c.token[:]) == 1 {
		return 0, ""
	}
	if r.Header.Get(TokenHeader) == "" {
		return http.StatusUnauthorized, "expected the token in the header " + TokenHeader
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.wrongTokens = max(c.wrongTokens-now.Sub(c.lastWrongToken).Seconds()/wrongTokenForgiven.Seconds(), 0)
	c.lastWrongToken = now
	if c.wrongTokens > maxWrongTokens-1 {
		return http.StatusTooManyRequests, fmt.Sprintf("too many wrong tokens; wait %v", wrongTokenForgiven)
	}
	c.wrongTokens++
	return http.StatusUnauthorized, "wrong token in the header " + TokenHeader
}

func (c *controlAPI) logAndReplyOK(w http.ResponseWriter, r *http.Request, text string, attrs ...any) {
	c.log.Warn("admin: "+text, append([]any{"from", r.RemoteAddr}, attrs...)...)
	replyText(w, http.StatusOK, text)
}

func (c *controlAPI) newSimpleCommandHandler(execute func() error, successText string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		err := execute()
		if err == nil {
			c.logAndReplyOK(w, r, successText)
		}
		return err
	}
}

func (c *controlAPI) closeConnsOfRemote(w http.ResponseWriter, r *http.Request) error {
	remote, err := netip.ParseAddrPort(r.URL.Query().Get("remote"))
	if err != nil {
		c.logAndReplyError(w, r, http.StatusBadRequest, fmt.Errorf("?remote= is %q; expected an address and a port, such as 192.0.2.1:4000", r.URL.Query().Get("remote")))
		return nil
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	before := c.server.Stats().Closed.Operator
	if err := c.server.CloseConns(remote); err != nil {
		return err
	}
	ticker := time.NewTicker(closePollInterval)
	defer ticker.Stop()
	for end := time.Now().Add(closeTimeout); ; <-ticker.C {
		last := !time.Now().Before(end) // check again after the deadline, because the process may have been stalled
		if n := c.server.Stats().Closed.Operator - before; n > 0 {
			c.logAndReplyOK(w, r, "closed the connection from "+remote.String(), "connections", n)
			return nil
		}
		if last {
			return fmt.Errorf("no connection from %s was closed within %v: there is none, or its handler has not returned", remote, closeTimeout)
		}
	}
}

func (c *controlAPI) replyAndDrainUntilDone(w http.ResponseWriter, r *http.Request) error {
	if c.draining.Swap(true) {
		return errors.New("the server is already draining")
	}
	const text = "the server is draining"
	w.Header().Set("Content-Length", strconv.Itoa(len(text+"\n")))
	w.Header().Set("Connection", "close") // the page must use another connection until this handler returns
	c.log.Warn("admin: "+text, "from", r.RemoteAddr, "connections", c.server.Stats().Open)
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, text+"\n")       // the peer may have disconnected
	_ = http.NewResponseController(w).Flush() // the next write fails as well
	if cut := c.server.Drain(); cut != nil {
		c.log.Warn("admin: drain ended early", "error", cut)
	}
	return nil
}

func (c *controlAPI) startUpgradeReplyingWhenDone(w http.ResponseWriter, r *http.Request) error {
	header := w.Header().Clone()
	nc, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("cannot take over the connection of a %s request to report the upgrade: %w; expected HTTP/1.1", r.Proto, err)
	}
	c.log.Warn("admin: upgrade requested", "from", r.RemoteAddr)
	c.upgrade(func(u tcp.Upgraded, err error) {
		defer nc.Close()
		status, text := http.StatusOK, u.String()
		if err != nil {
			status, text = http.StatusConflict, err.Error()
			c.log.Warn("admin: request failed", "path", r.URL.Path, "from", r.RemoteAddr, "error", err)
		}
		header.Set("Content-Type", "text/plain; charset=utf-8")
		answer := http.Response{
			StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header, Close: true,
			ContentLength: int64(len(text) + 1), Body: io.NopCloser(strings.NewReader(text + "\n")),
		}
		_ = nc.SetDeadline(time.Now().Add(shutdownTimeout)) // the write fails as well
		_ = answer.Write(nc)                                // the peer may have disconnected
	})
	return nil
}

func buildControlSection(s tcp.Stats, canUpgrade bool) page.Section {
	accepting := page.Action{Label: "Pause accepting", URL: "control/pause", Token: true}
	if s.AcceptingPaused {
		accepting = page.Action{Label: "Resume accepting", URL: "control/resume", Token: true}
	}
	actions := []page.Action{accepting}
	if canUpgrade {
		actions = append(actions, page.Action{
			Label: "Upgrade", URL: "control/upgrade", Token: true, Slow: true,
			Confirm: fmt.Sprintf("Start the program that is now on disk and hand it %s connections? If it does not start, this process continues.", format.Count(s.Open)),
		})
	}
	return page.Section{
		ID: "control", Title: "Control", Lead: "Commands need the token, which is requested once. While accepting is paused, new connections wait.",
		Parts: []page.Part{{Actions: append(actions, page.Action{
			Label: "Drain", URL: "control/drain", Token: true,
			Confirm: fmt.Sprintf("Drain the server? It stops accepting, lets %s connections finish their current work, closes them, and exits. This can't be undone.", format.Count(s.Open)),
		})}},
	}
}

func closeConnButton(remote netip.AddrPort) page.Action {
	return page.Action{
		Label: "Close", Token: true, URL: "control/close?remote=" + url.QueryEscape(remote.String()),
		Confirm: fmt.Sprintf("Close the connection from %s at once, discarding unsent output?", remote),
	}
}
