package secure

import (
	"crypto/tls"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// TestTicketKeys checks that keys are generated daily, used for a week, and passed on.
func TestTicketKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := NewTicketKeyRingIfShareable(&tls.Config{}, nil)
		oldest := first.Keys()[0]
		for day := 1; day <= 20; day++ {
			time.Sleep(ticketKeyUse - time.Second)
			before := first.Keys()
			if first.RenewIfDue(); !equalTicketKeys(before, first.Keys()) {
				t.Fatalf("day %d: a key is not used for a day", day)
			}
			time.Sleep(time.Second)
			first.RenewIfDue()
			keys := first.Keys()
			if equalTicketKeys(before[:1], keys[:1]) || len(keys) != min(day+1, MaxTicketKeys-1) {
				t.Fatalf("day %d: %d keys; want a new one, and all of the last week", day, len(keys))
			}
			if slices.ContainsFunc(keys, func(k TicketKey) bool { return equalTicketKeys([]TicketKey{k}, []TicketKey{oldest}) }) != (day < 7) {
				t.Errorf("day %d: the first key is in use: %v", day, day >= 7)
			}
			next := NewTicketKeyRingIfShareable(&tls.Config{}, keys)
			if !equalTicketKeys(next.Keys(), keys) {
				t.Fatalf("day %d: another process has other keys", day)
			}
		}
		future := TicketKey{make([]byte, ticketKeySize), time.Now().Add(time.Hour)}
		if keys := NewTicketKeyRingIfShareable(&tls.Config{}, []TicketKey{{make([]byte, 5), time.Now()}, future}).Keys(); len(keys) != 1 || len(keys[0].Key) != ticketKeySize || keys[0].Made != time.Now() {
			t.Errorf("from wrong keys are made %v; want a new one", keys)
		}
		many := slices.Repeat(first.Keys()[:1], 100)
		if n := len(NewTicketKeyRingIfShareable(&tls.Config{}, many).Keys()); n != MaxTicketKeys {
			t.Errorf("%d keys are taken, want %d at most", n, MaxTicketKeys)
		}
	})
}

func equalTicketKeys(a, b []TicketKey) bool {
	return slices.EqualFunc(a, b, func(a, b TicketKey) bool { return slices.Equal(a.Key, b.Key) && a.Made.Equal(b.Made) })
}

// TestTicketKeysOfTheUser checks that the user's settings are respected.
func TestTicketKeysOfTheUser(t *testing.T) {
	set := &tls.Config{}
	set.SetSessionTicketKeys([][32]byte{{1}})
	old := &tls.Config{}
	old.SessionTicketKey[0] = 1 //lint:ignore SA1019 some still set it
	for name, cfg := range map[string]*tls.Config{
		"keys":                set,
		"a key":               old,
		"no tickets":          {SessionTicketsDisabled: true},
		"tickets of his own":  {WrapSession: func(tls.ConnectionState, *tls.SessionState) ([]byte, error) { return nil, nil }},
		"client certificates": {ClientAuth: tls.RequestClientCert},
		"other configurations": {GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			return nil, nil
		}},
	} {
		if NewTicketKeyRingIfShareable(cfg.Clone(), nil) != nil {
			t.Errorf("with %s there are other keys", name)
		}
	}
	used := &tls.Config{}
	_, err := used.EncryptTicket(tls.ConnectionState{}, &tls.SessionState{})
	testkit.RequireNoError(t, err)
	if NewTicketKeyRingIfShareable(used.Clone(), nil) == nil {
		t.Error("keys that crypto/tls has made are taken for the user's")
	}
}

// TestSharedTicketKeys checks that processes with the same memory use the same keys, that a listener has keys of its
// own, and that unreadable keys are replaced.
func TestSharedTicketKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := make([]byte, SharedTicketKeysSize)
		newRing := func(listener int) *TicketKeyRing {
			return NewDerivedTicketKeyRing(&tls.Config{}, NewSharedTicketKeys(memory), listener)
		}
		a, b, other := newRing(0), newRing(0), newRing(1)
		for day := range 10 {
			for _, ring := range []*TicketKeyRing{a, b, other} {
				ring.RenewIfDue()
			}
			if want := min(day+1, MaxTicketKeys-1); len(a.Keys()) != want || !equalTicketKeys(a.Keys(), b.Keys()) || equalTicketKeys(a.Keys(), other.Keys()) {
				t.Fatalf("day %d: %d keys, equal %v, as the other listener's %v; want %d, true, false",
					day, len(a.Keys()), equalTicketKeys(a.Keys(), b.Keys()), equalTicketKeys(a.Keys(), other.Keys()), want)
			}
			time.Sleep(ticketKeyUse)
		}
		next := NewSharedTicketKeys(make([]byte, SharedTicketKeysSize))
		next.SetInitialKeys(NewSharedTicketKeys(memory).Keys())
		if !equalTicketKeys(next.Keys(), NewSharedTicketKeys(memory).Keys()) {
			t.Error("the successor's keys differ")
		}
		NewSharedTicketKeys(memory).page.version.Add(1) // as if a process had ended while it changed them
		if b.RenewIfDue(); len(b.Keys()) != 1 {
			t.Errorf("%d keys; want a new one", len(b.Keys()))
		}
	})
}
