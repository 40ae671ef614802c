package hub

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/myriad-go/myriad/tcp"
)

func clientCommands() map[string]*command {
	about := func(since, summary string) about {
		return about{"connection", since, summary, []string{"noscript", "loading", "stale"}}
	}
	return byName(
		&command{name: "client|id", arity: 2, run: func(t *turn) { t.integer(int(t.ref.ID())) }, about: about("5.0.0", "Returns the client ID for the current connection")},
		&command{name: "client|getname", arity: 2, run: (*turn).clientGetname, about: about("2.6.9", "Get the current connection name")},
		&command{name: "client|setname", arity: 3, run: (*turn).clientSetname, about: about("2.6.9", "Set the current connection name")},
		&command{name: "client|setinfo", arity: 4, run: (*turn).clientSetinfo, about: about("7.2.0", "Set information specific to the client or connection")},
		&command{name: "client|info", arity: 2, run: (*turn).clientInfo, about: about("6.2.0", "Returns information about the current client connection.")},
		&command{name: "client|list", arity: -2, run: (*turn).clientList, about: about("2.4.0", "Get the list of client connections")},
		&command{name: "client|kill", arity: -3, run: (*turn).clientKill, about: about("2.4.0", "Kill the connection of a client")},
		&command{name: "client|reply", arity: 3, run: (*turn).clientReply, about: about("3.2.0", "Instruct the server whether to reply to commands")},
		&command{name: "client|no-evict", arity: 3, run: (*turn).onOff, about: about("7.0.0", "Set client eviction mode for the current connection")},
		&command{name: "client|no-touch", arity: 3, run: (*turn).onOff, about: about("7.2.0", "Set whether commands change what is known of keys' use")},
		&command{name: "client|getredir", arity: 2, run: func(t *turn) { t.integer(-1) }, about: about("6.0.0", "Get tracking notifications redirection client ID if any")},
		&command{name: "client|help", arity: 2, run: (*turn).clientHelp, about: about("5.0.0", "Show helpful text about the different subcommands")},
	)
}

func (t *turn) clientGetname() {
	if t.details == nil || t.details.name == "" {
		t.null()
	} else {
		t.bulk(t.details.name)
	}
}

func (t *turn) clientSetname() {
	if !nameable(t.args[2]) {
		t.error(badName)
		return
	}
	t.setName(t.args[2])
	t.ok()
}

// clientSetinfo takes what a client library tells of itself, which is not kept: it would be
// more than all else that there is of a client.
func (t *turn) clientSetinfo() {
	switch {
	case !is(t.args[2], "lib-name") && !is(t.args[2], "lib-ver"):
		t.error("ERR Unrecognized option '" + shown(t.args[2]) + "'")
	case !nameable(t.args[3]):
		t.error("ERR " + string(appendLower(nil, t.args[2])) + " cannot contain spaces, newlines or special characters.")
	default:
		t.ok()
	}
}

func (t *turn) clientReply() {
	switch {
	case is(t.args[2], "on"):
		t.flags &^= silent
		t.muted = false
		t.ok()
	case is(t.args[2], "off"):
		t.flags |= silent
	case is(t.args[2], "skip"):
		t.flags |= skips
	default:
		t.error(syntaxError)
	}
}

func (t *turn) clientInfo() { t.text(string(appendClient(nil, t.c))) }

// appendClient appends a line about a connection. It is for calls of the connection's handler.
func appendClient(to []byte, c *tcp.Conn) []byte {
	var name string
	var sub, psub, ssub int
	who, flag := anyone.name, "N"
	s, _ := c.Value().(*respSession)
	if s != nil && s.details != nil {
		name = s.details.name
	}
	if h, ok := c.Value().(holder); ok {
		k := h.held()
		if k.count() > 0 {
			flag = "P"
		}
		sub, psub, ssub = k.number(Topic), k.number(Pattern), k.number(Sharded)
		if k.user != nil {
			who = k.user.name
		}
	}
	last := numbered[0].name
	if s != nil {
		last = numbered[s.last].name
	}
	to = fmt.Appendf(to, "id=%d addr=%s laddr=%s name=%s flags=%s db=0 sub=%d psub=%d ssub=%d multi=-1 omem=%d dropped=%d cmd=%s user=%s redir=-1",
		c.Ref().ID(), addrText(c.Ref().RemoteAddr()), addrText(c.Ref().LocalAddr()), name, flag, sub, psub, ssub, c.Pending(), c.Dropped(), last, who)
	if s != nil {
		to = fmt.Appendf(to, " resp=%d", 2+s.format)
	}
	return append(to, '\n')
}

func addrText(a netip.AddrPort, _ bool) string {
	if !a.IsValid() {
		return "unix:0"
	}
	return a.String()
}

// filter is which clients a command is about. What is zero does not matter.
type filter struct {
	ids         map[uint64]bool
	addr, laddr string
	kind        string
	user        string
	not         tcp.Ref
}

func (f *filter) id(n int) {
	if f.ids == nil {
		f.ids = make(map[uint64]bool)
	}
	f.ids[uint64(n)] = true
}

func (f *filter) matches(c *tcp.Conn) bool {
	ref := c.Ref()
	switch {
	case ref == f.not, len(f.ids) > 0 && !f.ids[ref.ID()],
		f.addr != "" && f.addr != addrText(ref.RemoteAddr()), f.laddr != "" && f.laddr != addrText(ref.LocalAddr()):
		return false
	}
	h, ok := c.Value().(holder)
	if f.kind != "" && f.kind != kindOf(h, ok) {
		return false
	}
	return f.user == "" || ok && cmp.Or(h.held().user, anyone).name == f.user
}

