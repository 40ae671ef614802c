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

// ErrRevoked is why a connection is closed whose user has lost what it uses: see Hub.Enforce.
var ErrRevoked = errors.New("hub: the user is gone, or may not have a subscription any more")

// Users are who may use a Hub, and for what, as an ACL file of Redis says it. docs/hub.md has
// the rules that are known. The zero value has no users: nobody comes in. Its methods are safe
// for concurrent use.
type Users struct {
	reloadMu sync.Mutex
	current  atomic.Pointer[roster]
}

// roster is all users at one moment. It does not change.
type roster struct {
	byName     map[string]*user
	byPassword map[passwordHash]*user
}

// passwordHash is the SHA-256 of a password.
type passwordHash [sha256.Size]byte

// ReadUsers reads an ACL file, of 64 MiB and 1,000,000 users at the most. Its error names the line.
func ReadUsers(r io.Reader) (*Users, error) {
	u := new(Users)
	return u, u.Reload(r)
}

// Reload takes the users of another ACL file instead. If that has an error, nothing changes.
// Clients keep their user, as long as there is one of that name, and have its new rights from
// now on; Hub.Enforce ends what they may have no longer.
func (u *Users) Reload(r io.Reader) error {
	accounts, byPassword, err := parseACLFile(r, defaultACLLimits)
	if err != nil {
		return err
	}
	u.reloadMu.Lock()
	defer u.reloadMu.Unlock()
	old, next := u.roster(), &roster{make(map[string]*user, len(accounts)), make(map[passwordHash]*user, len(byPassword))}
	for name, a := range accounts {
		who := old.byName[name]
		if who == nil {
			who = &user{name: name}
		}
		who.account.Store(a)
		next.byName[name] = who
	}
	for d, name := range byPassword {
		next.byPassword[d] = next.byName[name]
	}
	u.current.Store(next)
	for name, who := range old.byName {
		if next.byName[name] == nil {
			who.account.Store(nil)
		}
	}
	return nil
}

func (u *Users) roster() *roster {
	if r := u.current.Load(); r != nil {
		return r
	}
	return new(roster)
}

// user is who a client is. Its account is looked at whenever it does something, so that a
// change holds at once. A client without a user, which has yet to say who it is, may do nothing.
type user struct {
	name    string
	account atomic.Pointer[account] // nil once the user is gone
}

// anyone is the user of clients of a hub that has no users: it may do everything.
var anyone = func() *user {
	u := &user{name: defaultUser}
	u.account.Store(&account{enabled: true, noPassword: true, selectors: []selector{allowAll}})
	return u
}()

// defaultUser is the name of the user that a client has that has not said who it is.
const defaultUser = "default"

// activeAccount is the user's account, nil if it has none that is on.
func (u *user) activeAccount() *account {
	if u == nil {
		return nil
	}
	if a := u.account.Load(); a != nil && a.enabled {
		return a
	}
	return nil
}

// mayRun says whether the user may use a command, such as publish or client|kill, at all.
func (u *user) mayRun(command string) bool {
	bit, ok := commandBit[command]
	if !ok {
		bit = unknownCommandBit
	}
	return bit&unrestrictedBits != 0 || u.anySelector(func(s *selector) bool { return s.commands&bit != 0 })
}

func (u *user) mayPublish(kind Kind, name string) bool {
	bit := publishBit
	if kind == Sharded {
		bit = spublishBit
	}
	return u.anySelector(func(s *selector) bool { return s.commands&bit != 0 && s.allowsTopic(name) })
}

// maySubscribe goes by Redis's rule for a pattern: it must be, byte by byte, one of those
// that the user has.
func (u *user) maySubscribe(kind Kind, name string) bool {
	return u.anySelector(func(s *selector) bool {
		switch kind {
		case Pattern:
			return s.commands&psubscribeBit != 0 && s.allowsPattern(name)
		case Sharded:
			return s.commands&ssubscribeBit != 0 && s.allowsTopic(name)
		}
		return s.commands&subscribeBit != 0 && s.allowsTopic(name)
	})
}

