package hub

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/tcp"
)

func TestInvalidClientStateRejected(t *testing.T) {
	good := []byte{clientStateVersion, byte(formatRESP3), 1, 0, 3, 'a', 'n', 'n', 0}
	users := mustReadUsers("user ann on >secret +@all &*\n")
	for n := 1; n < len(good); n++ {
		if err := (redisOrHTTPHandler{hub: &Hub{Users: users}}).Restore(nil, good[:n:n]); err == nil {
			t.Errorf("a state of %d of its %d bytes is taken", n, len(good))
		}
	}
	for wrong, is := range map[int]byte{0: clientStateVersion + 1, 1: byte(formatWebSocket)} {
		bad := slices.Clone(good)
		bad[wrong] = is
		if err := (redisOrHTTPHandler{hub: &Hub{Users: users}}).Restore(nil, bad); err == nil {
			t.Errorf("a state with byte %d wrong is taken", wrong)
		}
	}
	if _, err := (&Hub{Users: users}).decodeSavedClientAndFindUser(good, formatWebSocket, formatEvents); !errors.Is(err, errBadState) {
		t.Errorf("a state of a client of the Redis protocol: %v, want %v", err, errBadState)
	}
}

// FuzzClientState decodes arbitrary client states. Accepted ones must encode to an equivalent state and leave no
// subscriptions behind.
func FuzzClientState(f *testing.F) {
	some := &savedClient{client: client{format: formatEvents, repliesInMessageOrder: true, user: &user{name: "u"}, firstTopic: &topic{name: "a"}}, flagsOrErrors: 3, name: "n"}
	some.client.addSubscribedTopic(&topic{name: "b*", kind: Pattern})
	f.Add(some.appendState(nil))
	f.Add([]byte{clientStateVersion, byte(formatRESP3), 1, 0, 1, 'u', 0, byte(Sharded), 1, 's'})
	f.Add([]byte{clientStateVersion, byte(formatEvents), 1, 0, 1, 'u', 0, 0, 1, 's', 0, 1, 's', 0, 1, 's'}) // three times the same
	f.Fuzz(func(t *testing.T, state []byte) {
		h := &Hub{}
		s, err := h.decodeSavedClientAndFindUser(state, formatRESP2, formatEvents)
		if err != nil {
			return
		}
		c := s.copyClient()
		err = h.reauthorizeAndRestoreSubscriptions(c, tcp.Ref{}, &s.subscriptions)
		if err == nil {
			again, err := h.decodeSavedClientAndFindUser((&savedClient{client: *c, flagsOrErrors: s.flagsOrErrors, name: s.name}).appendState(nil), s.format, s.format)
			if err != nil || again.format != s.format || again.repliesInMessageOrder != s.repliesInMessageOrder || again.flagsOrErrors != s.flagsOrErrors || again.name != s.name {
				t.Errorf("%q: read again: %+v, %v; want %+v", state, again, err, s)
			}
			other := again.copyClient()
			if err := h.reauthorizeAndRestoreSubscriptions(other, tcp.Ref{}, &again.subscriptions); err != nil || other.subscriptionCount() != c.subscriptionCount() {
				t.Errorf("%q: %d subscriptions are saved, and %d restored, %v", state, c.subscriptionCount(), other.subscriptionCount(), err)
			}
			h.unsubscribeAllAndStopReplay(other, tcp.Ref{})
		}
		h.unsubscribeAllAndStopReplay(c, tcp.Ref{})
		if n := h.subscriptions.Load(); n != 0 {
			t.Errorf("%q: %d subscriptions are left", state, n)
		}
	})
}

func mustReadUsers(text string) *Users {
	u, err := ReadUsers(strings.NewReader(text))
	if err != nil {
		panic(err)
	}
	return u
}
