package hub

import (
	"errors"
	"fmt"
	"math"

	"github.com/myriad-go/myriad/internal/saved"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// This file is how clients move to another process: see tcp.Server.Upgrade. Those of the Redis
// protocol, WebSockets and streams of events do, with their user, name and subscriptions, and
// HTTP connections between two requests.

// stateVersion is of the form of what is saved: the format, whether replies keep their order,
// what replies there are (or of a WebSocket, how many mistakes there were), the user and the
// client's name, and then for each subscription its kind and name.
const stateVersion = 1

var (
	errHalfDone = fmt.Errorf("%w: a command is half done", tcp.ErrSaveLater)
	errHalfSent = fmt.Errorf("%w: the client is sent what it has missed", tcp.ErrSaveLater)
	errState    = errors.New("the state of a client is cut off or of another version")
)

// savedClient is what is saved of a client.
type savedClient struct {
	client
	more byte // flags, or mistakes
	name string
	rest saved.Reader // its subscriptions
}

// alone is the client in memory of its own.
func (s *savedClient) alone() *client {
	c := s.client
	return &c
}

func (s *savedClient) append(to []byte) []byte {
	ordered := byte(0)
	if s.ordered {
		ordered = 1
	}
	to = append(to, stateVersion, byte(s.format), ordered, s.more)
	user := ""
	if s.user != nil {
		user = s.user.name
	}
	to = saved.AppendString(saved.AppendString(to, user), s.name)
	for k := range Kind(kinds) {
		for _, topic := range s.names(k) {
			to = saved.AppendString(append(to, byte(k)), topic)
		}
	}
	return to
}

// readClient reads what append has written, of a client that has one of some formats, up to the
// subscriptions.
func (h *Hub) readClient(state []byte, first, last format) (s savedClient, err error) {
	r := saved.NewReader(state)
	version := r.Byte()
	s.client = client{format: format(r.Byte()), ordered: r.Byte() != 0}
	s.more = r.Byte()
	user := r.String()
	s.name = r.String()
	s.rest = r
	switch {
	case version != stateVersion || !r.Complete() || s.format < first || s.format > last:
		return s, errState
	case user != "":
		if s.user = h.named(user); s.user == nil {
			return s, fmt.Errorf("%w: there is no user %q any more", errDenied, user)
		}
	}
	return s, nil
}

// rejoin subscribes a client to what it was subscribed to in another process. There its patterns may have cost
// less, which depends on the order in which they came.
func (h *Hub) rejoin(c *client, ref tcp.Ref, r *saved.Reader) error {
	limits := h.Limits
	limits.MaxPatternCost, limits.MaxPatternWork = math.MaxInt32/2, math.MaxInt32
	for len(r.Remaining()) > 0 {
		k := Kind(r.Byte())
		name := r.String()
		if !r.Complete() || k >= kinds || c.subscribed(k, name) {
			return errState
		}
		t, err := h.join(c, ref, k, name, limits)
		if err != nil {
			return fmt.Errorf("topic %q: %w", name, err)
		}
		t.group(c.format).Add(ref)
	}
	return nil
}

// Save implements tcp.Migrator.
func (h handler) Save(c *tcp.Conn, to []byte) ([]byte, error) {
	s, ok := c.Value().(*respSession)
	if !ok {
		return to, nil // it has not said anything yet
	}
	if int(s.mistakes) >= h.hub.Limits.maxFailedLogins() {
		return nil, errHalfDone // it is about to close
	}
	all := savedClient{client: s.client, more: byte(s.flags)}
	if s.details != nil {
		if s.details.done > 0 {
			return nil, errHalfDone
		}
		all.name = s.details.name
	}
	return all.append(to), nil
}

// Restore implements tcp.Migrator.
func (h handler) Restore(c *tcp.Conn, state []byte) error {
	if len(state) == 0 {
		return nil
	}
	all, err := h.hub.readClient(state, resp2, resp3)
	if err != nil {
		return err
	}
	s := &respSession{client: all.client, flags: flags(all.more)}
	if all.name != "" {
		s.details = &details{name: all.name}
	}
	c.SetValue(s)
	return h.hub.rejoin(&s.client, c.Ref(), &all.rest)
}

// SaveHandler implements tcp.HandlerMigrator: clients that speak HTTP have its handlers.
func (h handler) SaveHandler(c *tcp.Conn, of tcp.Handler, to []byte) ([]byte, error) {
	return h.hub.http().SaveHandler(c, of, to)
}

// RestoreHandler implements tcp.HandlerMigrator.
func (h handler) RestoreHandler(c *tcp.Conn, state []byte) error {
	return h.hub.http().RestoreHandler(c, state)
}

// Save implements web.SocketMigrator.
func (h socketHandler) Save(s web.Socket, to []byte) ([]byte, error) {
	c := s.Value().(*client)
	if c.resumes() {
		return nil, errHalfSent
	}
	return (&savedClient{client: *c, more: c.mistakes}).append(to), nil
}

// Restore implements web.SocketMigrator.
func (h socketHandler) Restore(s web.Socket, state []byte) error {
	all, err := h.hub.readClient(state, socket, socket)
	c := all.alone()
	c.mistakes = all.more
	s.SetValue(c) // for Closed, in any case
	if err == nil {
		err = h.hub.rejoin(c, s.Ref(), &all.rest)
	}
	if errors.Is(err, errDenied) {
		err = &web.CloseError{Code: web.ClosePolicy, Reason: err.Error()}
	}
	return err
}

// streamSave is web.Events.Save.
func (f *front) streamSave(c *tcp.Conn, to []byte) ([]byte, error) {
	own := c.Value().(*client)
	if own.resumes() {
		return nil, errHalfSent
	}
	return (&savedClient{client: *own}).append(to), nil
}

// streamRestore is web.Events.Restore.
func (f *front) streamRestore(c *tcp.Conn, state []byte) error {
	all, err := f.hub.readClient(state, stream, stream)
	own := all.alone()
	c.SetValue(own) // for Closed, in any case
	if err != nil {
		return err
	}
	return f.hub.rejoin(own, c.Ref(), &all.rest)
}
