package hub

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/tcp"
)

var (
	errDenied           = errors.New("no permission")
	errWrongCredentials = errors.New("wrong user name or password")
)

// ErrRevoked is the close reason of clients whose user has lost rights. See Hub.Enforce.
var ErrRevoked = errors.New("hub: the user was removed or lost the right to a subscription")

// Users contains the users of a Hub and their rights, read from a Redis ACL file. See docs/hub.md for the supported
// rules. The zero value contains no users, so every client is rejected. Methods are safe for concurrent use.
type Users struct {
	reloadMu sync.Mutex
	current  atomic.Pointer[roster]
}

type roster struct {
	byName     map[string]*user
	byPassword map[passwordHash]*user
}

type passwordHash [sha256.Size]byte

// ReadUsers reads an ACL file of at most 64 MiB and 1,000,000 users. Errors include the line number.
func ReadUsers(r io.Reader) (*Users, error) {
	u := new(Users)
	return u, u.Reload(r)
}

// Reload reads another ACL file and replaces all users. If it fails, the users are unchanged. Changed rights apply to
// later actions of connected clients. To close clients whose subscriptions are no longer permitted, call Hub.Enforce.
func (u *Users) Reload(r io.Reader) error {
	accounts, byPassword, err := parseACLFile(r, defaultACLLimits)
	if err != nil {
		return err
	}
	u.reloadMu.Lock()
	defer u.reloadMu.Unlock()
	old, next := u.currentRoster(), &roster{make(map[string]*user, len(accounts)), make(map[passwordHash]*user, len(byPassword))}
	for name, a := range accounts {
		target := old.byName[name]
		if target == nil {
			target = &user{name: name}
		}
		target.account.Store(a)
		next.byName[name] = target
	}
	for d, name := range byPassword {
		next.byPassword[d] = next.byName[name]
	}
	u.current.Store(next)
	for name, target := range old.byName {
		if next.byName[name] == nil {
			target.account.Store(nil)
		}
	}
	return nil
}

func (u *Users) currentRoster() *roster {
	if r := u.current.Load(); r != nil {
		return r
	}
	return new(roster)
}

// user is the identity of a client. Every action looks up the rights in the user's current account, so changes apply
// immediately. A client whose user is nil has not authenticated and may do nothing.
type user struct {
	name    string
	account atomic.Pointer[aclAccount] // nil once the user has been removed
}

// anyone is the user of all clients in a hub without users. This user may do everything.
var anyone = func() *user {
	u := &user{name: defaultUser}
	u.account.Store(&aclAccount{enabled: true, noPassword: true, selectors: []aclSelector{allowAll}})
	return u
}()

// defaultUser is the name of the user for clients that have not authenticated.
const defaultUser = "default"

// activeAccount returns the user's account, or nil if the account is off or removed.
func (u *user) activeAccount() *aclAccount {
	if u == nil {
		return nil
	}
	if a := u.account.Load(); a != nil && a.enabled {
		return a
	}
	return nil
}

// mayRun reports whether the user may run a command, such as publish or client|kill, for at least one topic.
func (u *user) mayRun(command string) bool {
	bit, ok := commandBit[command]
	if !ok {
		bit = unknownCommandBit
	}
	return bit&unrestrictedBits != 0 || u.anySelector(func(s *aclSelector) bool { return s.commands&bit != 0 })
}

func (u *user) mayPublish(kind Kind, name string) bool {
	bit := publishBit
	if kind == Sharded {
		bit = spublishBit
	}
	return u.anySelector(func(s *aclSelector) bool { return s.commands&bit != 0 && s.allowsTopic(name) })
}

// maySubscribe reports whether the user may subscribe to a topic or pattern. As in Redis, a pattern must be identical
// to one of the user's patterns. A right to a wider pattern is not enough.
func (u *user) maySubscribe(kind Kind, name string) bool {
	return u.anySelector(func(s *aclSelector) bool {
		switch kind {
		case Pattern:
			return s.commands&psubscribeBit != 0 && s.allowsExactPattern(name)
		case Sharded:
			return s.commands&ssubscribeBit != 0 && s.allowsTopic(name)
		}
		return s.commands&subscribeBit != 0 && s.allowsTopic(name)
	})
}

