package hub

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/myriad-go/myriad"
)

// This file is how subscribers move to another process: see myriad.Server.Upgrade. Clients of
// the Redis protocol do, with their user, name and subscriptions. WebSockets and streams of
// events stay: they are drained, and connect again. Last values stay, too.

// stateVersion is of the form of what Save writes: the format, whether replies keep their order,
// what replies there are, the user and the client's name, and then for each subscription its
// kind and name. Strings have their length before them.
const stateVersion = 1

var (
	errHalfDone = errors.New("a command is half done")
	errState    = errors.New("the state of a subscriber is cut off or of another version")
)

// Save implements myriad.Migrator.
func (h handler) Save(c *myriad.Conn, to []byte) ([]byte, error) {
	s, ok := c.Value().(*respSession)
	if !ok {
		return to, nil // it has not said anything yet
	}
	name := ""
	if s.details != nil {
		if s.details.done > 0 {
			return nil, errHalfDone
		}
		name = s.details.name
	}
	ordered := byte(0)
	if s.ordered {
		ordered = 1
	}
	to = append(to, stateVersion, byte(s.format), ordered, byte(s.flags))
	user := ""
	if s.user != nil {
		user = s.user.name
	}
	to = appendString(appendString(to, user), name)
	for k := range kind(kinds) {
		for _, topic := range s.names(k) {
			to = appendString(append(to, byte(k)), topic)
		}
	}
	return to, nil
}

// Restore implements myriad.Migrator.
func (h handler) Restore(c *myriad.Conn, state []byte) error {
	if len(state) == 0 {
		return nil
	}
	if len(state) < 4 || state[0] != stateVersion || state[1] >= formats {
		return errState
	}
	s := &respSession{client: client{format: format(state[1]), ordered: state[2] != 0}, flags: flags(state[3])}
	user, rest, err := readString(state[4:])
	if err != nil {
		return err
	}
	name, rest, err := readString(rest)
	if err != nil {
		return err
	}
	if user != "" {
		if s.user = h.hub.named(user); s.user == nil {
			return fmt.Errorf("%w: there is no user %q any more", errDenied, user)
		}
	}
	if name != "" {
		s.details = &details{name: name}
	}
	c.SetValue(s)
	for len(rest) > 0 {
		k := kind(rest[0])
		var topic string
		if topic, rest, err = readString(rest[1:]); err != nil || k >= kinds {
			return errState
		}
		if err := h.hub.rejoin(&s.client, c.Ref(), k, topic); err != nil {
			return fmt.Errorf("topic %q: %w", topic, err)
		}
	}
	return nil
}

// rejoin is subscribe for one that was subscribed in another process.
func (h *Hub) rejoin(c *client, ref myriad.Ref, k kind, name string) error {
	t, err := h.join(c, k, name)
	if err != nil {
		return err
	}
	h.enlist(c, t)
	t.group(c.format).Add(ref)
	return nil
}

func appendString(to []byte, s string) []byte {
	return append(binary.AppendUvarint(to, uint64(len(s))), s...)
}

func readString(p []byte) (s string, rest []byte, err error) {
	n, size := binary.Uvarint(p)
	if size <= 0 || n > uint64(len(p)-size) {
		return "", nil, errState
	}
	return string(p[size : size+int(n)]), p[size+int(n):], nil
}
