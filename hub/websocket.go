package hub

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// subprotocol is the name of the hub's WebSocket protocol. Clients need not negotiate it. Each message is a JSON object
// with an op. A request may have an id (a number or a string), which the reply repeats:
//
//	{"op":"subscribe","topic":"a"}          {"op":"subscribed","topic":"a","count":1}
//	{"op":"subscribe","pattern":"a*"}       {"op":"subscribed","pattern":"a*","count":2}
//	{"op":"subscribe","topic":"a","since":"k3-7"}  {"op":"subscribed","topic":"a","count":1,"since":"k3-7"}
//	{"op":"unsubscribe","topic":"a"}        {"op":"unsubscribed","topic":"a","count":1}
//	{"op":"publish","topic":"a","data":""}  {"op":"published","topic":"a","receivers":1}
//	{"op":"count","topic":"a"}              {"op":"count","topic":"a","subscribers":1}
//	{"op":"auth","token":"t"}               {"op":"authenticated","user":"u"}
//	{"op":"ping"}                           {"op":"pong"}
//
// count is the client's number of subscriptions. To publish binary data, encode the data in base64 and send it in the
// field base64 instead of the field data. To log in with a password, send the fields user and password instead of the
// field token. The reply to a failed request is {"op":"error","error":"..."}. encodeMessageJSON encodes messages.
//
// Messages of topics that Hub.Replay selects have an id. For such a topic, the reply "subscribed" contains an id in the
// field since, and the client receives all messages after this id. By default, this is the newest id. A request may
// contain an earlier id in the field since. If messages after this id are no longer available, the notice
// {"op":"gap","topic":"a","id":"k3-9"} precedes the messages. The notice means that messages up to k3-9 may be missing.
//
// After the first subscription, replies and messages are in order: the reply "subscribed" precedes the topic's first
// message, and no message of the topic follows "unsubscribed".
const subprotocol = "myriad.hub.v1"

const (
	// maxBadRequests limits successive invalid requests or failed logins.
	maxBadRequests = 16
	maxIDBytes     = 64
	// closeTryAgainLater is a close code that IANA lists but RFC 6455 does not define.
	closeTryAgainLater = 1013
)

type socketRequest struct {
	Op       string          `json:"op"`
	ID       json.RawMessage `json:"id"`
	Topic    *string         `json:"topic"`
	Pattern  *string         `json:"pattern"`
	Data     *string         `json:"data"`
	Base64   *string         `json:"base64"`
	Token    *string         `json:"token"`
	User     *string         `json:"user"`
	Password *string         `json:"password"`
	Since    *string         `json:"since"`
}

type socketReply struct {
	Op          string          `json:"op"`
	Topic       *string         `json:"topic,omitempty"`
	Pattern     *string         `json:"pattern,omitempty"`
	User        string          `json:"user,omitempty"`
	Count       *int            `json:"count,omitempty"`
	Since       string          `json:"since,omitempty"`
	Subscribers *int            `json:"subscribers,omitempty"`
	Receivers   *int            `json:"receivers,omitempty"`
	Error       string          `json:"error,omitempty"`
	ID          json.RawMessage `json:"id,omitempty"`
}

type socketOp struct {
	allowedFields []string // besides op and id
	handle        func(socketConn, *socketRequest) error
}

var socketOps = map[string]socketOp{
	"auth":        {[]string{"token", "user", "password"}, socketConn.handleAuth},
	"count":       {[]string{"topic"}, socketConn.handleCount},
	"ping":        {nil, socketConn.handlePing},
	"publish":     {[]string{"topic", "data", "base64"}, socketConn.handlePublish},
	"subscribe":   {[]string{"topic", "pattern", "since"}, socketConn.handleSubscribe},
	"unsubscribe": {[]string{"topic", "pattern"}, socketConn.handleUnsubscribe},
}

var errBadRequest = errors.New("bad request")

func badRequestf(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errBadRequest}, args...)...)
}

