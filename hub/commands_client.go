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
		&command{name: "client|setinfo", arity: 4, run: (*commandBatch).handleClientSetinfo, commandDoc: doc("7.2.0", "Set information specific to the client or connection")},
		&command{name: "client|info", arity: 2, run: func(b *commandBatch) { b.writeVerbatim(string(b.hub.appendClientInfo(nil, b.conn))) }, commandDoc: doc("6.2.0", "Returns information about the current client connection.")},
		&command{name: "client|list", arity: -2, notInTransaction: true, run: (*commandBatch).handleClientList, commandDoc: doc("2.4.0", "Get the list of client connections")},
		&command{name: "client|kill", arity: -3, notInTransaction: true, run: (*commandBatch).handleClientKill, commandDoc: doc("2.4.0", "Kill the connection of a client")},
		&command{name: "client|reply", arity: 3, notInTransaction: true, run: (*commandBatch).handleClientReply, commandDoc: doc("3.2.0", "Instruct the server whether to reply to commands")},
		&command{name: "client|no-evict", arity: 3, run: (*commandBatch).handleIgnoredOnOff, commandDoc: doc("7.0.0", "Set client eviction mode for the current connection")},
		&command{name: "client|no-touch", arity: 3, run: (*commandBatch).handleIgnoredOnOff, commandDoc: doc("7.2.0", "Control whether commands of the client affect the LRU/LFU of the keys they access")},
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

func (b *commandBatch) handleClientSetinfo() {
	l := b.hub.libraries.byID(b.knownLibrary)
	switch {
	case equalsFold(b.args[2], "lib-name"):
		l.name = string(b.args[3])
	case equalsFold(b.args[2], "lib-ver"):
		l.version = string(b.args[3])
	default:
		b.writeError("ERR Unrecognized option '" + truncateForError(b.args[2]) + "'")
		return
	}
	if !isValidClientName(b.args[3]) {
		b.writeError("ERR " + string(appendLower(nil, b.args[2])) + " cannot contain spaces, newlines or special characters.")
		return
	}
	b.knownLibrary = b.hub.libraries.getOrAddID(l)
	b.writeOK()
}

type clientLibrary struct{ name, version string }

// libraryID identifies a client library in a libraryTable. The value 0 means unknown.
type libraryID uint16

const maxLibraries = 1000

// libraryTable contains the names and versions of the clients' libraries. It is safe for concurrent use.
type libraryTable struct {
	mu   sync.Mutex
	list []clientLibrary // list[0] has ID 1
	ids  map[clientLibrary]libraryID
}

// getOrAddID returns the ID of l, and adds l if necessary. It returns 0 if l is empty or the table is full.
func (t *libraryTable) getOrAddID(l clientLibrary) libraryID {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.ids[l]
	if id == 0 && l != (clientLibrary{}) && len(t.list) < maxLibraries {
		if t.ids == nil {
			t.ids = make(map[clientLibrary]libraryID)
		}
		t.list = append(t.list, l)
		id = libraryID(len(t.list))
		t.ids[l] = id
	}
	return id
}

