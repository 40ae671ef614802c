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

func registerClientCommands() map[string]*command {
	doc := func(since, summary string) commandDoc {
		return commandDoc{"connection", since, summary, []string{"noscript", "loading", "stale"}}
	}
	return assignIDsAndMapByName(
		&command{name: "client|id", arity: 2, run: func(b *commandBatch) { b.writeInt(int(b.ref.ID())) }, commandDoc: doc("5.0.0", "Returns the client ID for the current connection")},
		&command{name: "client|getname", arity: 2, run: (*commandBatch).handleClientGetname, commandDoc: doc("2.6.9", "Get the current connection name")},
		&command{name: "client|setname", arity: 3, run: (*commandBatch).handleClientSetname, commandDoc: doc("2.6.9", "Set the current connection name")},
		&command{name: "client|setinfo", arity: 4, run: (*commandBatch).handleIgnoredClientSetinfo, commandDoc: doc("7.2.0", "Set information specific to the client or connection")},
		&command{name: "client|info", arity: 2, run: (*commandBatch).handleClientInfo, commandDoc: doc("6.2.0", "Returns information about the current client connection.")},
		&command{name: "client|list", arity: -2, run: (*commandBatch).handleClientList, commandDoc: doc("2.4.0", "Get the list of client connections")},
		&command{name: "client|kill", arity: -3, run: (*commandBatch).handleClientKill, commandDoc: doc("2.4.0", "Kill the connection of a client")},
		&command{name: "client|reply", arity: 3, run: (*commandBatch).handleClientReply, commandDoc: doc("3.2.0", "Instruct the server whether to reply to commands")},
		&command{name: "client|no-evict", arity: 3, run: (*commandBatch).handleIgnoredOnOff, commandDoc: doc("7.0.0", "Set client eviction mode for the current connection")},
		&command{name: "client|no-touch", arity: 3, run: (*commandBatch).handleIgnoredOnOff, commandDoc: doc("7.2.0", "Set whether commands change what is known of keys' use")},
		&command{name: "client|getredir", arity: 2, run: func(b *commandBatch) { b.writeInt(-1) }, commandDoc: doc("6.0.0", "Get tracking notifications redirection client ID if any")},
		&command{name: "client|help", arity: 2, run: (*commandBatch).handleClientHelp, commandDoc: doc("5.0.0", "Show helpful text about the different subcommands")},
	)
}

func (b *commandBatch) handleClientGetname() {
	if b.sessionDetails == nil || b.sessionDetails.clientName == "" {
		b.writeNull()
	} else {
		b.writeBulk(b.sessionDetails.clientName)
	}
}

func (b *commandBatch) handleClientSetname() {
	if !isValidClientName(b.args[2]) {
		b.writeError(badClientNameReply)
		return
	}
	b.setClientName(b.args[2])
	b.writeOK()
}

// handleIgnoredClientSetinfo accepts the name and version of the client library but does not store them. Storing the
// name and version would take more memory than the rest of a session.
func (b *commandBatch) handleIgnoredClientSetinfo() {
	switch {
	case !equalsFold(b.args[2], "lib-name") && !equalsFold(b.args[2], "lib-ver"):
		b.writeError("ERR Unrecognized option '" + truncateForError(b.args[2]) + "'")
	case !isValidClientName(b.args[3]):
		b.writeError("ERR " + string(appendLower(nil, b.args[2])) + " cannot contain spaces, newlines or special characters.")
	default:
		b.writeOK()
	}
}

func (b *commandBatch) handleClientReply() {
	switch {
	case equalsFold(b.args[2], "on"):
		b.replyFlags &^= repliesOff
		b.noReply = false
		b.writeOK()
	case equalsFold(b.args[2], "off"):
		b.replyFlags |= repliesOff
	case equalsFold(b.args[2], "skip"):
		b.replyFlags |= skipNextReply
	default:
		b.writeError(syntaxErrorReply)
	}
}

func (b *commandBatch) handleClientInfo() { b.writeVerbatim(string(appendClientInfo(nil, b.conn))) }

