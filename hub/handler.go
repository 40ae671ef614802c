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
	*details // nil if there are none
	flags
	last uint16 // command: its number
}

// details are what few sessions have.
type details struct {
	name string // by CLIENT SETNAME
	scan scan   // of a command that is not complete
	done int    // how many arguments of a complete one are done, which goes on later
}

// flags are what there is to know about a session's replies.
type flags uint8

const (
	// silent says that there are no replies (CLIENT REPLY OFF), skips that the next command
	// has none.
	silent flags = 1 << iota
	skips
)

func (f flags) has(some flags) bool { return f&some != 0 }

// httpStarts are what an HTTP connection begins with. No command of Redis does.
var httpStarts = []string{"GET /", "POST /", "HEAD /", "OPTIONS /", "PUT /", "DELETE /"}

// sniff says whether in begins with HTTP; sure is false if it takes more bytes to know.
func sniff(in []byte) (isHTTP, sure bool) {
	sure = true
	for _, start := range httpStarts {
		switch n := min(len(in), len(start)); {
		case string(in[:n]) != start[:n]:
		case n == len(start):
			return true, true
		default:
			sure = false
		}
	}
	return false, sure
}

// strangerTime is how long a client has to say who it is, where it must.
const strangerTime = time.Minute

// Received implements tcp.Handler.
func (h handler) Received(c *tcp.Conn, in []byte) (used int) {
	s, ok := c.Value().(*respSession)
	if !ok {
		isHTTP, sure := sniff(in)
		switch {
		case !sure:
			return 0
		case isHTTP:
			web := h.hub.http()
			_ = c.SetHandler(web)
			web.Opened(c)
			return web.Received(c, in)
		}
		s = &respSession{client: client{user: h.hub.arrival(c.TLS())}}
		c.SetValue(s)
		if s.user == nil {
			c.SetDeadline(strangerTime)
		}
	}
	t := turns.Get().(*turn)
	t.begin(h.hub, c, s)
	used = t.commands(in)
	t.end()
	return used
}

// Closed implements tcp.Handler.
func (h handler) Closed(c *tcp.Conn, why error) {
	if s, ok := c.Value().(*respSession); ok {
		h.hub.ended(&s.client, c, why)
	}
}

// NextProtos implements tcp.ALPNHandler.
func (h handler) NextProtos(configured []string) []string { return h.hub.http().NextProtos(configured) }

// Heartbeat implements tcp.HeartbeatHandler: the Redis protocol has none. WebSockets and
// streams have their own.
func (handler) Heartbeat(*tcp.Conn) (answers bool) { return false }

// turn is one call of Received. It has all that takes room while commands are run, so that an
// idle session has none.
type turn struct {
	reader
	replies
	*respSession
	h       *Hub
	c       *tcp.Conn
	ref     tcp.Ref
	command *command
	muted   bool  // the command has no reply
	ran     int64 // commands
	work    int   // how much has been done
	begins  int   // where in out the command's replies do
	sent    int   // bytes of replies
	unsent  int   // Limits.MaxUnsent
	over    bool  // nothing more is read now
	gone    bool  // the connection closes
	// word and name are what a confirmation tells, which confirmed makes: SUBSCRIBE and a topic.
	word, name string
	confirmed  func(count int)
}

var turns = sync.Pool{New: func() any {
	t := new(turn)
	t.confirmed = t.confirm
	return t
}}

// Bounds of a turn. Where one is reached, other connections have their turn first.
const (
	// maxBatch is how many bytes of replies are put together, at most an eighth of
	// Limits.MaxUnsent, of which a turn may send a quarter.
	maxBatch = 16 << 10
	// maxWork is how many commands there are, with topics joined, one more for receiversWork
	// receivers of a message, which are cheap, and one more for each workBytes of a reply. A
	// client that publishes several messages to a large topic at once has them all go out in one
	// turn, so that each subscriber gets them in one send.
	maxWork       = 10_000
	receiversWork = 32
	workBytes     = 64
	// One more is for matchWork units of work with patterns, and for compileWork bytes of a new one.
	matchWork   = 25
	compileWork = 16
	// maxKeptArgs is the most arguments whose room is used again.
	maxKeptArgs = 4096
)

func (t *turn) begin(h *Hub, c *tcp.Conn, s *respSession) {
	t.h, t.c, t.ref, t.respSession = h, c, c.Ref(), s
	t.resp3 = s.format == resp3
	t.unsent = cmp.Or(c.Server().Limits.MaxUnsent, 1<<20)
	t.sizes = sizesFor(cmp.Or(c.Server().Limits.MaxMessage, 64<<10), false)
	t.ran, t.work, t.sent, t.over, t.gone = 0, 0, 0, false, false
}

func (t *turn) end() {
	t.h.ran.Add(t.ran)
	clear(t.args)
	if cap(t.args) > maxKeptArgs {
		t.args = nil
	}
	if cap(t.unquoted) > maxKeptBuffer {
		t.unquoted = nil
	}
	if cap(t.out) > maxKeptBuffer {
		t.out = nil
	}
	t.h, t.c, t.ref, t.respSession, t.command = nil, nil, tcp.Ref{}, nil, nil
	turns.Put(t)
}

// commands runs the commands that in has, and says how many bytes they are.
func (t *turn) commands(in []byte) (used int) {
	for used < len(in) && !t.over {
		n, err := t.read(in[used:])
		if err != nil {
			t.broken(err)
			return len(in)
		}
		if n == 0 {
			break
		}
		if len(t.args) > 0 && !t.run() {
			break
		}
		used += n
		t.pace()
	}
	t.flush()
	if t.ordered && t.sent >= t.batch() {
		t.yield() // what is posted is not yet output, which would pause reading
	}
	return used
}

