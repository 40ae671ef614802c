package hub

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func newHubWithUsers(file string) *Hub { return &Hub{Users: mustReadUsers(file)} }

// isAllowed reports whether a user may "publish NAME", "subscribe NAME", "psubscribe PATTERN", or run a command.
func isAllowed(u *user, action string) bool {
	switch verb, name, named := strings.Cut(action, " "); {
	case !named:
		return u.mayRunForSomeTopic(action)
	case verb == "publish":
		return u.mayPublish(Topic, name)
	default:
		return u.maySubscribe(map[string]Kind{"subscribe": Topic, "psubscribe": Pattern}[verb], name)
	}
}

func TestACLRights(t *testing.T) {
	for _, c := range []struct{ rules, yes, no string }{
		{"on allcommands allchannels", "publish a;subscribe a;psubscribe a*;get;client|kill", ""},
		{"on", "auth;hello;quit;reset", "publish;publish a;subscribe a;psubscribe a;ping;get"},
		{"off +@all &*", "auth", "publish a;subscribe a;ping"},
		{"on +publish &a.* &b", "publish a.b;publish b", "publish c;publish bb;subscribe a.b;psubscribe a.*"},
		{"on +SUBSCRIBE +psubscribe &a.*", "subscribe a.b;psubscribe a.*;subscribe a.*", "psubscribe a.b.*;psubscribe a.b;psubscribe *"},
		{"on +@pubsub &a", "publish a;subscribe a;psubscribe a;pubsub|channels", "client|id;ping"},
		{"on +@all -publish &*", "subscribe a;get", "publish a;publish"},
		{"on +@all -@dangerous &*", "client|id;publish a", "client|kill;client|list;config|get;info"},
		{"on +client -client|kill", "client|id;client|list", "client|kill;client|frob"},
		{"on -@all +@connection +publish allchannels resetchannels &x", "ping;publish x", "publish y"},
		{"on nocommands +publish &x (+subscribe &y) (~k +psubscribe &z* &q)", "publish x;subscribe y;psubscribe z*;psubscribe q", "publish y;subscribe x;psubscribe x;subscribe z"},
		{"on (+publish &x) clearselectors +subscribe &y", "subscribe y", "publish x"},
		{"on ~* %R~a allkeys resetkeys sanitize-payload +@read +@write +@pubsub &*", "publish a", "get"},
	} {
		u := newHubWithUsers("user u " + c.rules).Users.currentRoster().byName["u"]
		for want, all := range map[bool]string{true: c.yes, false: c.no} {
			for what := range strings.SplitSeq(all, ";") {
				if what != "" && isAllowed(u, what) != want {
					t.Errorf("%q: may %s is %t", c.rules, what, !want)
				}
			}
		}
	}
	var nobody *user
	for what, want := range map[string]bool{"auth": true, "ping": false, "publish a": false, "subscribe a": false} {
		if isAllowed(nobody, what) != want {
			t.Errorf("a client without a user: may %s is %t", what, !want)
		}
	}
}

func TestACLFileErrors(t *testing.T) {
	sum := strings.Repeat("ab", sha256.Size)
	for file, want := range map[string]string{
		"user":                               "line 1",
		"\n# fine\nsure a on":                "line 3",
		"user a on\nuser a on":               "line 2: user a is defined twice",
		"user a on +frob":                    `unknown command "frob"`,
		"user a on +@frob":                   "unknown category @frob",
		"user a on frob":                     `unknown rule "frob"`,
		"user a on &* &x":                    "expected resetchannels",
		"user a on (+publish &x":             "expected )",
		"user a on (+publish on)":            `unknown rule "on"`,
		"user a on >":                        "empty password",
		"user a on #abc":                     "64 lowercase hexadecimal digits",
		"user a on #" + strings.ToUpper(sum): "lowercase",
		"user a on #z" + sum[1:]:             "invalid characters",
		"user a on <x":                       "cannot remove a password",
		"user a on !" + sum:                  "cannot remove a password",
		"user a >x\nuser b >x":               "line 2: user b has the same password as user a",
	} {
		if u, err := ReadUsers(strings.NewReader(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, %v; want an error with %q", file, u, err, want)
		}
	}
}

func TestACLFileLimits(t *testing.T) {
	file := "user u1 on\nuser u2 on\n" // 22 bytes
	for want, limit := range map[string]aclLimits{
		"<nil>": {22, 11, 2},
		"line 2: too many users; expected at most 1":              {22, 11, 1},
		"line 1: the line is too long; expected at most 10 bytes": {22, 10, 2},
		"the file is too large; expected at most 21 bytes":        {21, 11, 2},
	} {
		if _, _, err := parseACLFile(strings.NewReader(file), limit); !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("with the bounds %+v: %v; want %q", limit, err, want)
		}
	}
}