// appendClientInfo appends the connection's line of CLIENT LIST. It must be called on the connection's event loop.
func appendClientInfo(dst []byte, conn *tcp.Conn) []byte {
	var name string
	var sub, psub, ssub int
	userName, flag := anyone.name, "N"
	s, _ := conn.Value().(*respSession)
	if s != nil && s.sessionDetails != nil {
		name = s.sessionDetails.clientName
	}
	if h, ok := conn.Value().(clientHolder); ok {
		client := h.hubClient()
		if client.subscriptionCount() > 0 {
			flag = "P"
		}
		sub, psub, ssub = client.subscriptionCountOfKind(Topic), client.subscriptionCountOfKind(Pattern), client.subscriptionCountOfKind(Sharded)
		if client.user != nil {
			userName = client.user.name
		}
	}
	lastCommand := commandsByID[0].name
	if s != nil {
		lastCommand = commandsByID[s.lastCommand].name
	}
	dst = fmt.Appendf(dst, "id=%d addr=%s laddr=%s name=%s flags=%s db=0 sub=%d psub=%d ssub=%d multi=-1 omem=%d dropped=%d cmd=%s user=%s redir=-1",
		conn.Ref().ID(), formatClientAddr(conn.Ref().RemoteAddr()), formatClientAddr(conn.Ref().LocalAddr()), name, flag, sub, psub, ssub, conn.Pending(), conn.Dropped(), lastCommand, userName)
	if s != nil {
		dst = fmt.Appendf(dst, " resp=%d", 2+s.format)
	}
	return append(dst, '\n')
}

func formatClientAddr(addr netip.AddrPort, _ bool) string {
	if !addr.IsValid() {
		return "unix:0"
	}
	return addr.String()
}

// clientFilter selects connections for CLIENT LIST and CLIENT KILL. A zero field has no effect.
type clientFilter struct {
	ids         map[uint64]bool
	addr, laddr string
	clientType  string
	user        string
	exclude     tcp.Ref
}

func (f *clientFilter) addID(id int) {
	if f.ids == nil {
		f.ids = make(map[uint64]bool)
	}
	f.ids[uint64(id)] = true
}

func (f *clientFilter) matches(c *tcp.Conn) bool {
	ref := c.Ref()
	switch {
	case ref == f.exclude, len(f.ids) > 0 && !f.ids[ref.ID()],
		f.addr != "" && f.addr != formatClientAddr(ref.RemoteAddr()), f.laddr != "" && f.laddr != formatClientAddr(ref.LocalAddr()):
		return false
	}
	h, ok := c.Value().(clientHolder)
	if f.clientType != "" && f.clientType != pubsubOrNormalType(h, ok) {
		return false
	}
	return f.user == "" || ok && cmp.Or(h.hubClient().user, anyone).name == f.user
}

// pubsubOrNormalType returns "pubsub" for a client with subscriptions and "normal" for any other client, as Redis does.
func pubsubOrNormalType(holder clientHolder, isHolder bool) string {
	if isHolder && holder.hubClient().subscriptionCount() > 0 {
		return "pubsub"
	}
	return "normal"
}

// parseFilterOptionOrReplyError sets one option of the filter. If the option is invalid, it replies with an error and
// returns false.
func (b *commandBatch) parseFilterOptionOrReplyError(filter *clientFilter, name, value []byte) (ok bool) {
	switch {
	case equalsFold(name, "id"):
		id, ok := parseRedisInt(value)
		if !ok || id < 1 {
			b.writeError("ERR client-id should be greater than 0")
			return false
		}
		filter.addID(id)
	case equalsFold(name, "addr"):
		filter.addr = string(value)
	case equalsFold(name, "laddr"):
		filter.laddr = string(value)
	case equalsFold(name, "user"):
		if filter.user = string(value); !b.hub.hasUser(filter.user) {
			b.writeError("ERR No such user '" + truncateForError(value) + "'")
			return false
		}
	case equalsFold(name, "type"):
		filter.clientType = string(appendLower(nil, value))
		if !slices.Contains([]string{"normal", "pubsub", "master", "replica", "slave"}, filter.clientType) {
			b.writeError("ERR Unknown client type '" + truncateForError(value) + "'")
			return false
		}
	case equalsFold(name, "skipme") && equalsFold(value, "yes"):
		filter.exclude = b.ref
	case equalsFold(name, "skipme") && equalsFold(value, "no"):
		filter.exclude = tcp.Ref{}
	default:
		b.writeError(syntaxErrorReply)
		return false
	}
	return true
}