// anySelector says whether one of the user's selectors allows something.
func (u *user) anySelector(predicate func(*selector) bool) bool {
	if a := u.activeAccount(); a != nil {
		for i := range a.selectors {
			if predicate(&a.selectors[i]) {
				return true
			}
		}
	}
	return false
}

// unauthenticatedUser is the user of a client that has not said who it is: nil, if it must.
func (h *Hub) unauthenticatedUser() *user {
	if h.Users == nil {
		return anyone
	}
	u := h.Users.roster().byName[defaultUser]
	if a := u.activeAccount(); a == nil || !a.noPassword {
		return nil
	}
	return u
}

// authenticatePassword is the user of a name and password.
func (h *Hub) authenticatePassword(name, password string) (*user, error) {
	if h.Users == nil {
		if name == defaultUser {
			return anyone, nil
		}
		return nil, h.countRefusal(errWrongCredentials)
	}
	u, d := h.Users.roster().byName[name], passwordHash(sha256.Sum256([]byte(password)))
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

// authenticateToken is the user of a token, which is the password of one user alone.
func (h *Hub) authenticateToken(token string) (*user, error) {
	if h.Users == nil {
		return nil, h.countRefusal(errWrongCredentials)
	}
	// What the time of looking up tells is of the digest, from which nobody learns the token.
	u := h.Users.roster().byPassword[sha256.Sum256([]byte(token))]
	if u.activeAccount() == nil {
		return nil, h.countRefusal(errWrongCredentials)
	}
	return u, nil
}

// authenticateCert is the user who shows a certificate that TLS has verified: the one that has the
// name which is its subject's CommonName, and the rule cert.
func (h *Hub) authenticateCert(cert *x509.Certificate) (*user, error) {
	if h.Users == nil {
		return nil, errWrongCredentials
	}
	u := h.Users.roster().byName[cert.Subject.CommonName]
	if a := u.activeAccount(); a == nil || !a.certLogin {
		return nil, errWrongCredentials
	}
	return u, nil
}

// initialUser is the user of a connection that has said nothing yet: that of its certificate, if
// it has shown one that is a user's, and otherwise the newcomer. state is nil without TLS.
func (h *Hub) initialUser(tlsState *tls.ConnectionState) *user {
	if h.Users != nil && tlsState != nil && len(tlsState.VerifiedChains) > 0 {
		if u, err := h.authenticateCert(tlsState.PeerCertificates[0]); err == nil {
			return u
		}
	}
	return h.unauthenticatedUser()
}

// clientHolder is the Value of a client's connection: a *client, or what embeds one.
type clientHolder interface{ hubClient() *client }

func (c *client) hubClient() *client { return c }

// Enforce closes, with ErrRevoked, the clients whose user is gone or off, or has a
// subscription that it may not have any more: after Users.Reload. It says how many. Each is
// looked at on its event loop, as Server.Each does, whose errors it has.
func (h *Hub) Enforce(ctx context.Context, srv *tcp.Server) (closed int, err error) {
	var n atomic.Int64
	err = srv.Each(ctx, func(c *tcp.Conn) {
		if v, ok := c.Value().(clientHolder); ok && v.hubClient().hasRevokedAccess() {
			c.CloseWith(ErrRevoked)
			n.Add(1)
		}
	})
	if err != nil {
		err = fmt.Errorf("hub: the clients of users that have changed: %w", err)
	}
	return int(n.Load()), err
}

// hasRevokedAccess says whether the client has what its user may not have.
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

// activeUser is a user of that name, nil if there is none.
func (h *Hub) activeUser(name string) *user {
	if h.Users == nil {
		return anyone
	}
	if u := h.Users.roster().byName[name]; u.activeAccount() != nil {
		return u
	}
	return nil
}