func (u *user) anySelector(predicate func(*aclSelector) bool) bool {
	if a := u.activeAccount(); a != nil {
		for i := range a.selectors {
			if predicate(&a.selectors[i]) {
				return true
			}
		}
	}
	return false
}

// unauthenticatedUserOrNil returns the user for unauthenticated clients, or nil if clients must authenticate.
func (h *Hub) unauthenticatedUserOrNil() *user {
	if h.Users == nil {
		return anyone
	}
	u := h.Users.currentRoster().byName[defaultUser]
	if a := u.activeAccount(); a == nil || !a.noPassword {
		return nil
	}
	return u
}

func (h *Hub) authenticatePassword(name, password string) (*user, error) {
	if h.Users == nil {
		if name == defaultUser {
			return anyone, nil
		}
		return nil, h.countRefusal(errWrongCredentials)
	}
	u, d := h.Users.currentRoster().byName[name], passwordHash(sha256.Sum256([]byte(password)))
	a := u.activeAccount()
	if a == nil {
		return nil, h.countRefusal(errWrongCredentials)
	}
	ok := a.noPassword
	for _, p := range a.passwords {
		if subtle.ConstantTimeCompare(p[:], d[:]) == 1 {
			ok = true
		}
	}
	if !ok {
		return nil, h.countRefusal(errWrongCredentials)
	}
	return u, nil
}

// authenticateToken returns the user whose password is token. No two users have the same password.
func (h *Hub) authenticateToken(token string) (*user, error) {
	if h.Users == nil {
		return nil, h.countRefusal(errWrongCredentials)
	}
	// The lookup takes a time that depends only on the hash, which does not reveal the token.
	u := h.Users.currentRoster().byPassword[sha256.Sum256([]byte(token))]
	if u.activeAccount() == nil {
		return nil, h.countRefusal(errWrongCredentials)
	}
	return u, nil
}

// authenticateCert returns the user named by the CommonName of a verified certificate. If the user does not have the
// ACL rule "cert", it fails.
func (h *Hub) authenticateCert(cert *x509.Certificate) (*user, error) {
	if h.Users == nil {
		return nil, errWrongCredentials
	}
	u := h.Users.currentRoster().byName[cert.Subject.CommonName]
	if a := u.activeAccount(); a == nil || !a.certLogin {
		return nil, errWrongCredentials
	}
	return u, nil
}

// initialUser returns the user of a new connection. This is the user named by the connection's verified certificate.
// Without such a user, it is the result of unauthenticatedUserOrNil. Without TLS, tlsState is nil.
func (h *Hub) initialUser(tlsState *tls.ConnectionState) *user {
	if h.Users != nil && tlsState != nil && len(tlsState.VerifiedChains) > 0 {
		if u, err := h.authenticateCert(tlsState.PeerCertificates[0]); err == nil {
			return u
		}
	}
	return h.unauthenticatedUserOrNil()
}

// clientHolder is the Value of a client's connection: a *client, or a type that embeds one.
type clientHolder interface{ hubClient() *client }

func (c *client) hubClient() *client { return c }

// Enforce closes clients with ErrRevoked and returns their number. It closes each client whose user is removed or off,
// or may no longer have one of the client's subscriptions. Call it after Users.Reload. Like tcp.Server.Each, Enforce
// examines every connection, and returns the same errors as Each.
func (h *Hub) Enforce(ctx context.Context, srv *tcp.Server) (closed int, err error) {
	var n atomic.Int64
	err = srv.Each(ctx, func(c *tcp.Conn) {
		if v, ok := c.Value().(clientHolder); ok && v.hubClient().hasRevokedAccess() {
			c.CloseWith(ErrRevoked)
			n.Add(1)
		}
	})
	if err != nil {
		err = fmt.Errorf("hub: closing clients of changed users: %w", err)
	}
	return int(n.Load()), err
}

func (c *client) hasRevokedAccess() bool {
	if c.user == nil {
		return false
	}
	if c.user.activeAccount() == nil {
		return true
	}
	for k := range Kind(kindCount) {
		for _, name := range c.subscriptionNames(k) {
			if !c.user.maySubscribe(k, name) {
				return true
			}
		}
	}
	return false
}

func (h *Hub) findActiveUser(name string) *user {
	if h.Users == nil {
		return anyone
	}
	if u := h.Users.currentRoster().byName[name]; u.activeAccount() != nil {
		return u
	}
	return nil
}