// parseSocketRequest parses and validates a request. If the request is invalid, the result nevertheless contains the
// request's id, unless the id itself is invalid.
func parseSocketRequest(message []byte) (*socketRequest, socketOp, error) {
	request := new(socketRequest)
	in := json.NewDecoder(bytes.NewReader(message))
	in.DisallowUnknownFields()
	err := in.Decode(request)
	if err == nil {
		if _, extra := in.Token(); extra != io.EOF {
			err = errors.New("unexpected data after the object")
		}
	}
	if err != nil {
		var partial struct{ ID json.RawMessage }
		_ = json.Unmarshal(message, &partial)
		request.ID = partial.ID
	}
	if string(request.ID) == "null" {
		request.ID = nil
	}
	if !isValidRequestID(request.ID) {
		request.ID = nil
		err = errors.Join(err, fmt.Errorf("id must be a number or a string of at most %d bytes", maxIDBytes))
	}
	if err != nil {
		return request, socketOp{}, badRequestf("%s; expected an object such as %s", describeJSONError(err), `{"op":"subscribe","topic":"a"}`)
	}
	op, ok := socketOps[request.Op]
	if !ok {
		return request, op, badRequestf("op is %.40q; expected one of %s", request.Op, strings.Join(slices.Sorted(maps.Keys(socketOps)), ", "))
	}
	for _, name := range request.presentFields() {
		if !slices.Contains(op.allowedFields, name) {
			return request, op, badRequestf("%s does not accept %s", request.Op, name)
		}
	}
	return request, op, nil
}

func describeJSONError(err error) string {
	var typeErr *json.UnmarshalTypeError
	switch {
	case errors.As(err, &typeErr) && typeErr.Field == "":
		return "the message is a JSON " + typeErr.Value
	case errors.As(err, &typeErr):
		return fmt.Sprintf("%.40s is a JSON %s; expected a string", typeErr.Field, typeErr.Value)
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return "the JSON is incomplete"
	}
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "json: "), "\n", "; ")
	return fmt.Sprintf("%.200s", text)
}

func isValidRequestID(id json.RawMessage) bool {
	return len(id) == 0 || len(id) <= maxIDBytes && (id[0] == '"' || id[0] == '-' || '0' <= id[0] && id[0] <= '9')
}

func (q *socketRequest) presentFields() (names []string) {
	for _, f := range []struct {
		name string
		has  bool
	}{
		{"topic", q.Topic != nil}, {"pattern", q.Pattern != nil}, {"data", q.Data != nil}, {"base64", q.Base64 != nil},
		{"token", q.Token != nil}, {"user", q.User != nil}, {"password", q.Password != nil}, {"since", q.Since != nil},
	} {
		if f.has {
			names = append(names, f.name)
		}
	}
	return names
}

func (q *socketRequest) singleTopicOrPattern() (kind Kind, name string, err error) {
	switch {
	case q.Topic != nil && q.Pattern == nil:
		return Topic, *q.Topic, nil
	case q.Topic == nil && q.Pattern != nil:
		return Pattern, *q.Pattern, nil
	}
	return 0, "", badRequestf("%s needs either topic or pattern", q.Op)
}

func (api *httpAPI) serveWebSocket(w http.ResponseWriter, r *http.Request) {
	q, ok := api.checkOriginParseQueryOrWriteError(w, r)
	if !ok {
		return
	}
	u, err := api.authenticateOrInitialUser(r, q)
	if err != nil {
		api.rejectLoginAndCloseIfMany(w, r, err)
		return
	}
	_ = api.sockets.Upgrade(w, r, &client{format: formatWebSocket, user: u, since: secondsSinceStart()})
}

type socketHandler struct{ *httpAPI }

// Opened implements web.SocketHandler.
func (socketHandler) Opened(s web.Socket) {
	if s.Compressed() {
		s.Value().(*client).format = formatDeflate
	}
}

