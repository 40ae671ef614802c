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

// subprotocol is what is spoken on WebSockets, also where no subprotocol was agreed on: each
// message is a JSON object with its op. A client's may have an id, a number or a string, which
// the reply to it has, too:
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
// count is how many subscriptions the client has. A message to publish that is no text comes as
// base64 instead of data; auth may have user and password instead of token. What can't be done
// is answered with {"op":"error","error":"..."}, and messages are as event has them.
//
// Messages of topics that Hub.Replay keeps have an id, and subscribed says since which id all are going to
// come: that of the request, or the newest. Where some of them are gone there is, before the others,
// {"op":"gap","topic":"a","id":"k3-9"}, with the last id that may be missing.
//
// Once a client has subscribed, replies and messages come in order: subscribed before the first
// message, and none behind unsubscribed.
const subprotocol = "myriad.hub.v1"

const (
	// maxMistakes is how many messages in a row may be no valid request, or a wrong
	// credential, before the socket is closed.
	maxMistakes = 16
	// maxID is the most bytes of an id.
	maxID = 64
	// closeTryAgain is a close code that RFC 6455 has no name for: the IANA's registry does.
	closeTryAgain = 1013
)

// socketRequest is a client's message.
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

// socketReply is the answer to it.
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

// socketOp is what a request may ask for.
type socketOp struct {
	fields []string // that it may have, beside op and id
	do     func(socketCall, *socketRequest) error
}

var socketOps = map[string]socketOp{
	"auth":        {[]string{"token", "user", "password"}, socketCall.auth},
	"count":       {[]string{"topic"}, socketCall.count},
	"ping":        {nil, socketCall.ping},
	"publish":     {[]string{"topic", "data", "base64"}, socketCall.publish},
	"subscribe":   {[]string{"topic", "pattern", "since"}, socketCall.subscribe},
	"unsubscribe": {[]string{"topic", "pattern"}, socketCall.unsubscribe},
}

// errMistake is wrapped by what is wrong with a request by itself.
var errMistake = errors.New("bad request")

func mistake(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errMistake}, args...)...)
}

// parseRequest reads a request and says what is wrong with it; its id is there as far as it is known.
func parseRequest(message []byte) (*socketRequest, socketOp, error) {
	q := new(socketRequest)
	in := json.NewDecoder(bytes.NewReader(message))
	in.DisallowUnknownFields()
	err := in.Decode(q)
	if err == nil {
		if _, rest := in.Token(); rest != io.EOF {
			err = errors.New("something follows the object")
		}
	}
	if err != nil {
		var partial struct{ ID json.RawMessage }
		_ = json.Unmarshal(message, &partial)
		q.ID = partial.ID
	}
	if string(q.ID) == "null" {
		q.ID = nil
	}
	if !validID(q.ID) {
		q.ID = nil
		err = errors.Join(err, fmt.Errorf("id is to be a number or a string, of at most %d bytes", maxID))
	}
	if err != nil {
		return q, socketOp{}, mistake("%s; expected an object such as %s", problem(err), `{"op":"subscribe","topic":"a"}`)
	}
	op, ok := socketOps[q.Op]
	if !ok {
		return q, op, mistake("op is %.40q; expected one of %s", q.Op, strings.Join(slices.Sorted(maps.Keys(socketOps)), ", "))
	}
	for _, name := range q.fields() {
		if !slices.Contains(op.fields, name) {
			return q, op, mistake("%s has no %s", q.Op, name)
		}
	}
	return q, op, nil
}

// problem is an error of package json in the words of the protocol.
func problem(err error) string {
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return "the message is a JSON " + wrong.Value
	case errors.As(err, &wrong):
		return fmt.Sprintf("%.40s is a JSON %s, and is to be a string", wrong.Field, wrong.Value)
	case err == io.EOF, err == io.ErrUnexpectedEOF:
		return "the JSON is not whole"
	}
	text := strings.ReplaceAll(strings.TrimPrefix(err.Error(), "json: "), "\n", "; ")
	return fmt.Sprintf("%.200s", text)
}

// validID says whether an id is none, a number or a string.
func validID(id json.RawMessage) bool {
	return len(id) == 0 || len(id) <= maxID && (id[0] == '"' || id[0] == '-' || '0' <= id[0] && id[0] <= '9')
}

