package hub

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Handler is what a tcp.Server serves a hub with: on one port the Redis protocol, versions
// 2 and 3, and HTTP with WebSockets and server-sent events. What a connection begins with says
// which it is. Each call gives a Handler for the same hub.
func (h *Hub) Handler() tcp.Handler { return handler{hub: h} }

type handler struct {
	tcp.Base
	hub *Hub
}

// respSession is the Value of a connection of the Redis protocol. It takes 48 bytes.
type respSession struct {
	client
	*sessionDetails // nil if there are none
	replyFlags
	lastCommand uint16 // command: its number
}

// sessionDetails are what few sessions have.
type sessionDetails struct {
	clientName string        // by CLIENT SETNAME
	progress   parseProgress // of a command that is not complete
	argsDone   int           // how many arguments of a complete one are done, which goes on later
}

// replyFlags are what there is to know about a session's replies.
type replyFlags uint8

const (
	// repliesOff says that there are no replies (CLIENT REPLY OFF), skips that the next command
	// has none.
	repliesOff replyFlags = 1 << iota
	skipNextReply
)

func (f replyFlags) has(any replyFlags) bool { return f&any != 0 }

// httpPrefixes are what an HTTP connection begins with. No command of Redis does.
var httpPrefixes = []string{"GET /", "POST /", "HEAD /", "OPTIONS /", "PUT /", "DELETE /"}

// detectHTTP says whether in begins with HTTP; sure is false if it takes more bytes to know.
func detectHTTP(input []byte) (isHTTP, sure bool) {
	sure = true
	for _, prefix := range httpPrefixes {
		switch n := min(len(input), len(prefix)); {
		case string(input[:n]) != prefix[:n]:
		case n == len(prefix):
			return true, true
		default:
			sure = false
		}
	}
	return false, sure
}

// authTimeout is how long a client has to say who it is, where it must.
const authTimeout = time.Minute

// Received implements tcp.Handler.
func (h handler) Received(c *tcp.Conn, input []byte) (used int) {
	session, ok := c.Value().(*respSession)
	if !ok {
		isHTTP, sure := detectHTTP(input)
		switch {
		case !sure:
			return 0
		case isHTTP:
			web := h.hub.httpHandler()
			_ = c.SetHandler(web)
			web.Opened(c)
			return web.Received(c, input)
		}
		session = &respSession{client: client{user: h.hub.initialUser(c.TLS())}}
		c.SetValue(session)
		if session.user == nil {
			c.SetDeadline(authTimeout)
		}
	}
	batch := batchPool.Get().(*commandBatch)
	batch.bind(h.hub, c, session)
	used = batch.runCommands(input)
	batch.returnToPool()
	return used
}

// Closed implements tcp.Handler.
func (h handler) Closed(c *tcp.Conn, reason error) {
	if session, ok := c.Value().(*respSession); ok {
		h.hub.cleanUpClosedClient(&session.client, c, reason)
	}
}

// NextProtos implements tcp.ALPNHandler.
func (h handler) NextProtos(configured []string) []string {
	return h.hub.httpHandler().NextProtos(configured)
}

// Heartbeat implements tcp.HeartbeatHandler: the Redis protocol has none. WebSockets and
// streams have their own.
func (handler) Heartbeat(*tcp.Conn) (answers bool) { return false }

// commandBatch is one call of Received. It has all that takes room while commands are run, so that an
// idle session has none.
type commandBatch struct {
	commandReader
	replyWriter
	*respSession
	hub         *Hub
	conn        *tcp.Conn
	ref         tcp.Ref
	command     *command
	noReply     bool  // the command has no reply
	commandsRun int64 // commands
	work        int   // how much has been done
	replyStart  int   // where in out the command's replies do
	sentBytes   int   // bytes of replies
	maxUnsent   int   // Limits.MaxUnsent
	stopped     bool  // nothing more is read now
	closing     bool  // the connection closes
	// confirmVerb and name are what a confirmation tells, which confirmed makes: SUBSCRIBE and a topic.
	confirmVerb, confirmName string
	onSubscribed             func(count int)
}

var batchPool = sync.Pool{New: func() any {
	t := new(commandBatch)
	t.onSubscribed = t.confirmSubscription
	return t
}}