// Closed implements web.SocketHandler.
func (h socketHandler) Closed(s web.Socket, reason error) {
	h.hub.countLostIfSlowThenUnsubscribe(s.Conn(), reason)
}

// Message implements web.SocketHandler.
func (h socketHandler) Message(s web.Socket, kind web.Kind, message []byte) {
	conn := socketConn{h.hub, s, s.Value().(*client)}
	if kind != web.Text {
		conn.sendErrorAndCloseIfAbusive(&socketRequest{}, badRequestf("the message is binary; expected text, with binary data encoded as base64"))
		return
	}
	request, op, err := parseSocketRequest(message)
	if err == nil {
		err = op.handle(conn, request)
	}
	if err != nil {
		conn.sendErrorAndCloseIfAbusive(request, err)
	} else if conn.client.user != nil {
		conn.client.consecutiveErrors = 0
	}
}

type socketConn struct {
	hub    *Hub
	socket web.Socket
	client *client
}

func (r socketReply) encodeWithRequestID(request *socketRequest) []byte {
	r.ID = request.ID
	p, _ := json.Marshal(r) // strings and numbers: can't fail
	return p
}

func (s socketConn) sendReply(request *socketRequest, reply socketReply) {
	p := reply.encodeWithRequestID(request)
	if !s.client.repliesInMessageOrder {
		_ = s.socket.Write(web.Text, p)
		return
	}
	if err := s.socket.Ref().Send(web.Frame(web.Text, p)); errors.Is(err, tcp.ErrFull) {
		_ = s.socket.Close(closeTryAgainLater, "no space for replies")
	}
}

func (s socketConn) sendErrorAndCloseIfAbusive(request *socketRequest, err error) {
	if errors.Is(err, errBadRequest) {
		s.client.consecutiveErrors++
	}
	s.sendReply(request, socketReply{Op: "error", Error: err.Error()})
	if errors.Is(err, errWrongCredentials) {
		addrPort, _ := s.socket.Ref().RemoteAddr()
		if reason := s.hub.recordFailedLogin(s.socket.Conn().Server(), s.client, addrPort.Addr()); reason != nil {
			_ = s.socket.Close(web.ClosePolicy, reason.Error())
			return
		}
	}
	if s.client.consecutiveErrors >= maxBadRequests {
		_ = s.socket.Close(web.ClosePolicy, fmt.Sprintf("%d bad requests in a row", maxBadRequests))
	}
}

func (s socketConn) handlePing(request *socketRequest) error {
	s.sendReply(request, socketReply{Op: "pong"})
	return nil
}

func (s socketConn) handleAuth(request *socketRequest) error {
	var u *user
	var err error
	switch {
	case request.Token != nil && request.User == nil && request.Password == nil:
		u, err = s.hub.authenticateToken(*request.Token)
	case request.Token == nil && request.User != nil && request.Password != nil:
		u, err = s.hub.authenticatePassword(*request.User, *request.Password)
	default:
		err = badRequestf("auth needs either token, or user and password")
	}
	if err != nil {
		return err
	}
	s.client.user = u
	s.sendReply(request, socketReply{Op: "authenticated", User: u.name})
	return nil
}

func (s socketConn) handleCount(request *socketRequest) error {
	_, name, err := request.singleTopicOrPattern()
	if err != nil {
		return err
	}
	if err := s.hub.checkMayCountSubscribers(s.client.user, name); err != nil {
		return err
	}
	reply := func(ctx context.Context) socketReply {
		return socketReply{Op: "count", Topic: request.Topic, Subscribers: &s.hub.subscriberCountsOnAllHubs(ctx, Topic, []string{name})[0]}
	}
	if s.hub.Cluster == nil {
		s.sendReply(request, reply(context.Background()))
		return nil
	}
	return s.hub.pauseAndReplyInBackground(s.socket.Conn(), func(ctx context.Context) ([]byte, error) {
		return web.Frame(web.Text, reply(ctx).encodeWithRequestID(request)), nil
	})
}