// kindOf is what Redis calls clients with and without subscriptions.
func kindOf(h holder, ok bool) string {
	if ok && h.held().count() > 0 {
		return "pubsub"
	}
	return "normal"
}

// option reads an option with its value. It answers an error for a wrong one.
func (t *turn) option(f *filter, name, value []byte) (ok bool) {
	switch {
	case is(name, "id"):
		id, ok := decimal(value)
		if !ok || id < 1 {
			t.error("ERR client-id should be greater than 0")
			return false
		}
		f.id(id)
	case is(name, "addr"):
		f.addr = string(value)
	case is(name, "laddr"):
		f.laddr = string(value)
	case is(name, "user"):
		if f.user = string(value); !t.h.knows(f.user) {
			t.error("ERR No such user '" + shown(value) + "'")
			return false
		}
	case is(name, "type"):
		f.kind = string(appendLower(nil, value))
		if !slices.Contains([]string{"normal", "pubsub", "master", "replica", "slave"}, f.kind) {
			t.error("ERR Unknown client type '" + shown(value) + "'")
			return false
		}
	case is(name, "skipme") && is(value, "yes"):
		f.not = t.ref
	case is(name, "skipme") && is(value, "no"):
		f.not = tcp.Ref{}
	default:
		t.error(syntaxError)
		return false
	}
	return true
}

// knows says whether there is a user of a name.
func (h *Hub) knows(name string) bool {
	if h.Users == nil {
		return name == defaultUser
	}
	return h.Users.roster().byName[name] != nil
}

// clientList is CLIENT LIST [TYPE kind] or [ID id ...].
func (t *turn) clientList() {
	var f filter
	switch args := t.args[2:]; {
	case len(args) == 0:
	case len(args) >= 2 && is(args[0], "id"):
		for _, a := range args[1:] {
			id, ok := decimal(a)
			if !ok {
				t.error("ERR Invalid client ID")
				return
			}
			f.id(id)
		}
	case len(args) == 2 && is(args[0], "type"):
		if !t.option(&f, args[0], args[1]) {
			return
		}
	default:
		t.error(syntaxError)
		return
	}
	srv, most := t.c.Server(), t.unsent/4
	t.later(func(ctx context.Context, r *replies) error { return r.clients(ctx, srv, &f, most) })
}

// clients lists connections, as far as the list is not larger than most bytes.
func (r *replies) clients(ctx context.Context, srv *tcp.Server, f *filter, most int) error {
	var mu sync.Mutex
	var list []byte
	n := 0
	err := srv.Each(ctx, func(c *tcp.Conn) {
		if !f.matches(c) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if n++; len(list) <= most {
			list = appendClient(list, c)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err != nil:
		r.error("ERR " + err.Error())
	case len(list) > most:
		r.error(fmt.Sprintf("ERR the list of %d clients would have more than %d bytes; ask for some by TYPE or ID", n, most))
	default:
		r.text(string(list))
	}
	return nil
}

// clientKill is CLIENT KILL addr, or with options.
func (t *turn) clientKill() {
	f, old := filter{not: t.ref}, len(t.args) == 3
	if old {
		f = filter{addr: string(t.args[2])}
	} else if len(t.args)%2 != 0 {
		t.error(syntaxError)
		return
	}
	for args := t.args[2:]; !old && len(args) > 0; args = args[2:] {
		if !t.option(&f, args[0], args[1]) {
			return
		}
	}
	h, srv, self := t.h, t.c.Server(), t.ref
	t.later(func(ctx context.Context, r *replies) error { return r.kill(ctx, h, srv, &f, self, old) })
}

// kill closes connections, that of self behind the answer.
func (r *replies) kill(ctx context.Context, h *Hub, srv *tcp.Server, f *filter, self tcp.Ref, old bool) (why error) {
	var mu sync.Mutex
	n := 0
	err := srv.Each(ctx, func(c *tcp.Conn) {
		if !f.matches(c) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		if c.Ref() == self {
			why = tcp.ErrClosedByOperator
		} else {
			h.expel(c)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err != nil:
		r.error("ERR " + err.Error())
	case !old:
		r.integer(n)
	case n == 0:
		r.error("ERR No such client")
	default:
		r.ok()
	}
	return why
}

// expel closes a connection. Its subscriptions end at once: the peer's end may take a while.
func (h *Hub) expel(c *tcp.Conn) {
	if k, ok := c.Value().(holder); ok {
		h.closed(k.held(), c.Ref())
	}
	c.CloseWith(tcp.ErrClosedByOperator)
}

func (t *turn) clientHelp() {
	t.help("CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
		"GETNAME", "    Return the name of the current connection.",
		"ID", "    Return the ID of the current connection.",
		"INFO", "    Return information about the current client connection.",
		"KILL <ip:port>", "    Kill connection made from <ip:port>.",
		"KILL <option> <value> [<option> <value> [...]]", "    Kill connections. Options are:",
		"    * ID <client-id>, ADDR <ip:port>, LADDR <ip:port>",
		"    * TYPE (NORMAL|PUBSUB), USER <username>, SKIPME (YES|NO)",
		"LIST [TYPE (NORMAL|PUBSUB)] | [ID <client-id> ...]", "    Return information about client connections.",
		"NO-EVICT (ON|OFF), NO-TOUCH (ON|OFF), SETINFO <option> <value>", "    Accepted, and without effect.",
		"REPLY (ON|OFF|SKIP)", "    Control the replies sent to the current connection.",
		"SETNAME <name>", "    Assign the name <name> to the current connection.",
		"HELP", "    Prints this help.")
}
