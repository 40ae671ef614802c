package load

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"time"
)

// The bounds of a Config.
const (
	// MaxMessage is the size of the longest message, in bytes.
	MaxMessage = 1 << 20
	// MaxPipeline is the most messages in flight on one connection.
	MaxPipeline = 1024
	// maxConnections bounds the memory of a mistyped number.
	maxConnections = 64 << 20
	// maxInFlight bounds the messages in flight on all connections: 8 bytes
	// are kept for each.
	maxInFlight = 256 << 20
	// maxInFlightBytes bounds the bytes in flight on one connection.
	maxInFlightBytes = 64 << 20
	// maxRate is the most new connections a second that can be paced.
	maxRate = 10_000_000
	// maxLoops bounds the threads of a mistyped number.
	maxLoops = 1024
	// MaxCheck is the most lines of a verification in flight.
	MaxCheck = 1 << 20
	// MaxLine is the longest line that a server may send to connections that
	// are held, where its lines are looked at, in bytes.
	MaxLine = 4096
	// MaxRate is the most messages a second that can be planned.
	MaxRate = 100_000_000
	// maxSocketBuffer bounds the kernel's buffers, which it bounds too.
	maxSocketBuffer = 1 << 30
	// MaxNumber is the highest number that a first connection can have.
	MaxNumber = 1 << 30
	// maxTime bounds every duration.
	maxTime = 30 * 24 * time.Hour
)

