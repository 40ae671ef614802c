package hub

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/tcp"
)

var (
	errDenied           = errors.New("no permission")
	errWrongCredentials = errors.New("wrong user name or password")
)

// ErrRevoked is the close reason of clients that Hub.CloseRevoked closes because their user has lost rights.
var ErrRevoked = errors.New("hub: the user was removed or lost the right to a subscription")

// Users contains the users of a Hub and their rights. ReadUsers reads them from a Redis ACL file; docs/hub.md lists the
// supported rules. The zero value contains no users, so every client is rejected. Methods are safe for concurrent use.
type Users struct {
	reloadMu sync.Mutex
	current  atomic.Pointer[roster]
}

type roster struct {
	byName     map[string]*user
	byPassword map[passwordHash]*user
}

type passwordHash [sha256.Size]byte

// ReadUsers reads users from a Redis ACL file of at most 64 MiB and 1,000,000 users. Errors include the line number.
func ReadUsers(r io.Reader) (*Users, error) {
	u := new(Users)
	return u, u.Reload(r)
}

// Reload replaces all users by the users of another ACL file. After an error, the users are unchanged. The new rights
// apply to later actions of connected clients, but existing subscriptions remain. Call Hub.CloseRevoked to close
// clients that have lost the right to a subscription.
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
	if u != nil {
		if r := u.current.Load(); r != nil {
			return r
		}
	}
	return new(roster)
}

// user is a user of the hub. Every action must check the current rights in account.
type user struct {
	name    string
	account atomic.Pointer[aclAccount] // nil once the user has been removed
}

// unrestrictedUser is the user of all clients if Hub.Users is nil. This user may do everything.
var unrestrictedUser = func() *user {
	u := &user{name: defaultUser}
	u.account.Store(&aclAccount{enabled: true, noPassword: true, selectors: []aclSelector{allowAll}})
	return u
}()

// defaultUser is the name of the user for clients that have not authenticated.
const defaultUser = "default"

// activeAccount returns the user's account, or nil if the account is off or removed. u may be nil.
func (u *user) activeAccount() (accountOrNil *aclAccount) {
	if u == nil {
		return nil
	}
	if a := u.account.Load(); a != nil && a.enabled {
		return a
	}
	return nil
}

// mayRunForSomeTopic reports whether the user may run a command, such as client|kill, for at least one topic.
func (u *user) mayRunForSomeTopic(command string) bool {
	bit, ok := commandBit[command]
	if !ok {
		bit = unknownCommandBit
	}
	return bit&unrestrictedBits != 0 || u.anySelector(func(s aclSelector) bool { return s.commands&bit != 0 })
}

func (u *user) mayPublish(kind Kind, name string) bool {
	return u.anySelector(func(s aclSelector) bool { return s.commands&publishBits[kind] != 0 && s.allowsTopic(name) })
}

// maySubscribe reports whether the user may subscribe to a topic or pattern. The user may subscribe to a pattern only
// if an ACL rule contains exactly this pattern.
func (u *user) maySubscribe(kind Kind, name string) bool {
	return u.anySelector(func(s aclSelector) bool {
		if kind == Pattern {
			return s.commands&subscribeBits[kind] != 0 && s.allowsExactPattern(name)
		}
		return s.commands&subscribeBits[kind] != 0 && s.allowsTopic(name)
	})
}

func (u *user) anySelector(allows func(aclSelector) bool) bool {
	a := u.activeAccount()
	return a != nil && slices.ContainsFunc(a.selectors, allows)
}

// unauthenticatedUserOrNil returns the user of unauthenticated clients, or nil if clients must authenticate.
func (h *Hub) unauthenticatedUserOrNil() *user {
	if h.Users == nil {
		return unrestrictedUser
	}
	u := h.Users.currentRoster().byName[defaultUser]
	if a := u.activeAccount(); a == nil || !a.noPassword {
		return nil
	}
	return u
}

func (h *Hub) authenticatePassword(name, password string) (*user, error) {
	if h.Users == nil && name == defaultUser {
		return unrestrictedUser, nil
	}
	u, d := h.Users.currentRoster().byName[name], passwordHash(sha256.Sum256([]byte(password)))
	if a := u.activeAccount(); a != nil {
		ok := a.noPassword
		for _, p := range a.passwords {
			ok = subtle.ConstantTimeCompare(p[:], d[:]) == 1 || ok
		}
		if ok {
			return u, nil
		}
	}
	return nil, h.countRefusal(errWrongCredentials)
}

func (h *Hub) authenticateToken(token string) (*user, error) {
	// The lookup takes a time that depends only on the hash, which does not reveal the token.
	u := h.Users.currentRoster().byPassword[sha256.Sum256([]byte(token))]
	if u.activeAccount() == nil {
		return nil, h.countRefusal(errWrongCredentials)
	}
	return u, nil
}

// initialUser returns the user that a client has before it logs in. If the client certificate names a user with the ACL
// rule cert, initialUser returns this user. Otherwise, it returns the user of unauthenticated clients, or nil if
// clients must authenticate. tlsState may be nil.
func (h *Hub) initialUser(tlsState *tls.ConnectionState) (userOrNil *user) {
	if tlsState != nil && len(tlsState.VerifiedChains) > 0 {
		u := h.Users.currentRoster().byName[tlsState.PeerCertificates[0].Subject.CommonName]
		if a := u.activeAccount(); a != nil && a.certLogin {
			return u
		}
	}
	return h.unauthenticatedUserOrNil()
}

// clientHolder is implemented by the connection Values that contain a client.
type clientHolder interface{ hubClient() *client }

func (c *client) hubClient() *client { return c }

// CloseRevoked closes clients that have lost rights, with ErrRevoked as the reason. It closes clients whose user is
// removed or off, and clients that have lost the right to one of their subscriptions. It returns the number of closed
// clients and the errors of tcp.Server.Each. Call it after Users.Reload.
func (h *Hub) CloseRevoked(ctx context.Context, srv *tcp.Server) (closed int, err error) {
	isRevoked := func(c *tcp.Conn) bool {
		v, ok := c.Value().(clientHolder)
		return ok && v.hubClient().hasRevokedAccess()
	}
	err = eachConnSerially(ctx, srv, isRevoked, func(c *tcp.Conn) {
		c.CloseWith(ErrRevoked)
		closed++
	})
	if err != nil {
		err = fmt.Errorf("hub: closing clients of changed users: %w", err)
	}
	return closed, err
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

func (h *Hub) resolveSavedUser(name string) (userOrNil *user) {
	if h.Users == nil {
		return unrestrictedUser
	}
	if u := h.Users.currentRoster().byName[name]; u.activeAccount() != nil {
		return u
	}
	return nil
}
