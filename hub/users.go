package hub

import "errors"

var (
	errDenied     = errors.New("no permission")
	errCredential = errors.New("wrong user name or password")
)

// user is who a client is, and what it may do. A client without one, which has yet to say
// who it is, may do nothing.
type user struct{ name string }

// anyone is the user of clients of a hub that has no users: it may do everything.
var anyone = &user{name: "default"}

func (u *user) mayPublish(name string) bool           { return u == anyone }
func (u *user) maySubscribe(k kind, name string) bool { return u == anyone }

// newcomer is the user of a client that has not said who it is: nil, unless it may be that.
func (h *Hub) newcomer() *user { return anyone }

// login is the user of a name and password.
func (h *Hub) login(name, password string) (*user, error) { return nil, errCredential }

// token is the user of a token, which is the password of one user alone.
func (h *Hub) token(token string) (*user, error) { return nil, errCredential }