// Config says what load to put on which server. The zero value of each field
// but Target is a good default.
//
// It can be written and read as JSON, and set by flags: see Settings.
type Config struct {
	// Target is the server's address: host:port, or "unix:" and the path of
	// a unix socket. The host is resolved once, IPv4 before IPv6; an empty
	// host is this machine.
	Target string
	// Also are further targets; connections are made to all in turn.
	// Default: none.
	Also []string

	// Connections is how many connections to open. Default 100.
	Connections int
	// ConnectRate is how many connections to start a second. Default 0: as
	// fast as the server takes them, with at most 512 half open. A rate
	// bounds those too, at a second's worth of it or 512.
	ConnectRate int
	// ConnectTimeout bounds the connect phase: when no attempt has
	// succeeded or failed for that long, those that are missing have
	// failed. An early run has no such phase: there, what is not established
	// by its end has failed. Default 10 s.
	ConnectTimeout time.Duration
	// Early begins the window with the first attempt to connect, and the
	// traffic of each connection when it is established. Default false: the
	// traffic begins on all when none is being established any more. A
	// Lifetime is always early, and so is a Ramp without Hold.
	Early bool
	// Ramp opens the connections little by little. Default: the zero Ramp,
	// all from the start.
	Ramp Ramp
	// Lifetime closes each connection that long after it was established,
	// in the middle of its traffic, and opens another one for it, no more
	// than ConnectRate a second. What was in flight counts as cut off, not
	// as unanswered. Connections that are lost are replaced too, and attempts
	// that fail are made again, after 100 ms. Default 0: connections live as long as the run.
	Lifetime time.Duration
	// NoReconnect leaves connections closed that an HTTP server closes in order: they are
	// lost. Default false: where Match is "http", a connection that the server closes
	// behind a response, with no request outstanding, or after "Connection: close", is
	// replaced by another one to the same target, and its traffic continues there. Requests behind the last
	// response are sent again. An attempt that fails is made again after 100 ms, up to 10
	// times; then the connection is lost. ConnectRate does not count these attempts. All
	// other ends of a connection are losses.
	NoReconnect bool
	// Sources are the local addresses to connect from, in equal parts.
	// Default: the kernel's choice; but on Linux, for a target within
	// 127.0.0.0/8, as many addresses of 127.0.0.0/8 as are needed for none
	// to use more than a quarter of the ephemeral ports, nor more than
	// 20,000: about 7,000 connections each with the usual port range. A
	// port is chosen when its connection is made (IP_BIND_ADDRESS_NO_PORT),
	// so that one source has its ports anew for each target.
	Sources []netip.Addr
	// Socket are options of the connections' sockets.
	Socket Socket

	// TLS, if set, has every connection encrypted. A connection is
	// established when its handshake is over; one whose handshake fails, or
	// is not over within ConnectTimeout, has failed. At most 512 handshakes
	// are under way at once. Default nil: no encryption.
	TLS *TLS
	// WebSocket, if set, upgrades every connection to a WebSocket (RFC
	// 6455), and each message is a text or binary message of its own. A
	// connection is established when the server has agreed. Default nil.
	WebSocket *WebSocket

	// Message is what to send and to expect back, 1 byte to MaxMessage. A
	// server that answers lines needs its last byte to be "\n". Default: a
	// text of Size bytes that differs from message to message.
	Message []byte
	// Template makes each message anew, instead of Message: a text with
	// expressions such as \{connection.uid}, see docs/load.md. Each message
	// it makes has 1 byte to MaxMessage. Default "": none.
	Template string
	// First is the template of the first message of each connection; the
	// others follow when it has been answered, or at once where no answer
	// is awaited. Default "": the first message is like the others.
	First string
	// Answer is what to expect back for each Message, byte for byte, where
	// that is not the message itself: 1 byte to MaxMessage. It takes a
	// Message. Default: the message.
	Answer []byte
	// Match says how answers are delimited where they are not known byte
	// for byte:
	//
	//	""              by their bytes: each is the message, or Answer
	//	"delimiter:T"   each ends in the text T, such as delimiter:\r\n
	//	"length:4be"    each begins with its length: 1, 2, 4 or 8 bytes, be
	//	                or le; "length:4be+8" if the number counts 8 bytes
	//	                less than what follows it, -4 if itself too
	//	"bytes:N"       each has N bytes
	//	"marker:T"      each has the text T in it somewhere, once
	//	"frames"        each is one WebSocket message
	//	"http"          each is an HTTP/1.1 response; the Message is by default a
	//	                GET of "/", and a status of 400 or more is an error
	//	"none"          none is awaited; what comes is counted in bytes
	Match string
	// Unprompted says that the server sends its answers when it likes, as
	// with heartbeats: the first message is what makes a connection known,
	// each further one answers what the server has sent, from when it is established on.
	// When the window ends
	// nothing that is missing is waited for, and none of it is a fault.
	Unprompted bool
	// Size is the size of a message in bytes where neither Message nor
	// Template is set, 2 to MaxMessage: printable characters and a "\n" at
	// the end. Default 64.
	Size int
	// Ahead is how many bytes of the next message go out with each one, fewer than it has: so
	// the server always holds a part of a message, which it has to complete. They do not count
	// as sent before their message does. It takes messages that are no templates, and no
	// WebSockets. Default 0.
	Ahead int
	// Seed is what everything random is made from: two runs with the same
	// one send the same bytes on the same connections, and plan the same
	// times. Default 0, which is a seed like others.
	Seed uint64

	// Pipeline is how many messages each connection keeps in flight, 1 to
	// MaxPipeline; in an open loop the most that it may have. All messages in
	// flight on one connection may have 64 MiB. Default 1.
	Pipeline int
	// Think is how long a connection waits between an answer and the next
	// message, in a closed loop. Default 0.
	Think time.Duration
	// Rate, if its PerSecond is set, sends messages at planned times, no
	// matter when answers come: an open loop. Default: a closed loop.
	Rate Rate
	// Goal, if its Under is set, has the run search for the highest rate that
	// keeps it, on all connections together. Rate can only say whether times are
	// Poisson. Duration is how long each rate is tried: 100 ms or more, and ten
	// times Under or more, since a queue that grows a little has to have the time
	// to show; a fifth of it is a warm-up. Its default is then 2 s, or ten times
	// Under where that is more. Result.Search says what was found. Default: none.
	Goal Goal
	// Flood sends as fast as each connection takes it. No answer is
	// awaited, so Match is "none". The goroutine model reads and writes in
	// turn: on it, a server that does not read while its answers are not
	// read stands still. Default false.
	Flood bool

	// Duration is the measured window. Default 10 s, unless Messages is set.
	Duration time.Duration
	// Steady has the window go on behind Duration, until it has lasted 3 times as long at
	// the most, while Result.Variation is above SteadyVariation. Not in an open loop,
	// and not with Messages or Hold. Default false.
	Steady bool
	// Warmup is a time of traffic before the window. Default 0.
	Warmup time.Duration
	// Messages is how many messages each connection exchanges, instead of
	// Duration and Warmup. Default 0: as many as there is time for.
	Messages int64
	// HoldBefore and HoldAfter are times during which the open connections
	// are left alone, before and after the traffic. Default 0.
	HoldBefore, HoldAfter time.Duration
	// Hold sends no messages: the connections are held open for Duration, and
	// what the server sends is counted in bytes. A connection that is only
	// held, so without a Lifetime, takes no memory but the engine's, and
	// 16 bytes with Check. Default false.
	Hold bool
	// Check, with Hold, has a verification when all connections are established,
	// and again at the end: each sends a line that no other one has, and the
	// same has to come back, byte for byte; see Verification. At most so many
	// lines are in flight at a time, 1 to MaxCheck. Default 0: none.
	// On WebSockets a message is a line without its end, and pings count as heartbeats.
	Check int
	// Heartbeat, with Hold, is a line that the server sends, such as "ping\n",
	// and HeartbeatAnswer what it gets for it at once, such as "pong\n". Each
	// is 2 to MaxLine bytes, the last one "\n" and no other. Default "": none.
	Heartbeat, HeartbeatAnswer string
	// Broadcast, with Hold, is a line that the server is to send to each
	// connection once; see Broadcast. 2 to MaxLine bytes, the last one "\n"
	// and no other. Default "": none.
	Broadcast string
	// Drain is how long to wait without a single answer before those that
	// are missing are given up: after the window, and at any time where
	// Messages is set. Default 5 s.
	Drain time.Duration

	// PubSub, if set, is a publish/subscribe run: the connections are subscribers, and
	// Size, at least MinPayload, is that of the payload. Default nil.
	PubSub *PubSub

	// Model is the I/O model to run on, such as "uring" or "epoll".
	// Default, also by the name "auto": the best that can run on this machine.
	Model string
	// Loops is the number of loops of a model that has them. Default 1.
	// There are more if the connections are more than the limit of
	// descriptors allows: as many as it takes, with a descriptor table each.
	Loops int
	// Graceful closes the connections in order at the end of the run. That
	// leaves each address and port in TIME_WAIT for a minute. Default
	// false: they are reset, which leaves nothing, and which the server
	// sees as "connection reset by peer".
	Graceful bool

	// NumberFrom is the number of the first connection, 0 to MaxNumber, and with PubSub that
	// of the first subscriber: its topic goes by that. Random times, \{connection.uid} and which message of a block comes
	// first go by numbers: see Divide. Default 0.
	NumberFrom int
	// Histograms has Result.Histograms and Interval.Histograms made, so that all distributions of
	// several generators can be merged exactly. Default false: only the latency of the result.
	Histograms bool
	// Begin has the run wait, once all connections have been established or have failed,
	// until something comes or it is closed: several generators can begin together. In a search
	// what comes is a rate to try, as a Search has said that decides for all of them; Tried has
	// the Result, and the run waits for the next one, until that is 0. It is not for a run
	// that is Early, nor a part of the JSON. Default nil: it does not wait.
	Begin <-chan float64
	// Enough has a window that is Steady go on until it is closed, for 3 times the Duration at the
	// most: somebody else looks whether it is, by the Received of several generators. It is no
	// part of the JSON. Default nil: the run looks itself.
	Enough <-chan struct{}
	// Published has a publish/subscribe run whose topics are shared wait in the end, having told
	// with Published what its own publishers have published, until it gets that of all, by
	// their numbers, below 0 where it isn't known; and then for what is missing, as Drain says.
	// It is no part of the JSON. Default nil: topics are its own.
	Published <-chan []int64

	// Observe gets the events of the run as it goes on. Run calls it on its own
	// goroutine, so never concurrently, and does not go on before it
	// returns. Default nil.
	Observe func(Event)
	// ProgressEvery is the time between Progress events, and so the length
	// of an Interval. Default 1 s.
	ProgressEvery time.Duration
}