func (s socketConn) handlePublish(request *socketRequest) error {
	_, name, err := request.singleTopicOrPattern()
	if err != nil {
		return err
	}
	var message []byte
	switch {
	case (request.Data == nil) == (request.Base64 == nil):
		return badRequestf("publish needs either data or base64")
	case request.Data != nil:
		message = []byte(*request.Data)
	default:
		if message, err = base64.StdEncoding.DecodeString(*request.Base64); err != nil {
			return badRequestf("base64: %v", err)
		}
	}
	spentBefore := s.hub.patternIndex.spentWork.Load()
	n, err := s.hub.authorizeAndPublish(s.client.user, s.client.countPublishWithinRate, Topic, name, message)
	if err != nil {
		return err
	}
	s.sendReply(request, socketReply{Op: "published", Topic: request.Topic, Receivers: &n})
	if s.hub.patternIndex.spentWork.Load()-spentBefore >= maxMatchWorkBeforeYield {
		c := s.socket.Conn()
		c.Pause() // until other connections have been served
		if s.socket.Ref().Do((*tcp.Conn).Resume) != nil {
			c.Resume()
		}
	}
	return nil
}

const maxMatchWorkBeforeYield = 10_000

func (s socketConn) handleSubscribe(request *socketRequest) error {
	k, name, err := request.singleTopicOrPattern()
	if err != nil {
		return err
	}
	if s.hub.keepsAny(k, name) && !s.client.isSubscribed(k, name) {
		return s.subscribeWithReplay(request, k, name)
	}
	if request.Since != nil && !s.client.isSubscribed(k, name) {
		return badRequestf("since is %.60q, but the messages of %.100q are not kept; omit since", *request.Since, name)
	}
	return s.hub.subscribe(s.client, s.socket.Ref(), k, name, func(count int) {
		s.client.repliesInMessageOrder = true
		s.sendReply(request, socketReply{Op: "subscribed", Topic: request.Topic, Pattern: request.Pattern, Count: &count})
	})
}

// subscribeWithReplay subscribes to a topic or pattern, and sends the stored messages after the request's position.
func (s socketConn) subscribeWithReplay(request *socketRequest, kind Kind, name string) error {
	var since Position
	if request.Since != nil {
		var err error
		if since, err = s.hub.Replay.parsePlausiblePosition(*request.Since); err != nil {
			return badRequestf("since: %w", err)
		}
	}
	t, err := s.hub.authorizeAndRecordSubscription(s.client, s.socket.Ref(), kind, name, s.hub.Limits)
	if err != nil {
		return s.hub.countRefusal(err)
	}
	replay := &clientReplay{hub: s.hub, client: s.client, ref: s.socket.Ref(), topics: []*topic{t}, pos: since, closeClient: func(_ *tcp.Conn, reason error) {
		_ = s.socket.Close(closeTryAgainLater, reason.Error())
	}}
	start, known := replay.initStartPositionAndLastValues()
	count := s.client.subscriptionCountForConfirmation(kind)
	reply := socketReply{Op: "subscribed", Topic: request.Topic, Pattern: request.Pattern, Count: &count}
	if known {
		reply.Since = start.String()
	}
	s.client.repliesInMessageOrder = true
	s.sendReply(request, reply)
	if err := replay.replayNowOrInBackground(s.socket.Conn()); err != nil {
		_ = s.socket.Close(closeTryAgainLater, err.Error())
	}
	return nil
}

func (s socketConn) handleUnsubscribe(request *socketRequest) error {
	k, name, err := request.singleTopicOrPattern()
	if err != nil {
		return err
	}
	s.hub.unsubscribe(s.client, s.socket.Ref(), k, name)
	count := s.client.subscriptionCount()
	s.sendReply(request, socketReply{Op: "unsubscribed", Topic: request.Topic, Pattern: request.Pattern, Count: &count})
	return nil
}