// Bounds of a turn. Where one is reached, other connections have their turn first.
const (
	// maxFlushBytes is how many bytes of replies are put together, at most an eighth of
	// Limits.MaxUnsent, of which a turn may send a quarter.
	maxFlushBytes = 16 << 10
	// maxBatchWork is how many commands there are, with topics joined, one more for receiversPerWork
	// receivers of a message, which are cheap, and one more for each replyBytesPerWork of a reply. A
	// client that publishes several messages to a large topic at once has them all go out in one
	// turn, so that each subscriber gets them in one send.
	maxBatchWork      = 10_000
	receiversPerWork  = 32
	replyBytesPerWork = 64
	// One more is for matchUnitsPerWork units of work with patterns, and for patternBytesPerWork bytes of a new one.
	matchUnitsPerWork   = 25
	patternBytesPerWork = 16
	// maxPooledArgs is the most arguments whose room is used again.
	maxPooledArgs = 4096
)

func (b *commandBatch) bind(hub *Hub, conn *tcp.Conn, session *respSession) {
	b.hub, b.conn, b.ref, b.respSession = hub, conn, conn.Ref(), session
	b.resp3 = session.format == formatRESP3
	b.maxUnsent = cmp.Or(conn.Server().Limits.MaxUnsent, 1<<20)
	b.commandLimits = newCommandLimits(cmp.Or(conn.Server().Limits.MaxMessage, 64<<10), false)
	b.commandsRun, b.work, b.sentBytes, b.stopped, b.closing = 0, 0, 0, false, false
}

func (b *commandBatch) returnToPool() {
	b.hub.commandsRun.Add(b.commandsRun)
	clear(b.args)
	if cap(b.args) > maxPooledArgs {
		b.args = nil
	}
	if cap(b.unquotedArgs) > maxPooledBuffer {
		b.unquotedArgs = nil
	}
	if cap(b.buf) > maxPooledBuffer {
		b.buf = nil
	}
	b.hub, b.conn, b.ref, b.respSession, b.command = nil, nil, tcp.Ref{}, nil, nil
	batchPool.Put(b)
}

// runCommands runs the commands that in has, and says how many bytes they are.
func (b *commandBatch) runCommands(input []byte) (used int) {
	for used < len(input) && !b.stopped {
		n, err := b.readCommand(input[used:])
		if err != nil {
			b.closeOnProtocolError(err)
			return len(input)
		}
		if n == 0 {
			break
		}
		if len(b.args) > 0 && !b.runCommand() {
			break
		}
		used += n
		b.flushOrYieldIfNeeded()
	}
	b.flushReplies()
	if b.repliesInMessageOrder && b.sentBytes >= b.flushSize() {
		b.yield() // what is posted is not yet output, which would pause reading
	}
	return used
}

// readCommand reads a command; n is 0 if it is not complete.
func (b *commandBatch) readCommand(input []byte) (n int, err error) {
	var progress parseProgress
	if b.sessionDetails != nil {
		progress = b.progress
	}
	b.commandLimits = newCommandLimits(b.maxBytes, b.user == nil)
	n, err = b.commandReader.parseCommand(input, &progress)
	b.updateDetails(progress != parseProgress{}, func(d *sessionDetails) { d.progress = progress })
	return n, err
}

// updateDetails sets something of the session's details. They are made only if there is something.
func (b *commandBatch) updateDetails(create bool, set func(*sessionDetails)) {
	if b.sessionDetails == nil {
		if !create {
			return
		}
		b.sessionDetails = new(sessionDetails)
	}
	set(b.sessionDetails)
	if *b.sessionDetails == (sessionDetails{}) {
		b.sessionDetails = nil
	}
}

// closeOnProtocolError answers what is no command, or one that is too long, which it counts, and closes the connection.
func (b *commandBatch) closeOnProtocolError(cause error) {
	if errors.Is(cause, tcp.ErrMessageTooLong) {
		_ = b.hub.countRefusal(errMessageTooLong)
	}
	var e protocolError
	errors.As(cause, &e)
	if !b.replyFlags.has(repliesOff) {
		b.writeError("ERR Protocol error: " + string(e))
	}
	b.flushAndClose(cause)
}

// flushOrYieldIfNeeded sends replies when there are many, and lets others have their turn.
func (b *commandBatch) flushOrYieldIfNeeded() {
	if len(b.buf) >= b.flushSize() {
		b.flushReplies()
	}
	if !b.stopped && b.overBudget() {
		b.yield()
	}
}

// flushSize is how many bytes of replies are put together.
func (b *commandBatch) flushSize() int { return min(maxFlushBytes, b.maxUnsent/8) }

// overBudget says whether others are to have their turn.
func (b *commandBatch) overBudget() bool {
	return b.work >= maxBatchWork || b.sentBytes >= b.maxUnsent/4
}

