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

// TicketKeyRing holds the session ticket keys of a server. If another process inherits the keys, clients can resume
// their TLS sessions in that process. A key encrypts tickets for at most a day and decrypts tickets for a week. A
// TicketKeyRing is safe for concurrent use.
type TicketKeyRing struct {
	cfg     *tls.Config
	renewAt atomic.Int64 // when to generate a new key, in Unix nanoseconds

	// If shared is set, the keys for this listener are derived from the shared keys.
	shared   *SharedTicketKeys
	listener int

	mu   sync.Mutex
	keys []TicketKey // newest first
}

// TicketKey is a key that encrypts session tickets. Keep it secret: anyone who has it can decrypt resumed sessions.
type TicketKey struct {
	Key  []byte // 32 bytes
	Made time.Time
}

const (
	ticketKeyUse  = 24 * time.Hour
	ticketKeyLife = 7 * ticketKeyUse
	ticketKeySize = 32
	// MaxTicketKeys is the maximum number of keys that are valid at the same time.
	MaxTicketKeys = int(ticketKeyLife/ticketKeyUse) + 1
)

// NewTicketKeyRingIfShareable returns a ring with inheritedKeys, which are the keys of another process, and sets the
// keys in cfg. If all inherited keys are a day old or older, or if there are none, it generates a new key. Nothing else
// may use cfg yet. NewTicketKeyRingIfShareable returns nil and sets no keys in these cases:
//
//   - The user has set ticket keys, has customized tickets (WrapSession, UnwrapSession) or has disabled tickets.
//   - The server may require client certificates (ClientAuth, GetConfigForClient). A ticket must then not be valid in
//     another process, because that process may trust other certificates.
func NewTicketKeyRingIfShareable(cfg *tls.Config, inheritedKeys []TicketKey) (ringOrNil *TicketKeyRing) {
	return initKeysIfShareable(&TicketKeyRing{cfg: cfg, keys: slices.Clone(inheritedKeys)})
}

// NewDerivedTicketKeyRing is like NewTicketKeyRingIfShareable, but derives the keys from the shared keys and the
// listener's number. Each listener therefore has different keys.
func NewDerivedTicketKeyRing(cfg *tls.Config, shared *SharedTicketKeys, listener int) (ringOrNil *TicketKeyRing) {
	return initKeysIfShareable(&TicketKeyRing{cfg: cfg, shared: shared, listener: listener})
}

// initKeysIfShareable sets ticket keys in t.cfg and returns t. If t.cfg rules out keys that another process also uses,
// it returns nil; see NewTicketKeyRingIfShareable.
func initKeysIfShareable(t *TicketKeyRing) (ringOrNil *TicketKeyRing) {
	cfg := t.cfg
	if cfg.SessionTicketsDisabled || cfg.WrapSession != nil || cfg.UnwrapSession != nil || hasTicketKeysOrUnknown(cfg) ||
		cfg.ClientAuth != tls.NoClientCert || cfg.GetConfigForClient != nil {
		return nil
	}
	t.refreshKeysAndConfig(time.Now())
	return t
}

// hasTicketKeysOrUnknown reports whether the user has set ticket keys in cfg. It also returns true if it cannot find
// out.
func hasTicketKeysOrUnknown(cfg *tls.Config) bool {
	_, _ = cfg.DecryptTicket(nil, tls.ConnectionState{}) // copies SessionTicketKey to sessionTicketKeys
	set := reflect.ValueOf(cfg).Elem().FieldByName("sessionTicketKeys")
	return set.Kind() != reflect.Slice || set.Len() > 0
}

// RenewIfDue generates a new key if the newest key is a day old. Call it before each handshake.
func (t *TicketKeyRing) RenewIfDue() {
	if now := time.Now(); now.UnixNano() >= t.renewAt.Load() {
		t.refreshKeysAndConfig(now)
	}
}

func (t *TicketKeyRing) refreshKeysAndConfig(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared != nil {
		t.keys = deriveTicketKeys(t.shared.RenewIfDueAndGet(now), t.listener)
	} else {
		t.keys = dropExpiredAndAddKeyIfDue(t.keys, now)
	}
	var all [][ticketKeySize]byte
	for _, k := range t.keys {
		all = append(all, [ticketKeySize]byte(k.Key))
	}
	t.cfg.SetSessionTicketKeys(all)
	t.renewAt.Store(t.keys[0].Made.Add(ticketKeyUse).UnixNano())
}

// dropExpiredAndAddKeyIfDue removes invalid and expired keys, and adds a new key if the newest is a day old.
func dropExpiredAndAddKeyIfDue(keys []TicketKey, now time.Time) []TicketKey {
	keys = slices.DeleteFunc(keys, func(k TicketKey) bool {
		return len(k.Key) != ticketKeySize || k.Made.After(now) || now.Sub(k.Made) >= ticketKeyLife
	})
	if len(keys) == 0 || now.Sub(keys[0].Made) >= ticketKeyUse {
		key := make([]byte, ticketKeySize)
		_, _ = rand.Read(key) // never fails
		keys = slices.Insert(keys, 0, TicketKey{key, now})
	}
	return keys[:min(len(keys), MaxTicketKeys)]
}

func (t *TicketKeyRing) Keys() []TicketKey {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.keys)
}