func (h *Hub) hasUser(userName string) bool {
	if h.Users == nil {
		return userName == defaultUser
	}
	return h.Users.currentRoster().byName[userName] != nil
}

func (b *commandBatch) handleClientList() {
	var filter clientFilter
	switch args := b.args[2:]; {
	case len(args) == 0:
	case len(args) >= 2 && equalsFold(args[0], "id"):
		for _, a := range args[1:] {
			id, ok := parseRedisInt(a)
			if !ok {
				b.writeError("ERR Invalid client ID")
				return
			}
			filter.addID(id)
		}
	case len(args) == 2 && equalsFold(args[0], "type"):
		if !b.parseFilterOptionOrReplyError(&filter, args[0], args[1]) {
			return
		}
	default:
		b.writeError(syntaxErrorReply)
		return
	}
	srv, maxBytes := b.conn.Server(), b.maxUnsent/4
	b.replyInBackground(func(ctx context.Context, r *replyWriter) error {
		return r.writeClientListOrError(ctx, srv, &filter, maxBytes)
	})
}

func (r *replyWriter) writeClientListOrError(ctx context.Context, srv *tcp.Server, filter *clientFilter, maxBytes int) error {
	var mu sync.Mutex
	var list []byte
	n := 0
	err := srv.Each(ctx, func(c *tcp.Conn) {
		if !filter.matches(c) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if n++; len(list) <= maxBytes {
			list = appendClientInfo(list, c)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err != nil:
		r.writeError("ERR " + err.Error())
	case len(list) > maxBytes:
		r.writeError(fmt.Sprintf("ERR the list of %d clients exceeds %d bytes; use TYPE or ID", n, maxBytes))
	default:
		r.writeVerbatim(string(list))
	}
	return nil
}

func (b *commandBatch) handleClientKill() {
	filter, legacyForm := clientFilter{exclude: b.ref}, len(b.args) == 3
	if legacyForm {
		filter = clientFilter{addr: string(b.args[2])}
	} else if len(b.args)%2 != 0 {
		b.writeError(syntaxErrorReply)
		return
	}
	for args := b.args[2:]; !legacyForm && len(args) > 0; args = args[2:] {
		if !b.parseFilterOptionOrReplyError(&filter, args[0], args[1]) {
			return
		}
	}
	hub, srv, self := b.hub, b.conn.Server(), b.ref
	b.replyInBackground(func(ctx context.Context, r *replyWriter) error {
		return r.killClientsAndWriteReply(ctx, hub, srv, &filter, self, legacyForm)
	})
}

// killClientsAndWriteReply closes the matching connections and writes the reply. If self, the caller's connection,
// matches, the caller must close it with the error closeReason after the reply.
func (r *replyWriter) killClientsAndWriteReply(ctx context.Context, hub *Hub, srv *tcp.Server, filter *clientFilter, self tcp.Ref, legacyForm bool) (closeReason error) {
	var mu sync.Mutex
	n := 0
	err := srv.Each(ctx, func(c *tcp.Conn) {
		if !filter.matches(c) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		n++
		if c.Ref() == self {
			closeReason = tcp.ErrClosedByOperator
		} else {
			hub.unsubscribeAndKillClient(c)
		}
	})
	mu.Lock()
	defer mu.Unlock()
	switch {
	case err != nil:
		r.writeError("ERR " + err.Error())
	case !legacyForm:
		r.writeInt(n)
	case n == 0:
		r.writeError("ERR No such client")
	default:
		r.writeOK()
	}
	return closeReason
}

// unsubscribeAndKillClient ends the client's subscriptions at once and closes the connection, which may take longer.
func (h *Hub) unsubscribeAndKillClient(conn *tcp.Conn) {
	if holder, ok := conn.Value().(clientHolder); ok {
		h.unsubscribeAllAndStopReplay(holder.hubClient(), conn.Ref())
	}
	conn.CloseWith(tcp.ErrClosedByOperator)
}

func (b *commandBatch) handleClientHelp() {
	b.writeHelp("CLIENT <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
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