// Ramp opens connections evenly over a time.
type Ramp struct {
	// From is how many are opened at once, To how many there are in the end,
	// which is Config.Connections where that is not set.
	From, To int
	// Over is the time it takes; 0 is no ramp.
	Over time.Duration
}

// Rate is the plan of an open loop: when messages are to be sent. Latency is then
// the time since a message was to be sent, so that what a stalled server, or a
// slow generator, has kept waiting counts (which corrects for coordinated
// omission; Gil Tene, "How NOT to Measure Latency", and wrk2).
type Rate struct {
	// PerSecond is how many messages a second are to be sent: on all
	// connections together, each on whichever has room, or with Each on
	// every single one. 0 is no plan.
	PerSecond float64 `json:"per_second"`
	Each      bool    `json:"each,omitempty"`
	// Poisson draws the times between messages from an exponential
	// distribution. Default false: they are equal.
	Poisson bool `json:"poisson,omitempty"`
	// To is the rate at the end of the window, to which it changes
	// linearly from the beginning of the window. Default 0: it does not
	// change.
	To float64 `json:"to,omitempty"`
}

// TLS is how connections are encrypted.
type TLS struct {
	// CAFile is a PEM file with the certificates to trust. Default "": those that the
	// system trusts.
	CAFile string
	// ServerName is what to ask for, and to expect a certificate for. Default: the
	// host of the target.
	ServerName string
	// Insecure takes any certificate.
	Insecure bool
	// Config is what the above is added to. Sessions are resumed only with a
	// ClientSessionCache. It is not a part of the JSON. Default: the zero tls.Config.
	Config *tls.Config
}

// Socket are options of sockets.
type Socket struct {
	// SendBuffer and ReceiveBuffer are the sizes of the kernel's buffers in
	// bytes, SO_SNDBUF and SO_RCVBUF, which the kernel doubles. Default 0:
	// its own choice.
	SendBuffer, ReceiveBuffer int
	// Delay leaves TCP_NODELAY off. Default false: small pieces are sent at
	// once.
	Delay bool
}

// WebSocket is how connections are upgraded.
type WebSocket struct {
	// Path is what is asked for. Default "/".
	Path string
	// Header are further lines of the request. Default: none.
	Header http.Header
	// Binary sends binary messages. Default false: text.
	Binary bool
}
