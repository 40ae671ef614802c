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

// A TicketKeyRing holds the keys of a server's session tickets, so that another process can continue to use the keys.
// (crypto/tls does not disclose the keys that it generates.) The ring follows the schedule of crypto/tls: a key
// encrypts tickets for at most a day and decrypts them for a week. A TicketKeyRing is safe for concurrent use.
type TicketKeyRing struct {
	cfg     *tls.Config
	renewAt atomic.Int64 // when to generate a new key, in Unix nanoseconds

	// If shared is set, the keys are derived from those that several processes share, for this listener.
	shared   *SharedTicketKeys
	listener int

	mu   sync.Mutex
	keys []TicketKey // newest first
}

// TicketKey is a ticket encryption key. It must be kept as secret as the content of sessions.
type TicketKey struct {
	Key  []byte // 32 bytes
	Made time.Time
}

const (
	ticketKeyUse  = 24 * time.Hour
	ticketKeyLife = 7 * ticketKeyUse
	ticketKeySize = 32
	// MaxTicketKeys is the maximum number of keys at a time.
	MaxTicketKeys = int(ticketKeyLife/ticketKeyUse) + 1
)

// NewTicketKeyRingIfShareable generates ticket keys and adds inheritedKeys, the keys of another process. It sets them
// in cfg, which the caller must own. The result is nil if the user has set keys or ticket functions or disabled
// tickets. It is also nil if clients may have to present certificates, because another process may trust other
// certificates.
func NewTicketKeyRingIfShareable(cfg *tls.Config, inheritedKeys []TicketKey) (ringOrNil *TicketKeyRing) {
	return initKeysIfShareable(&TicketKeyRing{cfg: cfg, keys: slices.Clone(inheritedKeys)})
}

// NewDerivedTicketKeyRing is like NewTicketKeyRingIfShareable, but derives the keys from shared ones. Different
// listeners get different keys.
func NewDerivedTicketKeyRing(cfg *tls.Config, shared *SharedTicketKeys, listener int) (ringOrNil *TicketKeyRing) {
	return initKeysIfShareable(&TicketKeyRing{cfg: cfg, shared: shared, listener: listener})
}

// initKeysIfShareable sets ticket keys in the configuration of t and returns t. It returns nil if another process must
// not use these keys; see NewTicketKeyRingIfShareable.
func initKeysIfShareable(t *TicketKeyRing) (ringOrNil *TicketKeyRing) {
	cfg := t.cfg
	if cfg.SessionTicketsDisabled || cfg.WrapSession != nil || cfg.UnwrapSession != nil || hasTicketKeysOrUnknown(cfg) ||
		cfg.ClientAuth != tls.NoClientCert || cfg.GetConfigForClient != nil {
		return nil
	}
	t.refreshKeysAndConfig(time.Now())
	return t
}

// hasTicketKeysOrUnknown reports whether the user has set keys. It reads an unexported field of tls.Config, because no
// method reports that. If a future version of Go renames the field, hasTicketKeysOrUnknown returns true.
func hasTicketKeysOrUnknown(cfg *tls.Config) bool {
	_, _ = cfg.DecryptTicket(nil, tls.ConnectionState{}) // makes a key in the deprecated field appear there as well
	set := reflect.ValueOf(cfg).Elem().FieldByName("sessionTicketKeys")
	return set.Kind() != reflect.Slice || set.Len() > 0
}

// RenewIfDue generates a new key if the current one has been used for a day. Call it before each handshake.
func (t *TicketKeyRing) RenewIfDue() {
	if now := time.Now(); now.UnixNano() >= t.renewAt.Load() {
		t.refreshKeysAndConfig(now)
	}
}

// refreshKeysAndConfig renews the keys if necessary, or derives them from the shared keys. It then sets them in the
// configuration.
func (t *TicketKeyRing) refreshKeysAndConfig(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared != nil {
		t.keys = deriveTicketKeys(t.shared.RenewIfDue(now), t.listener)
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

// dropExpiredAndAddKeyIfDue removes keys that are invalid or too old, and adds a new key if the newest was used for a
// day.
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
