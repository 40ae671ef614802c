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

// This file is what an operator may do to the server from the page. It is guarded:
// there is nothing of it without Config.Token, and each order has to be a POST that
// comes from no other site, as all requests here (guard.go), with a header that no other
// site can have a browser send unasked, and with the token. The right token always passes.
// Wrong ones are bounded: maxWrongTokens get 401, and one more each wrongTokenForgiven; the others
// get 429. Who guesses can keep nobody out, and not fill the
// log: of what is refused there is a line a second at the most, with the number of
// those between.
//
// Orders are carried out on the goroutine of their request, those to close connections
// one at a time, because what they did is shown by a count. That of a drain gets its
// answer first, and is then held until the drain is over. That of an upgrade takes its
// connection from the server of the page, which ends meanwhile, and answers there.

// Controller is a Source that can be controlled: a *tcp.Server.
type Controller interface {
	Source
	PauseAccepting() error
	ResumeAccepting() error
	CloseConns(remote netip.AddrPort) error
	Drain() error
}

const (
	// MinToken is the least length of Config.Token, in bytes.
	MinToken = 16
	// TokenHeader is the header that has the token, and ActionHeader one that
	// every order has.
	TokenHeader  = "Myriad-Token"
	ActionHeader = "Myriad-Action"

	maxWrongTokens     = 10
	wrongTokenForgiven = 6 * time.Second
	// closeTimeout bounds the wait for a connection to be counted as closed.
	closeTimeout      = time.Second
	closePollInterval = 10 * time.Millisecond
)

// validateControl says what is wrong with the configuration.
func validateControl(cfg *Config) error {
	if cfg.Token == "" {
		return nil
	}
	if _, ok := cfg.Source.(Controller); !ok {
		return fmt.Errorf("admin: Config.Token is set, and Config.Source is a %T, which can't be controlled; expected a *tcp.Server", cfg.Source)
	}
	if len(cfg.Token) < MinToken {
		return fmt.Errorf("admin: Config.Token has %d bytes; expected at least %d, such as crypto/rand.Text gives", len(cfg.Token), MinToken)
	}
	return nil
}

// controlAPI carries out orders.
type controlAPI struct {
	server       Controller
	upgrade      func(done func(tcp.Upgraded, error))
	token        [sha256.Size]byte
	log          *slog.Logger
	rejectionLog *rejectionLogger

	mu             sync.Mutex
	wrongTokens    float64 // tokens that were wrong and are not forgiven
	lastWrongToken time.Time
	closing        sync.Mutex // held while a connection is being closed
	draining       atomic.Bool
}

func newControlAPI(cfg *Config, rejectionLog *rejectionLogger) *controlAPI {
	return &controlAPI{server: cfg.Source.(Controller), upgrade: cfg.Upgrade, token: sha256.Sum256([]byte(cfg.Token)), log: cfg.Log, rejectionLog: rejectionLog}
}

// addRoutes adds the orders.
func (c *controlAPI) addRoutes(routes routeHandlers) {
	for path, do := range map[string]func(http.ResponseWriter, *http.Request) error{
		"pause":  c.commandHandler(c.server.PauseAccepting, "accepting is paused"),
		"resume": c.commandHandler(c.server.ResumeAccepting, "accepting goes on"),
		"drain":  c.drainServer,
		"close":  c.closePeerConns,
	} {
		routes["POST /control/"+path] = func(w http.ResponseWriter, r *http.Request) { c.serveCommand(w, r, do) }
	}
	if c.upgrade != nil {
		routes["POST /control/upgrade"] = func(w http.ResponseWriter, r *http.Request) { c.serveCommand(w, r, c.upgradeServer) }
	}
}

// serveCommand carries out an order, if it may be given.
func (c *controlAPI) serveCommand(w http.ResponseWriter, r *http.Request, execute func(http.ResponseWriter, *http.Request) error) {
	if status, why := c.checkCommandAuth(r); status != 0 {
		c.rejectionLog.logRejection(r, why)
		writeText(w, status, why)
		return
	}
	if err := execute(w, r); err != nil {
		c.replyCommandError(w, r, http.StatusConflict, err)
	}
}

// replyCommandError logs and tells why an order was not carried out.
func (c *controlAPI) replyCommandError(w http.ResponseWriter, r *http.Request, status int, err error) {
	c.log.Warn("admin: an order has failed", "order", r.URL.Path, "from", r.RemoteAddr, "error", err)
	writeText(w, status, err.Error())
}

// checkCommandAuth says why an order is refused, 0 if it is not.
func (c *controlAPI) checkCommandAuth(r *http.Request) (status int, reason string) {
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
	return http.StatusUnauthorized, "the token is wrong"
}

// replyCommandDone logs and tells what was done.
func (c *controlAPI) replyCommandDone(w http.ResponseWriter, r *http.Request, text string, attrs ...any) {
	c.log.Warn("admin: "+text, append([]any{"from", r.RemoteAddr}, attrs...)...)
	writeText(w, http.StatusOK, text)
}