// read reads a command; n is 0 if it is not complete.
func (t *turn) read(in []byte) (n int, err error) {
	var at scan
	if t.details != nil {
		at = t.scan
	}
	t.sizes = sizesFor(t.message, t.user == nil)
	n, err = t.reader.next(in, &at)
	t.detail(at != scan{}, func(d *details) { d.scan = at })
	return n, err
}

// detail sets something of the session's details. They are made only if there is something.
func (t *turn) detail(something bool, set func(*details)) {
	if t.details == nil {
		if !something {
			return
		}
		t.details = new(details)
	}
	set(t.details)
	if *t.details == (details{}) {
		t.details = nil
	}
}

// broken answers what is no command, or one that is too long, which it counts, and closes the connection.
func (t *turn) broken(err error) {
	if errors.Is(err, tcp.ErrMessageTooLong) {
		_ = t.h.refuse(errLongMessage)
	}
	var e protocolError
	errors.As(err, &e)
	if !t.flags.has(silent) {
		t.error("ERR Protocol error: " + string(e))
	}
	t.close(err)
}

// pace sends replies when there are many, and lets others have their turn.
func (t *turn) pace() {
	if len(t.out) >= t.batch() {
		t.flush()
	}
	if !t.over && t.tired() {
		t.yield()
	}
}

// batch is how many bytes of replies are put together.
func (t *turn) batch() int { return min(maxBatch, t.unsent/8) }

// tired says whether others are to have their turn.
func (t *turn) tired() bool { return t.work >= maxWork || t.sent >= t.unsent/4 }

// yield goes on in another call, when what was sent has become output of the connection.
func (t *turn) yield() {
	t.flush()
	if t.over {
		return
	}
	t.over = true
	t.c.Pause()
	if err := t.ref.Do((*tcp.Conn).Resume); err != nil {
		t.fail(err)
	}
}

// flush sends the replies. Where the last is too large, those before it are not.
func (t *turn) flush() {
	if t.begins > 0 && len(t.out) > t.unsent {
		t.send(t.out[:t.begins])
		t.out = t.out[t.begins:]
	}
	t.send(t.out)
	t.out, t.begins = t.out[:0], 0
}

func (t *turn) send(p []byte) {
	if len(p) == 0 || t.gone {
		return
	}
	var err error
	if t.ordered {
		err = t.ref.Send(p)
	} else {
		_, err = t.c.Write(p)
	}
	if t.sent += len(p); err != nil {
		t.fail(err)
	}
}

// fail closes a connection for whose replies there is no room: without one of them the client
// would take the next for it.
func (t *turn) fail(err error) { t.hangUp(noRoom(err)) }

// close closes the connection, behind the replies.
func (t *turn) close(why error) {
	if t.flush(); !t.gone {
		t.hangUp(why)
	}
}

// hangUp closes the connection behind what has been sent. Its subscriptions end at once: the
// peer's end may take a while.
func (t *turn) hangUp(why error) {
	t.over, t.gone = true, true
	t.h.closed(&t.client, t.ref)
	if t.ordered {
		t.c.Pause()
		if t.ref.Do(func(c *tcp.Conn) { c.CloseWith(why) }) == nil {
			return
		}
	}
	t.c.CloseWith(why)
}

// run runs the command that was read. It reports whether it is done: otherwise the rest of it
// is for another turn.
func (t *turn) run() (done bool) {
	t.work++
	t.ran++
	t.muted = t.flags.has(silent | skips)
	t.flags &^= skips
	if t.muted {
		t.flush()
	}
	t.begins = len(t.out)
	cmd, refusal := t.admit()
	if refusal != "" {
		t.error(refusal)
	} else {
		t.command = cmd
		before := t.sent + len(t.out)
		cmd.run(t)
		t.work += (t.sent + len(t.out) - before) / workBytes
	}
	if t.muted && (refusal != "" || !cmd.pushes) {
		t.out, t.begins = t.out[:0], 0
	}
	return t.details == nil || t.done == 0
}

// admit finds the command of the arguments, or says why it may not be run.
func (t *turn) admit() (cmd *command, refusal string) {
	cmd = lookup(commands, t.args[0])
	if cmd == nil {
		return nil, fmt.Sprintf("ERR unknown command '%s'; this hub has publish/subscribe only, it is no store", shown(t.args[0]))
	}
	if cmd.subcommands != nil && len(t.args) > 1 {
		sub := lookup(cmd.subcommands, t.args[1])
		if sub == nil {
			return nil, fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.", shown(t.args[1]), strings.ToUpper(cmd.name))
		}
		cmd = sub
	}
	t.last = cmd.number
	switch n := len(t.args); {
	case cmd.arity > 0 && n != cmd.arity, n < -cmd.arity:
		return nil, wrongNumber(cmd.name)
	case t.user == nil && !cmd.anybody:
		return nil, "NOAUTH Authentication required."
	case !cmd.anybody && !t.user.mayRun(cmd.name):
		return nil, fmt.Sprintf("NOPERM this user has no permissions to run the '%s' command", cmd.name)
	case !t.resp3 && !cmd.always && t.count() > 0:
		return nil, fmt.Sprintf("ERR Can't execute '%s': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context", cmd.name)
	}
	return cmd, ""
}

func wrongNumber(name string) string {
	return fmt.Sprintf("ERR wrong number of arguments for '%s' command", name)
}
