package hub

import (
	"errors"
	"fmt"
	"math"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// During tcp.Server.Upgrade, clients move to a new process. Redis clients, WebSockets and event streams keep their
// user, name and subscriptions. HTTP connections move between two requests.

// clientStateVersion is the version of the saved state. The state consists of the message format, the reply order, the
// reply flags, the user, the client's name, and the kind and name of each subscription. The state of a WebSocket
// contains a number of errors instead of the reply flags.
const clientStateVersion = 1

var (
	errCommandIncomplete = fmt.Errorf("%w: a command is incomplete", tcp.ErrSaveLater)
	errReplayInProgress  = fmt.Errorf("%w: a replay is in progress", tcp.ErrSaveLater)
	errBadState          = errors.New("the client state is truncated or has another version")
)

type savedClient struct {
	client
	flagsOrErrors byte // replyFlags or consecutiveErrors
	name          string
	subscriptions saved.Reader // encoded
}

// copyClient returns a copy of s.client, so that the rest of s does not stay in memory.
func (s *savedClient) copyClient() *client {
	c := s.client
	return &c
}

func (s *savedClient) appendState(dst []byte) []byte {
	ordered := byte(0)
	if s.repliesInMessageOrder {
		ordered = 1
	}
	dst = append(dst, clientStateVersion, byte(s.format), ordered, s.flagsOrErrors)
	user := ""
	if s.user != nil {
		user = s.user.name
	}
	dst = saved.AppendString(saved.AppendString(dst, user), s.name)
	for k := range Kind(kindCount) {
		for _, topic := range s.subscriptionNames(k) {
			dst = saved.AppendString(append(dst, byte(k)), topic)
		}
	}
	return dst
}

// decodeSavedClient decodes the output of appendState, but not the subscriptions. It fails if the message format is not
// between minFormat and maxFormat, or if the user no longer exists.
func (h *Hub) decodeSavedClient(state []byte, minFormat, maxFormat messageFormat) (s savedClient, err error) {
	r := saved.NewReader(state)
	version := r.Byte()
	s.client = client{format: messageFormat(r.Byte()), repliesInMessageOrder: r.Byte() != 0}
	s.flagsOrErrors = r.Byte()
	user := r.String()
	s.name = r.String()
	s.subscriptions = r
	switch {
	case version != clientStateVersion || !r.Complete() || s.format < minFormat || s.format > maxFormat:
		return s, errBadState
	case user != "":
		if s.user = h.findActiveUser(user); s.user == nil {
			return s, fmt.Errorf("%w: user %q no longer exists", errDenied, user)
		}
	}
	return s, nil
}

// reauthorizeAndRestoreSubscriptions subscribes a client to the saved names. It ignores the limits of pattern costs: a
// pattern's cost depends on the order of subscription, so it may be higher now than it was in the old process.
func (h *Hub) reauthorizeAndRestoreSubscriptions(c *client, ref tcp.Ref, saved *saved.Reader) error {
	limits := h.Limits
	limits.MaxPatternCost, limits.MaxPatternWork = math.MaxInt32/2, math.MaxInt32
	for len(saved.Remaining()) > 0 {
		k := Kind(saved.Byte())
		name := saved.String()
		if !saved.Complete() || k >= kindCount || c.isSubscribed(k, name) {
			return errBadState
		}
		t, err := h.authorizeAndRecordSubscription(c, ref, k, name, limits)
		if err != nil {
			return fmt.Errorf("topic %q: %w", name, err)
		}
		t.getOrCreateGroup(c.format).Add(ref)
	}
	return nil
}

// Save implements tcp.Migrator.
func (h redisOrHTTPHandler) Save(c *tcp.Conn, dst []byte) ([]byte, error) {
	session, ok := c.Value().(*respSession)
	if !ok {
		return dst, nil // nothing received yet
	}
	if int(session.consecutiveErrors) >= h.hub.Limits.maxFailedLogins() {
		return nil, errCommandIncomplete // about to close
	}
	saved := savedClient{client: session.client, flagsOrErrors: byte(session.replyFlags)}
	if session.sessionDetails != nil {
		if session.sessionDetails.argsDone > 0 {
			return nil, errCommandIncomplete
		}
		saved.name = session.sessionDetails.clientName
	}
	return saved.appendState(dst), nil
}

// Restore implements tcp.Migrator.
func (h redisOrHTTPHandler) Restore(c *tcp.Conn, state []byte) error {
	if len(state) == 0 {
		return nil
	}
	saved, err := h.hub.decodeSavedClient(state, formatRESP2, formatRESP3)
	if err != nil {
		return err
	}
	session := &respSession{client: saved.client, replyFlags: replyFlags(saved.flagsOrErrors)}
	if saved.name != "" {
		session.sessionDetails = &sessionDetails{clientName: saved.name}
	}
	c.SetValue(session)
	return h.hub.reauthorizeAndRestoreSubscriptions(&session.client, c.Ref(), &saved.subscriptions)
}

// SaveHandler implements tcp.HandlerMigrator for connections that speak HTTP.
func (h redisOrHTTPHandler) SaveHandler(c *tcp.Conn, connHandler tcp.Handler, dst []byte) ([]byte, error) {
	return h.hub.httpHandler().SaveHandler(c, connHandler, dst)
}

// RestoreHandler implements tcp.HandlerMigrator.
func (h redisOrHTTPHandler) RestoreHandler(c *tcp.Conn, state []byte) error {
	return h.hub.httpHandler().RestoreHandler(c, state)
}

// Save implements web.SocketMigrator.
func (h socketHandler) Save(s web.Socket, dst []byte) ([]byte, error) {
	c := s.Value().(*client)
	if c.isReplaying() {
		return nil, errReplayInProgress
	}
	return (&savedClient{client: *c, flagsOrErrors: c.consecutiveErrors}).appendState(dst), nil
}

// Restore implements web.SocketMigrator.
func (h socketHandler) Restore(s web.Socket, state []byte) error {
	saved, err := h.hub.decodeSavedClient(state, formatWebSocket, formatWebSocket)
	c := saved.copyClient()
	c.consecutiveErrors = saved.flagsOrErrors
	s.SetValue(c) // even on error, for Closed
	if err == nil {
		err = h.hub.reauthorizeAndRestoreSubscriptions(c, s.Ref(), &saved.subscriptions)
	}
	if errors.Is(err, errDenied) {
		err = &web.CloseError{Code: web.ClosePolicy, Reason: err.Error()}
	}
	return err
}

// saveEventStream implements web.Events.Save.
func (api *httpAPI) saveEventStream(c *tcp.Conn, dst []byte) ([]byte, error) {
	client := c.Value().(*client)
	if client.isReplaying() {
		return nil, errReplayInProgress
	}
	return (&savedClient{client: *client}).appendState(dst), nil
}

// restoreEventStream implements web.Events.Restore.
func (api *httpAPI) restoreEventStream(c *tcp.Conn, state []byte) error {
	saved, err := api.hub.decodeSavedClient(state, formatEvents, formatEvents)
	client := saved.copyClient()
	c.SetValue(client) // even on error, for Closed
	if err != nil {
		return err
	}
	return api.hub.reauthorizeAndRestoreSubscriptions(client, c.Ref(), &saved.subscriptions)
}