func (t *libraryTable) byID(id libraryID) clientLibrary {
	if id == 0 {
		return clientLibrary{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.list[id-1]
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

// appendClientInfo appends the line that CLIENT LIST shows for a connection. Call it on the connection's event loop.
func (h *Hub) appendClientInfo(dst []byte, conn *tcp.Conn) []byte {
	var name, times, respFields string
	var sub, psub, ssub int
	userName, flag, lastCommand, queued := unrestrictedUser.name, "N", commandsByID[0].name, -1
	now := secondsSinceStart()
	if holder, ok := conn.Value().(clientHolder); ok {
		client := holder.hubClient()
		times = fmt.Sprintf(" age=%d", now-client.since)
		if client.subscriptionCount() > 0 {
			flag = "P"
		}
		sub, psub, ssub = client.subscriptionCountOfKind(Topic), client.subscriptionCountOfKind(Pattern), client.subscriptionCountOfKind(Sharded)
		if client.user != nil {
			userName = client.user.name
		}
	}
	if s, ok := conn.Value().(*respSession); ok {
		if s.sessionDetails != nil {
			name = s.clientName
		}
		if tx := s.transactionOrNil(); tx != nil {
			queued = tx.queuedCommands
		}
		library := h.libraries.byID(s.knownLibrary)
		times += fmt.Sprintf(" idle=%d", now-s.lastCommandAt)
		lastCommand = commandsByID[s.lastCommand].name
		respFields = fmt.Sprintf(" resp=%d lib-name=%s lib-ver=%s", 2+s.format, library.name, library.version)
	}
	return fmt.Appendf(dst, "id=%d addr=%s laddr=%s name=%s%s flags=%s db=0 sub=%d psub=%d ssub=%d multi=%d omem=%d dropped=%d cmd=%s user=%s redir=-1%s\n",
		conn.Ref().ID(), formatClientAddr(conn.Ref().RemoteAddr()), formatClientAddr(conn.Ref().LocalAddr()), name, times, flag, sub, psub, ssub,
		queued, conn.Pending(), conn.Dropped(), lastCommand, userName, respFields)
}

func formatClientAddr(addr netip.AddrPort, _ bool) string {
	if !addr.IsValid() {
		return "unix:0"
	}
	return addr.String()
}

// clientFilter selects connections for CLIENT LIST and CLIENT KILL. Fields with the zero value have no effect.
type clientFilter struct {
	ids         map[uint64]bool
	addr, laddr string
	clientType  string
	user        string
	exclude     tcp.Ref
}

func (f *clientFilter) matches(c *tcp.Conn) bool {
	ref := c.Ref()
	switch {
	case ref == f.exclude, len(f.ids) > 0 && !f.ids[ref.ID()],
		f.addr != "" && f.addr != formatClientAddr(ref.RemoteAddr()), f.laddr != "" && f.laddr != formatClientAddr(ref.LocalAddr()):
		return false
	}
	h, ok := c.Value().(clientHolder)
	clientType := "normal"
	if ok && h.hubClient().subscriptionCount() > 0 {
		clientType = "pubsub"
	}
	if f.clientType != "" && f.clientType != clientType {
		return false
	}
	return f.user == "" || ok && cmp.Or(h.hubClient().user, unrestrictedUser).name == f.user
}

func (b *commandBatch) parseFilterOptionOrReplyError(filter *clientFilter, name, value []byte) (ok bool) {
	switch {
	case equalsFold(name, "id"):
		id, ok := parseRedisInt(value)
		if !ok || id < 1 {
			b.writeError("ERR client-id should be greater than 0")
			return false
		}
		filter.ids[uint64(id)] = true
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
	filter := clientFilter{ids: make(map[uint64]bool)}
	switch args := b.args[2:]; {
	case len(args) == 0:
	case len(args) >= 2 && equalsFold(args[0], "id"):
		for _, a := range args[1:] {
			id, ok := parseRedisInt(a)
			if !ok {
				b.writeError("ERR Invalid client ID")
				return
			}
			filter.ids[uint64(id)] = true
		}
	case len(args) == 2 && equalsFold(args[0], "type"):
		if !b.parseFilterOptionOrReplyError(&filter, args[0], args[1]) {
			return
		}
	default:
		b.writeError(syntaxErrorReply)
		return
	}
	hub, srv, maxBytes := b.hub, b.conn.Server(), b.maxUnsent/4
	b.replyInBackgroundIf(true, func(ctx context.Context, r *replyWriter) {
		var list []byte
		n := 0
		err := eachConnSerially(ctx, srv, filter.matches, func(c *tcp.Conn) {
			if n++; len(list) <= maxBytes {
				list = hub.appendClientInfo(list, c)
			}
		})
		switch {
		case err != nil:
			r.writeError("ERR " + err.Error())
		case len(list) > maxBytes:
			r.writeError(fmt.Sprintf("ERR the list of %d clients exceeds %d bytes; use TYPE or ID", n, maxBytes))
		default:
			r.writeVerbatim(string(list))
		}
	})
}

func (b *commandBatch) handleClientKill() {
	filter, legacyForm := clientFilter{ids: make(map[uint64]bool), exclude: b.ref}, len(b.args) == 3
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
	b.replyInBackground(func(ctx context.Context, r *replyWriter) (closeReason error) {
		n := 0
		err := eachConnSerially(ctx, srv, filter.matches, func(c *tcp.Conn) {
			n++
			if c.Ref() == self {
				closeReason = tcp.ErrClosedByOperator // closes after the reply
			} else {
				hub.unsubscribeAndCloseClient(c)
			}
		})
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
	})
}

func (h *Hub) unsubscribeAndCloseClient(conn *tcp.Conn) {
	if holder, ok := conn.Value().(clientHolder); ok {
		h.unsubscribeAllAndStopReplay(holder.hubClient(), conn.Ref())
	}
	conn.CloseWith(tcp.ErrClosedByOperator)
}

func (b *commandBatch) handleClientHelp() {
	b.writeHelp("CLIENT",
		"GETNAME", "    Return the name of the current connection.",
		"ID", "    Return the ID of the current connection.",
		"INFO", "    Return information about the current client connection.",
		"KILL <ip:port>", "    Kill connection made from <ip:port>.",
		"KILL <option> <value> [<option> <value> [...]]", "    Kill connections. Options are:",
		"    * ID <client-id>, ADDR <ip:port>, LADDR <ip:port>",
		"    * TYPE (NORMAL|PUBSUB), USER <username>, SKIPME (YES|NO)",
		"LIST [TYPE (NORMAL|PUBSUB)] | [ID <client-id> ...]", "    Return information about client connections.",
		"NO-EVICT (ON|OFF), NO-TOUCH (ON|OFF)", "    Accepted, and without effect.",
		"REPLY (ON|OFF|SKIP)", "    Control the replies sent to the current connection.",
		"SETINFO <option> <value>", "    Set LIB-NAME or LIB-VER of the current connection.",
		"SETNAME <name>", "    Assign the name <name> to the current connection.")
}