// commandHandler is an order without parameters.
func (c *controlAPI) commandHandler(execute func() error, message string) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		err := execute()
		if err == nil {
			c.replyCommandDone(w, r, message)
		}
		return err
	}
}

// closePeerConns closes the connections of a peer, and tells how many were.
func (c *controlAPI) closePeerConns(w http.ResponseWriter, r *http.Request) error {
	remote, err := netip.ParseAddrPort(r.URL.Query().Get("remote"))
	if err != nil {
		c.replyCommandError(w, r, http.StatusBadRequest, fmt.Errorf("?remote= is %q; expected an address and a port, such as 192.0.2.1:4000", r.URL.Query().Get("remote")))
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
		last := !time.Now().Before(end) // after the time, too, of which this process may have had none
		if n := c.server.Stats().Closed.Operator - before; n > 0 {
			c.replyCommandDone(w, r, "closed the connection from "+remote.String(), "connections", n)
			return nil
		}
		if last {
			return fmt.Errorf("no connection from %s was closed within %v: there is none, or its handler has not returned", remote, closeTimeout)
		}
	}
}

// drainServer answers, and then drains.
func (c *controlAPI) drainServer(w http.ResponseWriter, r *http.Request) error {
	if c.draining.Swap(true) {
		return errors.New("the server drains already")
	}
	const text = "the server drains"
	w.Header().Set("Content-Length", strconv.Itoa(len(text+"\n")))
	w.Header().Set("Connection", "close") // for as long as this one is held, too, the page uses another
	c.log.Warn("admin: "+text, "from", r.RemoteAddr, "connections", c.server.Stats().Open)
	w.WriteHeader(http.StatusOK)
	_, _ = io.WriteString(w, text+"\n")       // the peer may have gone
	_ = http.NewResponseController(w).Flush() // an error shows in the next write
	if cut := c.server.Drain(); cut != nil {
		c.log.Warn("admin: the drain was cut short", "error", cut)
	}
	return nil
}

// upgradeServer has the server upgraded, and what has come of it answered.
func (c *controlAPI) upgradeServer(w http.ResponseWriter, r *http.Request) error {
	header := w.Header().Clone()
	nc, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("an upgrade can't be answered by %s; expected HTTP/1.1: %w", r.Proto, err)
	}
	c.log.Warn("admin: an upgrade is ordered", "from", r.RemoteAddr)
	c.upgrade(func(u tcp.Upgraded, err error) {
		defer nc.Close()
		status, text := http.StatusOK, u.String()
		if err != nil {
			status, text = http.StatusConflict, err.Error()
			c.log.Warn("admin: an order has failed", "order", r.URL.Path, "from", r.RemoteAddr, "error", err)
		}
		header.Set("Content-Type", "text/plain; charset=utf-8")
		answer := http.Response{
			StatusCode: status, ProtoMajor: 1, ProtoMinor: 1, Header: header, Close: true,
			ContentLength: int64(len(text) + 1), Body: io.NopCloser(strings.NewReader(text + "\n")),
		}
		_ = nc.SetDeadline(time.Now().Add(shutdownTimeout)) // an error shows in the write
		_ = answer.Write(nc)                                // the peer may have gone
	})
	return nil
}

// controlSection has the buttons.
func controlSection(s tcp.Stats, upgrades bool) page.Section {
	accepting := page.Action{Label: "Pause accepting", URL: "control/pause", Token: true}
	if s.AcceptingPaused {
		accepting = page.Action{Label: "Resume accepting", URL: "control/resume", Token: true}
	}
	actions := []page.Action{accepting}
	if upgrades {
		actions = append(actions, page.Action{
			Label: "Upgrade", URL: "control/upgrade", Token: true, Slow: true,
			Confirm: fmt.Sprintf("Start the program anew, as it is on disk by now, and hand it %s connections? If it does not start, this process goes on.", format.Count(s.Open)),
		})
	}
	return page.Section{
		ID: "control", Title: "Control", Lead: "Orders need the token, which is asked for once. While accepting is paused, who connects waits.",
		Parts: []page.Part{{Actions: append(actions, page.Action{
			Label: "Drain", URL: "control/drain", Token: true,
			Confirm: fmt.Sprintf("Drain the server? It accepts nothing more, lets %s connections finish what they have at hand, closes them, and ends. This can't be taken back.", format.Count(s.Open)),
		})}},
	}
}

// newCloseButton is the button of a connection.
func newCloseButton(remote netip.AddrPort) page.Action {
	return page.Action{
		Label: "Close", Token: true, URL: "control/close?remote=" + url.QueryEscape(remote.String()),
		Confirm: fmt.Sprintf("Close the connection from %s at once, without sending what it is owed?", remote),
	}
}
