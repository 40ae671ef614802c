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

// Handler returns a handler for a tcp.Server. The handler serves RESP2, RESP3, and HTTP with WebSockets and server-sent
// events on the same port. A connection's first bytes determine its protocol. SubscribedToAll handlers of a hub are
// equivalent.
func (h *Hub) Handler() tcp.Handler { return redisOrHTTPHandler{hub: h} }

type redisOrHTTPHandler struct {
	tcp.Base
	hub *Hub
}

// respSession is the state of a connection that uses the Redis protocol.
type respSession struct {
	client
	*sessionDetails // nil if unused
	replyFlags
	lastCommand   uint8     // ID, see commandsByID
	knownLibrary  libraryID // set by CLIENT SETINFO
	lastCommandAt uint32    // see secondsSinceStart
}

type sessionDetails struct {
	clientName  string        // set by CLIENT SETNAME
	progress    parseProgress // of an incomplete command
	*unfinished               // nil if unused
}

// unfinished describes an open transaction, or a command that a later batch continues.
type unfinished struct {
	argsDone    int // arguments processed, or bytes of queued commands that EXEC has run
	transaction *transaction
}

type replyFlags uint8

const (
	// repliesOff suppresses all replies (CLIENT REPLY OFF). skipNextReply suppresses the reply to the next command.
	repliesOff replyFlags = 1 << iota
	skipNextReply
)

func (f replyFlags) has(any replyFlags) bool { return f&any != 0 }

// httpPrefixes are the first bytes of HTTP requests. No Redis command begins with them.
var httpPrefixes = []string{"GET /", "POST /", "HEAD /", "OPTIONS /", "PUT /", "DELETE /"}

// detectHTTP reports whether input begins with an HTTP request. sure is false if more input is needed to decide.
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

const authTimeout = time.Minute

func (h redisOrHTTPHandler) Received(c *tcp.Conn, input []byte) (used int) {
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
		session = &respSession{client: client{user: h.hub.initialUser(c.TLS()), since: secondsSinceStart()}}
		c.SetValue(session)
		if session.user == nil {
			c.SetDeadline(authTimeout)
		}
	}
	session.lastCommandAt = secondsSinceStart()
	batch := batchPool.Get().(*commandBatch)
	batch.bindToConn(h.hub, c, session)
	used = batch.runCommands(input)
	batch.countCommandsAndReturnToPool()
	return used
}

func (h redisOrHTTPHandler) Closed(c *tcp.Conn, reason error) {
	h.hub.countLostIfSlowThenUnsubscribe(c, reason)
}

func (h redisOrHTTPHandler) NextProtos(configured []string) []string {
	return h.hub.httpHandler().NextProtos(configured)
}

// Heartbeat implements tcp.HeartbeatHandler. It returns false because the Redis protocol has no heartbeat.
func (redisOrHTTPHandler) Heartbeat(*tcp.Conn) (answers bool) { return false }

// commandBatch runs the commands that one call of Received finds in its input.
type commandBatch struct {
	commandReader
	replyWriter
	*respSession
	hub         *Hub
	conn        *tcp.Conn
	ref         tcp.Ref
	command     *command
	maxCommand  int    // limit of a command's or transaction's bytes
	queue       []byte // the open transaction's commands
	noReply     bool   // the command's reply is suppressed
	commandsRun int64
	work        int // part of maxBatchWork that is spent
	replyStart  int // index in buf of the current command's reply
	sentBytes   int
	maxUnsent   int  // the server's limit
	stopped     bool // read no more commands in this batch
	closing     bool
	// onSubscribed writes a confirmation that consists of confirmVerb (such as subscribe), confirmName and a count.
	confirmVerb, confirmName string
	onSubscribed             func(count int)
}

var batchPool = sync.Pool{New: func() any {
	b := new(commandBatch)
	b.onSubscribed = b.confirmSubscription
	return b
}}