// yield goes on in another call, when what was sent has become output of the connection.
func (b *commandBatch) yield() {
	b.flushReplies()
	if b.stopped {
		return
	}
	b.stopped = true
	b.conn.Pause()
	if err := b.ref.Do((*tcp.Conn).Resume); err != nil {
		b.closeOnSendError(err)
	}
}

// flushReplies sends the replies. Where the last is too large, those before it are not.
func (b *commandBatch) flushReplies() {
	if b.replyStart > 0 && len(b.buf) > b.maxUnsent {
		b.sendReplies(b.buf[:b.replyStart])
		b.buf = b.buf[b.replyStart:]
	}
	b.sendReplies(b.buf)
	b.buf, b.replyStart = b.buf[:0], 0
}

func (b *commandBatch) sendReplies(replies []byte) {
	if len(replies) == 0 || b.closing {
		return
	}
	var err error
	if b.repliesInMessageOrder {
		err = b.ref.Send(replies)
	} else {
		_, err = b.conn.Write(replies)
	}
	if b.sentBytes += len(replies); err != nil {
		b.closeOnSendError(err)
	}
}

// closeOnSendError closes a connection for whose replies there is no room: without one of them the client
// would take the next for it.
func (b *commandBatch) closeOnSendError(err error) { b.unsubscribeAndClose(noReplySpaceError(err)) }

// flushAndClose closes the connection, behind the replies.
func (b *commandBatch) flushAndClose(reason error) {
	if b.flushReplies(); !b.closing {
		b.unsubscribeAndClose(reason)
	}
}

// unsubscribeAndClose closes the connection behind what has been sent. Its subscriptions end at once: the
// peer's end may take a while.
func (b *commandBatch) unsubscribeAndClose(reason error) {
	b.stopped, b.closing = true, true
	b.hub.unsubscribeAll(&b.client, b.ref)
	if b.repliesInMessageOrder {
		b.conn.Pause()
		if b.ref.Do(func(c *tcp.Conn) { c.CloseWith(reason) }) == nil {
			return
		}
	}
	b.conn.CloseWith(reason)
}

// runCommand runs the command that was read. It reports whether it is done: otherwise the rest of it
// is for another turn.
func (b *commandBatch) runCommand() (done bool) {
	b.work++
	b.commandsRun++
	b.noReply = b.replyFlags.has(repliesOff | skipNextReply)
	b.replyFlags &^= skipNextReply
	if b.noReply {
		b.flushReplies()
	}
	b.replyStart = len(b.buf)
	cmd, errorReply := b.resolveCommand()
	if errorReply != "" {
		b.writeError(errorReply)
	} else {
		b.command = cmd
		before := b.sentBytes + len(b.buf)
		cmd.run(b)
		b.work += (b.sentBytes + len(b.buf) - before) / replyBytesPerWork
	}
	if b.noReply && (errorReply != "" || !cmd.ignoresReplyOff) {
		b.buf, b.replyStart = b.buf[:0], 0
	}
	return b.sessionDetails == nil || b.argsDone == 0
}

// resolveCommand finds the command of the arguments, or says why it may not be run.
func (b *commandBatch) resolveCommand() (cmd *command, errorReply string) {
	cmd = lookupCommand(commands, b.args[0])
	if cmd == nil {
		return nil, fmt.Sprintf("ERR unknown command '%s'; this hub has publish/subscribe only, it is no store", truncateForError(b.args[0]))
	}
	if cmd.subcommands != nil && len(b.args) > 1 {
		sub := lookupCommand(cmd.subcommands, b.args[1])
		if sub == nil {
			return nil, fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", truncateForError(b.args[1]), strings.ToUpper(cmd.name))
		}
		cmd = sub
	}
	b.lastCommand = cmd.id
	switch n := len(b.args); {
	case cmd.arity > 0 && n != cmd.arity, n < -cmd.arity:
		return nil, wrongArgCountReply(cmd.name)
	case b.user == nil && !cmd.beforeAuth:
		return nil, "NOAUTH Authentication required."
	case !cmd.beforeAuth && !b.user.mayRun(cmd.name):
		return nil, fmt.Sprintf("NOPERM this user has no permissions to run the '%s' command", cmd.name)
	case !b.resp3 && !cmd.whileSubscribed && b.subscriptionCount() > 0:
		return nil, fmt.Sprintf("ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context", cmd.name)
	}
	return cmd, ""
}

func wrongArgCountReply(commandName string) string {
	return fmt.Sprintf("ERR wrong number of arguments for '%s' command", commandName)
}
