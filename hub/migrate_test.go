package hub

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/tcp"
)

// TestState has states refused that are cut off, of another version, or of another kind of client.
func TestState(t *testing.T) {
	good := []byte{stateVersion, byte(resp3), 1, 0, 3, 'a', 'n', 'n', 0}
	users := readUsers("user ann on >secret +@all &*\n")
	for n := 1; n < len(good); n++ {
		if err := (handler{hub: &Hub{Users: users}}).Restore(nil, good[:n:n]); err == nil {
			t.Errorf("a state of %d of its %d bytes is taken", n, len(good))
		}
	}
	for wrong, is := range map[int]byte{0: stateVersion + 1, 1: byte(socket)} {
		bad := slices.Clone(good)
		bad[wrong] = is
		if err := (handler{hub: &Hub{Users: users}}).Restore(nil, bad); err == nil {
			t.Errorf("a state with byte %d wrong is taken", wrong)
		}
	}
	if _, err := (&Hub{Users: users}).readClient(good, socket, stream); !errors.Is(err, errState) {
		t.Errorf("a state of a client of the Redis protocol: %v, want %v", err, errState)
	}
}

// FuzzState reads whatever another process may have sent of a client: what is taken is saved as the
// same again, and has all its subscriptions, until it leaves.
func FuzzState(f *testing.F) {
	some := &savedClient{client: client{format: stream, ordered: true, user: &user{name: "u"}, first: &topic{name: "a"}}, more: 3, name: "n"}
	some.client.add(&topic{name: "b*", kind: Pattern})
	f.Add(some.append(nil))
	f.Add([]byte{stateVersion, byte(resp3), 1, 0, 1, 'u', 0, byte(Sharded), 1, 's'})
	f.Add([]byte{stateVersion, byte(stream), 1, 0, 1, 'u', 0, 0, 1, 's', 0, 1, 's', 0, 1, 's'}) // one thrice
	f.Fuzz(func(t *testing.T, state []byte) {
		h := &Hub{}
		s, err := h.readClient(state, resp2, stream)
		if err != nil {
			return
		}
		c := s.alone()
		err = h.rejoin(c, tcp.Ref{}, &s.rest)
		if err == nil {
			again, err := h.readClient((&savedClient{client: *c, more: s.more, name: s.name}).append(nil), s.format, s.format)
			if err != nil || again.format != s.format || again.ordered != s.ordered || again.more != s.more || again.name != s.name {
				t.Errorf("%q: read again: %+v, %v; want %+v", state, again, err, s)
			}
			other := again.alone()
			if err := h.rejoin(other, tcp.Ref{}, &again.rest); err != nil || other.count() != c.count() {
				t.Errorf("%q: %d subscriptions are saved, and %d restored, %v", state, c.count(), other.count(), err)
			}
			h.closed(other, tcp.Ref{})
		}
		h.closed(c, tcp.Ref{})
		if n := h.subscriptions.Load(); n != 0 {
			t.Errorf("%q: %d subscriptions are left", state, n)
		}
	})
}

func readUsers(text string) *Users {
	u, err := ReadUsers(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	return u
}