// fields are the names of what the request has, beside op and id.
func (q *socketRequest) fields() (names []string) {
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

// target is what a request is to subscribe to.
func (q *socketRequest) target() (Kind, string, error) {
	switch {
	case q.Topic != nil && q.Pattern == nil:
		return Topic, *q.Topic, nil
	case q.Topic == nil && q.Pattern != nil:
		return Pattern, *q.Pattern, nil
	}
	return 0, "", mistake("%s is to have either topic or pattern", q.Op)
}

func (f *front) socket(w http.ResponseWriter, r *http.Request) {
	q, ok := f.parameters(w, r)
	if !ok {
		return
	}
	u, err := f.userOf(r, q)
	if err != nil {
		f.refuseLogin(w, r, err)
		return
	}
	_ = f.sockets.Upgrade(w, r, &client{format: socket, user: u})
}

// socketHandler is the web.SocketHandler of all sockets.
type socketHandler struct{ *front }

// Opened implements web.SocketHandler.
func (socketHandler) Opened(web.Socket) {}

// Closed implements web.SocketHandler.
func (h socketHandler) Closed(s web.Socket, why error) {
	h.hub.ended(s.Value().(*client), s.Conn(), why)
}

// Message implements web.SocketHandler.
func (h socketHandler) Message(s web.Socket, kind web.Kind, message []byte) {
	in := socketCall{h.hub, s, s.Value().(*client)}
	if kind != web.Text {
		in.fail(&socketRequest{}, mistake("the message is binary; expected text, and base64 for what is none"))
		return
	}
	q, op, err := parseRequest(message)
	if err == nil {
		err = op.do(in, q)
	}
	if err != nil {
		in.fail(q, err)
	} else if in.client.user != nil {
		in.client.mistakes = 0
	}
}

// socketCall is a socket during the call for a request.
type socketCall struct {
	hub    *Hub
	socket web.Socket
	client *client
}

// encode writes the reply to a request.
func (r socketReply) encode(q *socketRequest) []byte {
	r.ID = q.ID
	p, _ := json.Marshal(r) // of strings and numbers, which can't fail
	return p
}

// tell sends the reply to a request.
func (s socketCall) tell(q *socketRequest, r socketReply) {
	p := r.encode(q)
	if !s.client.ordered {
		_ = s.socket.Write(web.Text, p)
		return
	}
	if err := s.socket.Ref().Send(web.Frame(web.Text, p)); errors.Is(err, tcp.ErrFull) {
		_ = s.socket.Close(closeTryAgain, "there is no room for replies")
	}
}

// fail tells of an error, and closes the socket if there were too many mistakes.
func (s socketCall) fail(q *socketRequest, err error) {
	if errors.Is(err, errMistake) {
		s.client.mistakes++
	}
	s.tell(q, socketReply{Op: "error", Error: err.Error()})
	if errors.Is(err, errCredential) {
		from, _ := s.socket.Ref().RemoteAddr()
		if why := s.hub.failedLogin(s.socket.Conn().Server(), s.client, from.Addr()); why != nil {
			_ = s.socket.Close(web.ClosePolicy, why.Error())
			return
		}
	}
	if s.client.mistakes >= maxMistakes {
		_ = s.socket.Close(web.ClosePolicy, fmt.Sprintf("%d mistakes in a row", maxMistakes))
	}
}

func (s socketCall) ping(q *socketRequest) error {
	s.tell(q, socketReply{Op: "pong"})
	return nil
}

func (s socketCall) auth(q *socketRequest) error {
	var u *user
	var err error
	switch {
	case q.Token != nil && q.User == nil && q.Password == nil:
		u, err = s.hub.token(*q.Token)
	case q.Token == nil && q.User != nil && q.Password != nil:
		u, err = s.hub.login(*q.User, *q.Password)
	default:
		err = mistake("auth is to have either token, or user and password")
	}
	if err != nil {
		return err
	}
	s.client.user = u
	s.tell(q, socketReply{Op: "authenticated", User: u.name})
	return nil
}

func (s socketCall) count(q *socketRequest) error {
	_, name, err := q.target()
	if err != nil {
		return err
	}
	if err := s.hub.mayCount(s.client.user, name); err != nil {
		return err
	}
	reply := func(ctx context.Context) socketReply {
		return socketReply{Op: "count", Topic: q.Topic, Subscribers: &s.hub.allSubscribers(ctx, Topic, []string{name})[0]}
	}
	if s.hub.Cluster == nil {
		s.tell(q, reply(context.Background()))
		return nil
	}
	return s.hub.later(s.socket.Conn(), func(ctx context.Context) ([]byte, error) {
		return web.Frame(web.Text, reply(ctx).encode(q)), nil
	})
}

func (s socketCall) publish(q *socketRequest) error {
	_, name, err := q.target()
	if err != nil {
		return err
	}
	var message []byte
	switch {
	case (q.Data == nil) == (q.Base64 == nil):
		return mistake("publish is to have either data or base64")
	case q.Data != nil:
		message = []byte(*q.Data)
	default:
		if message, err = base64.StdEncoding.DecodeString(*q.Base64); err != nil {
			return mistake("base64: %v", err)
		}
	}
	spent := s.hub.index.spent.Load()
	if err = s.hub.authorise(s.client.user, s.client.mayPublishNow, Topic, name, message); err != nil {
		return err
	}
	n, err := s.hub.fanOut(Topic, name, message)
	if err != nil {
		return err
	}
	s.tell(q, socketReply{Op: "published", Topic: q.Topic, Receivers: &n})
	if s.hub.index.spent.Load()-spent >= maxMatchWork {
		s.yield()
	}
	return nil
}

// maxMatchWork is the work with the patterns of one publish after which other connections have their turn.
const maxMatchWork = 10_000

// yield lets other connections have their turn before the next message.
func (s socketCall) yield() {
	c := s.socket.Conn()
	c.Pause()
	if s.socket.Ref().Do((*tcp.Conn).Resume) != nil {
		c.Resume()
	}
}

func (s socketCall) subscribe(q *socketRequest) error {
	k, name, err := q.target()
	if err != nil {
		return err
	}
	if s.hub.keeps(k, name) && !s.client.subscribed(k, name) {
		return s.resume(q, k, name)
	}
	if q.Since != nil && !s.client.subscribed(k, name) {
		return mistake("the messages of %.100q are not kept, so there is nothing since %.60q", name, *q.Since)
	}
	return s.hub.subscribe(s.client, s.socket.Ref(), k, name, func(count int) {
		s.client.ordered = true
		s.tell(q, socketReply{Op: "subscribed", Topic: q.Topic, Pattern: q.Pattern, Count: &count})
	})
}

// resume subscribes to what is kept, with what is missed since a position.
func (s socketCall) resume(q *socketRequest, k Kind, name string) error {
	var since Position
	if q.Since != nil {
		var err error
		if since, err = s.hub.Replay.position(*q.Since); err != nil {
			return mistake("since: %w", err)
		}
	}
	t, err := s.hub.join(s.client, s.socket.Ref(), k, name, s.hub.Limits)
	if err != nil {
		return s.hub.refuse(err)
	}
	r := &resumption{h: s.hub, client: s.client, ref: s.socket.Ref(), topics: []*topic{t}, at: since, fail: func(_ *tcp.Conn, why error) {
		_ = s.socket.Close(closeTryAgain, why.Error())
	}}
	at, known := r.begin()
	count := s.client.counted(k)
	reply := socketReply{Op: "subscribed", Topic: q.Topic, Pattern: q.Pattern, Count: &count}
	if known {
		reply.Since = at.String()
	}
	s.client.ordered = true
	s.tell(q, reply)
	if err := r.start(s.socket.Conn()); err != nil {
		_ = s.socket.Close(closeTryAgain, err.Error())
	}
	return nil
}

func (s socketCall) unsubscribe(q *socketRequest) error {
	k, name, err := q.target()
	if err != nil {
		return err
	}
	s.hub.unsubscribe(s.client, s.socket.Ref(), k, name)
	count := s.client.count()
	s.tell(q, socketReply{Op: "unsubscribed", Topic: q.Topic, Pattern: q.Pattern, Count: &count})
	return nil
}
