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
	errDenied     = errors.New("no permission")
	errCredential = errors.New("wrong user name or password")
)

// ErrRevoked is why a connection is closed whose user has lost what it uses: see Hub.Enforce.
var ErrRevoked = errors.New("hub: the user is gone, or may not have a subscription any more")

// Users are who may use a Hub, and for what, as an ACL file of Redis says it. docs/hub.md has
// the rules that are known. The zero value has no users: nobody comes in. Its methods are safe
// for concurrent use.
type Users struct {
	reloading sync.Mutex
	now       atomic.Pointer[roster]
}

// roster is all users at one moment. It does not change.
type roster struct {
	byName     map[string]*user
	byPassword map[digest]*user
}

// digest is the SHA-256 of a password.
type digest [sha256.Size]byte

// ReadUsers reads an ACL file, of 64 MiB and 1,000,000 users at the most. Its error names the line.
func ReadUsers(r io.Reader) (*Users, error) {
	u := new(Users)
	return u, u.Reload(r)
}

// Reload takes the users of another ACL file instead. If that has an error, nothing changes.
// Clients keep their user, as long as there is one of that name, and have its new rights from
// now on; Hub.Enforce ends what they may have no longer.
func (u *Users) Reload(r io.Reader) error {
	accounts, byPassword, err := readAccounts(r, usersBounds)
	if err != nil {
		return err
	}
	u.reloading.Lock()
	defer u.reloading.Unlock()
	old, next := u.roster(), &roster{make(map[string]*user, len(accounts)), make(map[digest]*user, len(byPassword))}
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
	u.now.Store(next)
	for name, who := range old.byName {
		if next.byName[name] == nil {
			who.account.Store(nil)
		}
	}
	return nil
}

func (u *Users) roster() *roster {
	if r := u.now.Load(); r != nil {
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
	u.account.Store(&account{on: true, noPassword: true, selectors: []selector{everything}})
	return u
}()

// defaultUser is the name of the user that a client has that has not said who it is.
const defaultUser = "default"

// active is the user's account, nil if it has none that is on.
func (u *user) active() *account {
	if u == nil {
		return nil
	}
	if a := u.account.Load(); a != nil && a.on {
		return a
	}
	return nil
}

// mayRun says whether the user may use a command, such as publish or client|kill, at all.
func (u *user) mayRun(command string) bool {
	bit, ok := bitOf[command]
	if !ok {
		bit = unknownCommand
	}
	return bit&freeBits != 0 || u.may(func(s *selector) bool { return s.commands&bit != 0 })
}

func (u *user) mayPublish(k Kind, name string) bool {
	bit := publishBit
	if k == Sharded {
		bit = spublishBit
	}
	return u.may(func(s *selector) bool { return s.commands&bit != 0 && s.hasTopic(name) })
}

// maySubscribe goes by Redis's rule for a pattern: it must be, byte by byte, one of those
// that the user has.
func (u *user) maySubscribe(k Kind, name string) bool {
	return u.may(func(s *selector) bool {
		switch k {
		case Pattern:
			return s.commands&psubscribeBit != 0 && s.hasPattern(name)
		case Sharded:
			return s.commands&ssubscribeBit != 0 && s.hasTopic(name)
		}
		return s.commands&subscribeBit != 0 && s.hasTopic(name)
	})
}

// may says whether one of the user's selectors allows something.
func (u *user) may(allows func(*selector) bool) bool {
	if a := u.active(); a != nil {
		for i := range a.selectors {
			if allows(&a.selectors[i]) {
				return true
			}
		}
	}
	return false
}

// newcomer is the user of a client that has not said who it is: nil, if it must.
func (h *Hub) newcomer() *user {
	if h.Users == nil {
		return anyone
	}
	u := h.Users.roster().byName[defaultUser]
	if a := u.active(); a == nil || !a.noPassword {
		return nil
	}
	return u
}

// login is the user of a name and password.
func (h *Hub) login(name, password string) (*user, error) {
	if h.Users == nil {
		if name == defaultUser {
			return anyone, nil
		}
		return nil, h.refuse(errCredential)
	}
	u, d := h.Users.roster().byName[name], digest(sha256.Sum256([]byte(password)))
	a := u.active()
	if a == nil {
		return nil, h.refuse(errCredential)
	}
	ok := a.noPassword
	for _, p := range a.passwords {
		if subtle.ConstantTimeCompare(p[:], d[:]) == 1 {
			ok = true
		}
	}
	if !ok {
		return nil, h.refuse(errCredential)
	}
	return u, nil
}

// token is the user of a token, which is the password of one user alone.
func (h *Hub) token(token string) (*user, error) {
	if h.Users == nil {
		return nil, h.refuse(errCredential)
	}
	// What the time of looking up tells is of the digest, from which nobody learns the token.
	u := h.Users.roster().byPassword[sha256.Sum256([]byte(token))]
	if u.active() == nil {
		return nil, h.refuse(errCredential)
	}
	return u, nil
}

// certificate is the user who shows a certificate that TLS has verified: the one that has the
// name which is its subject's CommonName, and the rule cert.
func (h *Hub) certificate(cert *x509.Certificate) (*user, error) {
	if h.Users == nil {
		return nil, errCredential
	}
	u := h.Users.roster().byName[cert.Subject.CommonName]
	if a := u.active(); a == nil || !a.cert {
		return nil, errCredential
	}
	return u, nil
}

// arrival is the user of a connection that has said nothing yet: that of its certificate, if
// it has shown one that is a user's, and otherwise the newcomer. state is nil without TLS.
func (h *Hub) arrival(state *tls.ConnectionState) *user {
	if h.Users != nil && state != nil && len(state.VerifiedChains) > 0 {
		if u, err := h.certificate(state.PeerCertificates[0]); err == nil {
			return u
		}
	}
	return h.newcomer()
}

// holder is the Value of a client's connection: a *client, or what embeds one.
type holder interface{ held() *client }

func (c *client) held() *client { return c }

// Enforce closes, with ErrRevoked, the clients whose user is gone or off, or has a
// subscription that it may not have any more: after Users.Reload. It says how many. Each is
// looked at on its event loop, as Server.Each does, whose errors it has.
func (h *Hub) Enforce(ctx context.Context, srv *tcp.Server) (closed int, err error) {
	var n atomic.Int64
	err = srv.Each(ctx, func(c *tcp.Conn) {
		if v, ok := c.Value().(holder); ok && v.held().revoked() {
			c.CloseWith(ErrRevoked)
			n.Add(1)
		}
	})
	if err != nil {
		err = fmt.Errorf("hub: the clients of users that have changed: %w", err)
	}
	return int(n.Load()), err
}

// revoked says whether the client has what its user may not have.
func (c *client) revoked() bool {
	if c.user == nil {
		return false
	}
	if c.user.active() == nil {
		return true
	}
	for k := range Kind(kinds) {
		for _, name := range c.names(k) {
			if !c.user.maySubscribe(k, name) {
				return true
			}
		}
	}
	return false
}

// named is a user of that name, nil if there is none.
func (h *Hub) named(name string) *user {
	if h.Users == nil {
		return anyone
	}
	if u := h.Users.roster().byName[name]; u.active() != nil {
		return u
	}
	return nil
}