// Limits of a commandBatch. A batch that reaches a limit lets other connections run first.
const (
	// maxFlushBytes is the size at which replies are sent, or 1/8 of Limits.MaxUnsent if that is less.
	maxFlushBytes = 16 << 10
	// maxBatchWork is the budget of a batch. Each of these costs 1: a command, a subscription, receiversPerWork
	// receivers, replyBytesPerWork bytes of a reply.
	maxBatchWork      = 10_000
	receiversPerWork  = 32
	replyBytesPerWork = 64
	// Every matchUnitsPerWork units of pattern matching and patternBytesPerWork bytes of a compiled pattern cost 1.
	matchUnitsPerWork   = 25
	patternBytesPerWork = 16
	// maxPooledArgs is the largest capacity of an argument slice that returns to the pool.
	maxPooledArgs = 4096
)

func (b *commandBatch) bindToConn(hub *Hub, conn *tcp.Conn, session *respSession) {
	b.hub, b.conn, b.ref, b.respSession = hub, conn, conn.Ref(), session
	b.resp3 = session.format == formatRESP3
	b.maxUnsent = cmp.Or(conn.Server().Limits.MaxUnsent, 1<<20)
	b.maxCommand = cmp.Or(conn.Server().Limits.MaxMessage, 64<<10)
	b.commandsRun, b.work, b.sentBytes, b.stopped, b.closing = 0, 0, 0, false, false
}

func (b *commandBatch) countCommandsAndReturnToPool() {
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
	b.hub, b.conn, b.ref, b.respSession, b.command, b.queue = nil, nil, tcp.Ref{}, nil, nil, nil
	batchPool.Put(b)
}

// runCommands runs the commands in input and returns the number of bytes that are no longer needed. Commands that an
// open transaction has queued remain in the input, so the next call receives them again.
func (b *commandBatch) runCommands(input []byte) (used int) {
	for !b.stopped {
		tx, next := b.transactionOrNil(), used
		if tx != nil {
			next += tx.queuedBytes
		}
		if next == len(input) {
			break
		}
		b.queue = input[used:next]
		n, err := b.readCommand(input[next:], b.maxCommand-tx.reservedBytes())
		if tx.discardQueueIfTooLong(err) {
			used = next
			continue // read the command again
		}
		if err != nil {
			b.replyProtocolErrorAndClose(err)
			return len(input)
		}
		if n == 0 || len(b.args) > 0 && !b.runCommand() {
			break
		}
		if tx.keepsQueue() && tx == b.transactionOrNil() {
			tx.queuedBytes += n
		} else {
			used = next + n
		}
		if len(b.buf) >= b.flushSize() {
			b.flushReplies()
		}
		if !b.stopped && b.overBudget() {
			b.yieldToOtherConns()
		}
	}
	b.flushReplies()
	if b.repliesInMessageOrder && b.sentBytes >= b.flushSize() {
		b.yieldToOtherConns() // posted replies don't count as output yet, so they would not pause reading
	}
	return used
}

// readCommand parses one command and returns its size in bytes, or 0 if the command is incomplete.
func (b *commandBatch) readCommand(input []byte, maxBytes int) (n int, err error) {
	var progress parseProgress
	if b.sessionDetails != nil {
		progress = b.progress
	}
	b.commandLimits = newCommandLimits(max(0, maxBytes), b.user == nil)
	n, err = b.commandReader.parseOrResumeCommand(input, &progress)
	b.updateSessionDetails(progress != parseProgress{}, func(d *sessionDetails) { d.progress = progress })
	return n, err
}

// updateSessionDetails calls the function set with the session's details. If the session has no details, the method
// first creates them if createIfAbsent is true, and otherwise does nothing. If the details are zero after the call, the
// method removes them.
func (b *commandBatch) updateSessionDetails(createIfAbsent bool, set func(*sessionDetails)) {
	if b.sessionDetails == nil {
		if !createIfAbsent {
			return
		}
		b.sessionDetails = new(sessionDetails)
	}
	set(b.sessionDetails)
	if *b.sessionDetails == (sessionDetails{}) {
		b.sessionDetails = nil
	}
}