func TestLogin(t *testing.T) {
	sum := sha256.Sum256([]byte("hashed"))
	h := newHubWithUsers(`
user alice on >secret >other <other cert
user bob on #` + hex.EncodeToString(sum[:]) + ` >old resetpass >new #` + hex.EncodeToString(sum[:]) + `
user carol off >carols cert
user dave on nopass
user erin on >x nopass >erins`)
	for _, c := range []struct {
		name, password string
		ok             bool
	}{
		{"alice", "secret", true}, {"alice", "other", false}, {"alice", "", false}, {"alice", "hashed", false},
		{"bob", "hashed", true}, {"bob", "new", true}, {"bob", "old", false},
		{"carol", "carols", false}, {"dave", "anything", true}, {"erin", "erins", true}, {"erin", "x", false},
		{"nobody", "secret", false}, {"default", "", false},
	} {
		u, err := h.authenticatePassword(c.name, c.password)
		if c.ok && (err != nil || u.name != c.name) || !c.ok && !errors.Is(err, errWrongCredentials) {
			t.Errorf("login of %s with %q: %v, %v; want %t", c.name, c.password, u, err, c.ok)
		}
	}
	for token, want := range map[string]string{"secret": "alice", "hashed": "bob", "new": "bob", "erins": "erin", "carols": "", "": "", "x": ""} {
		u, err := h.authenticateToken(token)
		if want != "" && (err != nil || u.name != want) || want == "" && !errors.Is(err, errWrongCredentials) {
			t.Errorf("token %q: %v, %v; want %q", token, u, err, want)
		}
	}
	for name, ok := range map[string]bool{"alice": true, "bob": false, "carol": false, "nobody": false, "": false} {
		cert := &x509.Certificate{Subject: pkix.Name{CommonName: name}}
		state := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}
		if u := h.initialUser(state); u != nil {
			t.Errorf("certificate of %q that nobody has verified: user %s", name, u.name)
		}
		state.VerifiedChains = [][]*x509.Certificate{{cert}}
		if u := h.initialUser(state); ok != (u != nil) || ok && u.name != name {
			t.Errorf("verified certificate of %q: user %v", name, u)
		}
	}
}

func TestUserOfUnauthenticatedClient(t *testing.T) {
	if u := new(Hub).unauthenticatedUserOrNil(); !u.mayPublish(Topic, "a") {
		t.Error("a hub without users: a client may not publish")
	}
	for file, want := range map[string]bool{
		"":                                  false,
		"user alice on nopass +@all &*":     false,
		"user default on >x +@all &*":       false,
		"user default off nopass":           false,
		"user default on nopass +publish &": true,
	} {
		if u := newHubWithUsers(file).unauthenticatedUserOrNil(); (u != nil) != want || want && u.name != "default" {
			t.Errorf("%q: the newcomer is %v, want the default user: %v", file, u, want)
		}
	}
	if u := (&Hub{Users: new(Users)}).unauthenticatedUserOrNil(); u != nil {
		t.Errorf("Users without any: the newcomer is %v", u)
	}
}

// TestReloadUsers checks that clients keep their user with its new rights, and that a file with an error changes
// nothing.
func TestReloadUsers(t *testing.T) {
	h := newHubWithUsers("user alice on >a +@all &*\nuser bob on >b +@all &*")
	alice, _ := h.authenticatePassword("alice", "a")
	bob, _ := h.authenticatePassword("bob", "b")
	if err := h.Users.Reload(strings.NewReader("user alice on >a\nfrob")); err == nil || !alice.mayPublish(Topic, "x") || !bob.mayPublish(Topic, "x") {
		t.Errorf("a file with an error was taken: %v", err)
	}
	if err := h.Users.Reload(strings.NewReader("user alice on >aa +subscribe &x")); err != nil {
		t.Fatal(err)
	}
	if alice.mayPublish(Topic, "x") || !alice.maySubscribe(Topic, "x") {
		t.Error("alice does not have her new rights")
	}
	if bob.mayPublish(Topic, "x") || bob.mayRunForSomeTopic("ping") {
		t.Error("bob, who is gone, has rights")
	}
	for name, password := range map[string]string{"alice": "a", "bob": "b"} {
		if u, err := h.authenticatePassword(name, password); err == nil {
			t.Errorf("%s logs in with %q: %v", name, password, u)
		}
		if u, err := h.authenticateToken(password); err == nil {
			t.Errorf("the token %q is of %v", password, u)
		}
	}
	if u, err := h.authenticatePassword("alice", "aa"); err != nil || u != alice {
		t.Errorf("alice logs in: %v, %v; want the user that she was", u, err)
	}
}

// FuzzACLFile checks that any file yields users or an error with a line.
func FuzzACLFile(f *testing.F) {
	for _, seed := range []string{
		"user default on nopass ~* &* +@all", "user a on >x (+publish &a.*) (+subscribe &b)", "# no\n\nuser a off #00 !00 cert", "user a (", "user a ( )", "user a ()",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, file string) {
		u, err := ReadUsers(strings.NewReader(file))
		if err != nil {
			if !strings.HasPrefix(err.Error(), "hub: users file, line ") {
				t.Fatalf("the error does not say the line: %v", err)
			}
			return
		}
		for name, who := range u.currentRoster().byName {
			if strings.ContainsAny(name, " \n") || who.account.Load().enabled && !who.mayRunForSomeTopic("auth") {
				t.Errorf("user %q", name)
			}
			_ = who.mayPublish(Topic, file)
		}
	})
}
