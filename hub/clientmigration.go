package hub

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// During tcp.Server.Upgrade, clients move to a new process. Redis clients, WebSockets and event streams keep their
// user, name and subscriptions. HTTP connections move between two requests.

const clientStateVersion = 1

var (
	errCommandIncomplete = fmt.Errorf("%w: a command is incomplete", tcp.ErrSaveLater)
	errMissesMessages    = errors.New("the new process stores messages that this process has not sent to the client")
	errReplayInProgress  = fmt.Errorf("%w: a replay is in progress", tcp.ErrSaveLater)
	errBadState          = errors.New("the saved client state is truncated or has a different version")
)

type savedClient struct {
	client
	flagsOrErrors byte         // replyFlags of a Redis client, or consecutiveErrors of a WebSocket
	name          string       // the client's name; then the library's name and version if known, separated by spaces
	subscriptions saved.Reader // encoded
}

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

// decodeSavedClientAndFindUser decodes the state of a client, which appendState has encoded, and finds the client's
// user. The subscriptions remain encoded in s.subscriptions. The function fails if the client's message format is not
// between minFormat and maxFormat, or if the user was removed or is off.
func (h *Hub) decodeSavedClientAndFindUser(state []byte, minFormat, maxFormat messageFormat) (s savedClient, err error) {
	r := saved.NewReader(state)
	version := r.Byte()
	s.client = client{format: messageFormat(r.Byte()), repliesInMessageOrder: r.Byte() != 0, since: secondsSinceStart()}
	s.flagsOrErrors = r.Byte()
	user := r.String()
	s.name = r.String()
	s.subscriptions = r
	switch {
	case version != clientStateVersion || !r.Complete() || s.format < minFormat || s.format > maxFormat:
		return s, errBadState
	case user != "":
		if s.user = h.resolveSavedUser(user); s.user == nil {
			return s, fmt.Errorf("%w: user %q no longer exists", errDenied, user)
		}
	}
	return s, nil
}

// reauthorizeAndRestoreSubscriptions restores the saved subscriptions. It fails if the user has lost the right to any
// of the subscriptions.
func (h *Hub) reauthorizeAndRestoreSubscriptions(c *client, ref tcp.Ref, saved *saved.Reader) error {
	limits := h.Limits
	// A pattern may cost more than in the old process, but must not be rejected.
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
		if session.unfinished != nil {
			return nil, errCommandIncomplete
		}
		saved.name = session.sessionDetails.clientName
	}
	if l := h.hub.libraries.byID(session.knownLibrary); l != (clientLibrary{}) {
		saved.name += " " + l.name + " " + l.version
	}
	return saved.appendState(dst), nil
}

// Restore implements tcp.Migrator.
func (h redisOrHTTPHandler) Restore(c *tcp.Conn, state []byte) error {
	if len(state) == 0 {
		return nil
	}
	saved, err := h.hub.decodeSavedClientAndFindUser(state, formatRESP2, formatRESP3)
	if err != nil {
		return err
	}
	session := &respSession{client: saved.client, replyFlags: replyFlags(saved.flagsOrErrors), lastCommandAt: saved.client.since}
	name, library, _ := strings.Cut(saved.name, " ") // none of them contains a space
	if name != "" {
		session.sessionDetails = &sessionDetails{clientName: name}
	}
	if name, version, ok := strings.Cut(library, " "); ok {
		session.knownLibrary = h.hub.libraries.getOrAddID(clientLibrary{name, version})
	}
	c.SetValue(session)
	return h.hub.reauthorizeAndRestoreSubscriptions(&session.client, c.Ref(), &saved.subscriptions)
}

// SaveHandler implements tcp.HandlerMigrator for HTTP connections.
func (h redisOrHTTPHandler) SaveHandler(c *tcp.Conn, connHandler tcp.Handler, dst []byte) ([]byte, error) {
	return h.hub.httpHandler().SaveHandler(c, connHandler, dst)
}

// RestoreHandler implements tcp.HandlerMigrator.
func (h redisOrHTTPHandler) RestoreHandler(c *tcp.Conn, state []byte) error {
	return h.hub.httpHandler().RestoreHandler(c, state)
}

// checkNoMissedMessages returns an error if the client may lack stored messages. This is the case while a replay
// to the client is in progress. It is also the case if another process already stores the messages of the client's
// topics.
func (h *Hub) checkNoMissedMessages(c *client) error {
	if c.isReplaying() {
		return errReplayInProgress
	}
	for k := range Kind(kindCount) {
		if h.isHandedOver() && slices.ContainsFunc(c.subscriptionNames(k), func(name string) bool { return h.keepsAny(k, name) }) {
			return errMissesMessages
		}
	}
	return nil
}

// Save implements web.SocketMigrator.
func (h socketHandler) Save(s web.Socket, dst []byte) ([]byte, error) {
	c := s.Value().(*client)
	if err := h.hub.checkNoMissedMessages(c); err != nil {
		return nil, err
	}
	saved := savedClient{client: *c, flagsOrErrors: c.consecutiveErrors}
	saved.format = formatWebSocket // Restore knows whether the socket is compressed
	return saved.appendState(dst), nil
}

// Restore implements web.SocketMigrator.
func (h socketHandler) Restore(s web.Socket, state []byte) error {
	saved, err := h.hub.decodeSavedClientAndFindUser(state, formatWebSocket, formatWebSocket)
	c := saved.copyClient()
	c.consecutiveErrors = saved.flagsOrErrors
	s.SetValue(c) // even on error, for Closed
	h.Opened(s)
	if err == nil {
		err = h.hub.reauthorizeAndRestoreSubscriptions(c, s.Ref(), &saved.subscriptions)
	}
	if errors.Is(err, errDenied) {
		err = &web.CloseError{Code: web.ClosePolicy, Reason: err.Error()}
	}
	return err
}

func (api *httpAPI) saveEventStream(c *tcp.Conn, dst []byte) ([]byte, error) {
	client := c.Value().(*client)
	if err := api.hub.checkNoMissedMessages(client); err != nil {
		return nil, err
	}
	return (&savedClient{client: *client}).appendState(dst), nil
}

func (api *httpAPI) restoreEventStream(c *tcp.Conn, state []byte) error {
	saved, err := api.hub.decodeSavedClientAndFindUser(state, formatEvents, formatEvents)
	client := saved.copyClient()
	c.SetValue(client) // even on error, for Closed
	if err != nil {
		return err
	}
	return api.hub.reauthorizeAndRestoreSubscriptions(client, c.Ref(), &saved.subscriptions)
}