func (b *commandBatch) replyProtocolErrorAndClose(cause error) {
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

func (b *commandBatch) flushSize() int { return min(maxFlushBytes, b.maxUnsent/8) }

func (b *commandBatch) overBudget() bool {
	return b.work >= maxBatchWork || b.sentBytes >= b.maxUnsent/4
}

// yieldToOtherConns ends the batch and lets the event loop serve other connections.
func (b *commandBatch) yieldToOtherConns() {
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

func (b *commandBatch) flushReplies() {
	if b.replyStart > 0 && len(b.buf) > b.maxUnsent {
		b.sendRepliesCloseOnError(b.buf[:b.replyStart])
		b.buf = b.buf[b.replyStart:]
	}
	b.sendRepliesCloseOnError(b.buf)
	b.buf, b.replyStart = b.buf[:0], 0
}

func (b *commandBatch) sendRepliesCloseOnError(replies []byte) {
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

// closeOnSendError closes the connection because a reply could not be sent. If the connection remained open, the client
// would take the next reply for the missing one.
func (b *commandBatch) closeOnSendError(err error) { b.unsubscribeAndClose(noReplySpaceError(err)) }

func (b *commandBatch) flushAndClose(reason error) {
	if b.flushReplies(); !b.closing {
		b.unsubscribeAndClose(reason)
	}
}

func (b *commandBatch) unsubscribeAndClose(reason error) {
	b.stopped, b.closing = true, true
	b.hub.unsubscribeAllAndStopReplay(&b.client, b.ref)
	if b.repliesInMessageOrder {
		b.conn.Pause()
		if b.ref.Do(func(c *tcp.Conn) { c.CloseWith(reason) }) == nil {
			return
		}
	}
	b.conn.CloseWith(reason)
}

// runCommand runs the parsed command, or queues the command if a transaction is open. If finished is false, a later
// batch continues the command.
func (b *commandBatch) runCommand() (finished bool) {
	b.work++
	b.commandsRun++
	b.noReply = b.replyFlags.has(repliesOff | skipNextReply)
	b.replyFlags &^= skipNextReply
	if b.noReply {
		b.flushReplies()
	}
	b.replyStart = len(b.buf)
	cmd, errorReply := b.lookUpPermittedCommand()
	if tx := b.transactionOrNil(); tx == nil || errorReply == "" && cmd.immediate {
		b.replyErrorOrRun(cmd, errorReply)
	} else {
		b.queueOrRejectTransaction(tx, cmd, errorReply)
	}
	if b.noReply && (errorReply != "" || !cmd.ignoresReplyOff) {
		b.buf, b.replyStart = b.buf[:0], 0
	}
	return b.argsAlreadyDone() == 0
}

func (b *commandBatch) replyErrorOrRun(cmd *command, errorReply string) {
	if errorReply != "" {
		b.writeError(errorReply)
		return
	}
	b.command = cmd
	before := b.sentBytes + len(b.buf)
	cmd.run(b)
	b.work += (b.sentBytes + len(b.buf) - before) / replyBytesPerWork
}

func (b *commandBatch) lookUpPermittedCommand() (cmd *command, errorReply string) {
	cmd = lookupCommand(commands, b.args[0])
	if cmd == nil {
		return nil, fmt.Sprintf("ERR unknown command '%s'; this hub supports publish/subscribe only", truncateForError(b.args[0]))
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
	case !cmd.beforeAuth && !b.user.mayRunForSomeTopic(cmd.name):
		return nil, fmt.Sprintf("NOPERM this user has no permissions to run the '%s' command", cmd.name)
	case !b.resp3 && !cmd.whileSubscribed && b.subscriptionCount() > 0:
		return nil, fmt.Sprintf("ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context", cmd.name)
	}
	return cmd, ""
}

func wrongArgCountReply(commandName string) string {
	return fmt.Sprintf("ERR wrong number of arguments for '%s' command", commandName)
}
