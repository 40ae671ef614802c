package secure

import (
	"crypto/rand"
	"crypto/tls"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A Tickets has the keys of a server's session tickets, so that another process can go on with
// them: those that crypto/tls makes itself can't be read. It follows the times of crypto/tls: a
// ticket is written with a key of at most a day, and read for a week. Its methods are safe for
// concurrent use.
type TicketKeyRing struct {
	cfg     *tls.Config
	renewAt atomic.Int64 // when a new key is to be made, in Unix nanoseconds

	mu   sync.Mutex
	keys []TicketKey // the newest first
}

// TicketKey is one of them. It is as secret as the sessions.
type TicketKey struct {
	Key  []byte // of 32 bytes
	Made time.Time
}

const (
	ticketKeyUse  = 24 * time.Hour
	ticketKeyLife = 7 * ticketKeyUse
	ticketKeySize = 32
	// MaxTicketKeys is the most that there are at a time.
	MaxTicketKeys = int(ticketKeyLife/ticketKeyUse) + 1
)

// NewTicketKeyRing makes those of a configuration, which is the caller's own, with the keys of another
// process, if there are any. It gives nil where the user has made keys or tickets himself, or
// wants none, and where clients may have to show certificates: another process may trust others,
// and asks for them anew.
func NewTicketKeyRing(cfg *tls.Config, keys []TicketKey) *TicketKeyRing {
	if cfg.SessionTicketsDisabled || cfg.WrapSession != nil || cfg.UnwrapSession != nil || hasTicketKeys(cfg) ||
		cfg.ClientAuth != tls.NoClientCert || cfg.GetConfigForClient != nil {
		return nil
	}
	t := &TicketKeyRing{cfg: cfg, keys: slices.Clone(keys)}
	t.renewKeys(time.Now())
	return t
}

// hasTicketKeys says whether the user has set keys. No method of tls.Config tells; should its
// field have another name one day, then they may have been.
func hasTicketKeys(cfg *tls.Config) bool {
	_, _ = cfg.DecryptTicket(nil, tls.ConnectionState{}) // a key by the old field is there then, too
	set := reflect.ValueOf(cfg).Elem().FieldByName("sessionTicketKeys")
	return set.Kind() != reflect.Slice || set.Len() > 0
}

// RenewIfDue makes a new key if it is time for that. It is to be called before each handshake.
func (t *TicketKeyRing) RenewIfDue() {
	if now := time.Now(); now.UnixNano() >= t.renewAt.Load() {
		t.renewKeys(now)
	}
}

func (t *TicketKeyRing) renewKeys(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.keys = slices.DeleteFunc(t.keys, func(k TicketKey) bool {
		return len(k.Key) != ticketKeySize || k.Made.After(now) || now.Sub(k.Made) >= ticketKeyLife
	})
	if len(t.keys) == 0 || now.Sub(t.keys[0].Made) >= ticketKeyUse {
		key := make([]byte, ticketKeySize)
		_, _ = rand.Read(key) // which does not fail
		t.keys = slices.Insert(t.keys, 0, TicketKey{key, now})
	}
	t.keys = t.keys[:min(len(t.keys), MaxTicketKeys)]
	var all [][ticketKeySize]byte
	for _, k := range t.keys {
		all = append(all, [ticketKeySize]byte(k.Key))
	}
	t.cfg.SetSessionTicketKeys(all)
	t.renewAt.Store(t.keys[0].Made.Add(ticketKeyUse).UnixNano())
}

// Keys gives the keys for another process.
func (t *TicketKeyRing) Keys() []TicketKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.keys)
}
