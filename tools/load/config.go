package load

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"time"
)

const (
	// MaxMessage is the maximum size of a message in bytes.
	MaxMessage = 1 << 20
	// MaxLine is the maximum length in bytes of a heartbeat or broadcast line.
	MaxLine = 4096
	// MaxRate is the highest rate of an open loop in messages per second.
	MaxRate = 100_000_000
	// maxInFlight limits the messages in flight on all connections together, maxInFlightBytes the bytes on one.
	maxInFlight      = 256 << 20
	maxInFlightBytes = 64 << 20
	maxLoops         = 1024
	maxDuration      = 30 * 24 * time.Hour
)

// Config describes a load and its target. Only Target is required. Every other field has a default, which the zero
// value selects. The type Setting explains the tags of the fields.
type Config struct {
	// Target is the server's address: host:port, or "unix:" followed by the path of a unix socket. The host is
	// resolved once; IPv4 is preferred. An empty host means this machine.
	Target string `key:"target"`
	// Also lists further targets. Connections use Target and all of Also in rotation.
	Also []string `key:"also"`

	Connections int `group:"Connections" flag:"connections,c" default:"100" max:"64Mi" help:"open <N> connections"`
	// ConnectRate is the number of connections to start per second, 0 for no limit. It also limits concurrent
	// connection attempts to 512 or ConnectRate, whichever is larger.
	ConnectRate int `flag:"connect-rate" max:"10M" help:"start <N> connections per second (default: as fast as the server accepts them)"`
	// ConnectTimeout ends the connect phase when no attempt has succeeded or failed for this time. An early run
	// (see Early) has no connect phase; its connections fail if they are not established by the end of the run.
	ConnectTimeout time.Duration `flag:"connect-timeout" default:"10s" help:"stop connecting when no attempt has succeeded or failed for this <TIME>"`
	Ramp           Ramp          `flag:"ramp" help:"open the connections evenly over this <TIME>, such as 60s; FROM:TO:TIME, such as 0:100k:60s, opens FROM connections at once and the others, up to TO, over TIME (default: all at once)"`
	// Sources are the local addresses to connect from. They share the connections equally. By default, the kernel
	// chooses an address. To targets in 127.0.0.0/8 on Linux, however, several loopback addresses are used: none has
	// more than 20,000 connections per target, or more than a quarter of the ephemeral ports.
	Sources []netip.Addr `flag:"src" help:"connect from this local <ADDRESS>, range A-B or network A/BITS (repeatable; default: chosen automatically)"`
	// Graceful closes connections with FIN at the end of the run. Each address and port then stays in TIME_WAIT for
	// a minute. By default connections are reset, which a server may report as "connection reset by peer".
	Graceful bool `flag:"close" words:"rst,fin" help:"close each connection with a <fin|rst>; a reset leaves no TIME_WAIT"`
	Socket   Socket
	// Model is the name of an I/O model, such as "uring" or "epoll". "" and "auto" select the best available model.
	Model string `flag:"model" help:"use this I/O <MODEL> (default: the best that works here)"`
	// Loops is the number of event loops. If the connections exceed the limit of one descriptor table, the run adds
	// loops and gives each loop its own table.
	Loops int `flag:"loops,w" default:"1" max:"1024" help:"run <N> event loops, if the model has loops"`

	// Duration is the length of the measured window. A search (see Goal) tries each rate for this time.
	Duration time.Duration `group:"Traffic" flag:"duration,T" default:"10s" help:"measure for this <TIME>"`
	// Steady extends the window until Result.Variation is at most SteadyVariation, but to at most three times Duration.
	Steady   bool  `flag:"steady" not:"messages,rate,hold" help:"extend the window, to at most 3 times the duration, while the receive rate varies by more than 25%"`
	Messages int64 `flag:"messages" not:"duration,warmup,rate,flood,hold,early,ramp,lifetime" help:"exchange <N> messages on each connection instead of measuring for a duration"`
	// Rate describes an open loop, in which messages are sent at planned times, regardless of answers. If Rate has
	// neither PerSecond nor Goal, the run is a closed loop, in which each connection waits for answers.
	Rate Rate `flag:"rate" oneof:"pace" help:"open loop: send <N> messages a second in all, such as 50k; 1k:100k raises the rate evenly from 1k to 100k; @10ms or @10ms,p99.9 searches for the highest rate at which p99, or p99.9, is below 10ms" flag2:"message-rate,r" help2:"open loop: send <N> messages a second on each connection; otherwise like --rate"`
	// Flood sends as fast as connections accept data and expects no answers, as with Match "none". The goroutine
	// model alternates reads and writes, so it deadlocks if the server stops reading until its answers are read.
	Flood bool `flag:"flood" oneof:"pace" not:"first-message,answer" help:"send as fast as connections accept data, without waiting for answers"`
	// Pipeline limits the messages in flight on each connection. With PubSub, it limits those of each publisher,
	// and its default in an open loop is 64. The messages in flight on one connection can have at most 64 MiB.
	Pipeline int           `flag:"pipeline" default:"1" max:"1024" help:"keep <N> messages in flight on each connection (with a rate, at most N)"`
	Think    time.Duration `flag:"think" default:"0s" min:"0" oneof:"pace" help:"wait this <TIME> between an answer and the next message"`
	// Early starts the traffic on each connection when that connection is established. The window then begins with the
	// first connection attempt, or Warmup later. Lifetime implies Early. Ramp implies Early unless Hold is set.
	Early bool `flag:"early" help:"start the traffic on each connection when it is established (default: when all are)"`
	// NoReconnect counts a connection as lost if an HTTP server closes it cleanly; it requires Match "http". By
	// default, a new connection to the same target continues the traffic and repeats unanswered requests. A close is
	// clean if the last response announced it with "Connection: close", or if it comes after a response while no
	// request is unanswered. Failed attempts to reconnect are repeated every 100 ms; after 10 attempts, the connection
	// is lost. ConnectRate does not limit these attempts.
	NoReconnect bool `flag:"no-reconnect" needs:"match" help:"count connections that an HTTP server closes cleanly, as with Connection: close, as lost (default: open another one)"`
	// Lifetime closes each connection after this time, even in the middle of its traffic, and opens another one, at
	// most at ConnectRate. Messages that were in flight count as cut off, not as unanswered. Lost connections are also
	// replaced, and failed attempts are repeated after 100 ms.
	Lifetime   time.Duration `flag:"lifetime" help:"close each connection after this <TIME> and open another one (default: never)"`
	Warmup     time.Duration `flag:"warmup" default:"0s" min:"0" help:"run for this <TIME> before measuring"`
	HoldBefore time.Duration `flag:"hold-before" default:"0s" min:"0" help:"keep the connections idle for this <TIME> before the traffic"`
	HoldAfter  time.Duration `flag:"hold-after" default:"0s" min:"0" help:"keep the connections idle for this <TIME> after the traffic"`
	// Drain ends the wait for missing answers when none has arrived for this time. It applies after the window or, with
	// Messages, throughout the run. In an open loop, the whole wait after the window takes at most Drain.
	Drain time.Duration `flag:"drain" default:"5s" help:"stop waiting for missing answers when none has arrived for this <TIME>"`

	// Message is the text to send, 1 byte to MaxMessage. Each answer must be equal to its message unless Answer or
	// Match is set. A text with expressions such as \{connection.uid} is a template, from which each message is
	// generated: see docs/load.md. A literal \{ is written \\{. With Match "http", the default is a GET of "/".
	Message string `group:"Messages" flag:"message,m" oneof:"message" help:"send this <TEXT>, a template if it contains \\{…}; line-based servers need a newline at the end, as $'ping\\n' in most shells (default: different lines of --size bytes)" flag2:"message-file,f" help2:"send the content of this <FILE> verbatim" flag3:"template-file" help3:"send messages from the template in this <FILE>"`
	// First is the first message on each connection, and can be a template. The other messages follow when First
	// has been answered, or immediately if no answers are expected.
	First string `flag:"first-message,1" help:"send this <TEXT>, or template, first on each connection" flag2:"first-message-file" help2:"send a message from the template in this <FILE> first on each connection"`
	// Size is the length in bytes of the default messages, which consist of printable characters and a final "\n".
	// With PubSub, Size is the length of the payload, at least MinPayload.
	Size int `flag:"size" default:"64" min:"2" max:"1Mi" oneof:"message" help:"without a message, send lines of this many <BYTES>, each different"`
	// Ahead sends this number of bytes of the next message together with each message. It must be less than the length
	// of a message, and cannot be combined with templates or WebSockets.
	Ahead int `flag:"ahead" default:"0" min:"0" max:"1048575" help:"send <BYTES> of the next message with each one, so that the server always holds a part"`
	// Seed determines all random choices. Runs with equal seeds send equal bytes, at equal planned times.
	Seed uint64 `flag:"seed" default:"0" help:"seed all random choices with this <NUMBER>"`
	// WebSocket, if not nil, makes every connection a WebSocket (RFC 6455). Each message is then a text message, and a
	// connection is established when its WebSocket handshake is complete.
	WebSocket *WebSocket

	Answer string `group:"Answers" flag:"answer" oneof:"answer" needs:"message" help:"expect this <TEXT> in answer to each message (default: the message)"`
	// Match describes how answers are delimited if they are not known byte for byte:
	//
	//	""              each answer equals the message, or Answer
	//	"delimiter:T"   each ends in the text T, such as delimiter:\r\n
	//	"length:4be"    each begins with its length: 1, 2, 4 or 8 bytes, be or le.
	//	                The length counts the bytes that follow. If 8 more bytes
	//	                follow, write "length:4be+8"; if the length includes
	//	                itself, "length:4be-4"
	//	"bytes:N"       each has N bytes
	//	"marker:T"      each contains the text T once
	//	"frames"        each is one WebSocket message
	//	"http"          each is an HTTP/1.1 response; a status of 400 or more is an error
	//	"none"          none is expected; input is counted in bytes
	Match string `flag:"match" oneof:"answer" help:"delimit answers by a <RULE>: delimiter:TEXT, length:4be, bytes:N, marker:TEXT, frames, http or none (default: by their bytes)" flag2:"http" bare2:"true" help2:"send HTTP/1.1 requests, the message or a GET of \"/\": --match http" flag3:"latency-marker" help3:"count an answer for each occurrence of this <TEXT>, like tcpkali: --match marker:TEXT"`
	// Unprompted sends messages only in answer to messages from the server. The first message is sent when the
	// connection is established. Each further message answers one message from the server. The run does not wait for
	// answers at the end of the window, and missing answers are not faults.
	Unprompted bool `flag:"unprompted" oneof:"pace" help:"answer what the server sends unprompted, such as heartbeats, with the next message"`
	// Silent sends only the first message of an Unprompted run. Latencies are intervals between the server's messages.
	Silent bool `flag:"silent" needs:"unprompted" help:"do not answer what the server sends unprompted, but measure the intervals"`

	// TLS, if not nil, encrypts every connection. A connection attempt fails if its handshake fails or takes longer
	// than ConnectTimeout. At most 512 handshakes run at the same time.
	TLS *TLS `group:"Encryption" flag:"tls" help:"encrypt with TLS; a connection is established when its handshake is complete"`

	// PubSub, if not nil, makes the connections subscribers to topics, and adds connections that publish.
	PubSub *PubSub `group:"Publish/subscribe"`

	// Hold keeps the connections open for Duration without sending messages. Unless Check, Heartbeat or Broadcast is
	// set, the run only counts the bytes of input. Without Lifetime, a held connection needs no memory of this package,
	// except 16 bytes with Check.
	Hold bool `key:"hold" oneof:"pace"`
	// Check verifies held connections with at most Check lines in flight: see Verification. On a WebSocket, a line
	// is a message without the newline.
	Check int `group:"Lines" flag:"check" max:"1Mi" bare:"1000" not:"lifetime,early" needs:"hold" help:"verify all connections when they are established and again at the end: each sends a unique line and expects it back, at most <N> at a time (default: no verification; 1000 for --check without N)"`
	// Heartbeat is a line from the server that held connections answer with HeartbeatAnswer. On WebSockets, pings
	// are the heartbeats. Broadcast is a line that the server sends to all connections: see Result.Broadcast. Each
	// line has 2 bytes to MaxLine, ends in "\n" and contains no other newline.
	Heartbeat       string `flag:"heartbeat" not:"lifetime,early,ws" needs:"hold" help:"answer this heartbeat <LINE> of the server immediately with pong, or the line of --heartbeat-answer; LINE may omit its newline"`
	HeartbeatAnswer string `flag:"heartbeat-answer" default:"pong" needs:"heartbeat" help:"answer heartbeats with this <LINE>"`
	Broadcast       string `flag:"broadcast" not:"lifetime,early" needs:"hold" help:"expect this <LINE> once on each connection"`

	// ProgressEvery is the length of an Interval. The run emits a Progress event at the end of each interval.
	ProgressEvery time.Duration `group:"Results" flag:"interval" default:"1s" help:"report progress every <TIME>"`

	// NumberFrom is the number of the first connection, or with PubSub that of the first subscriber. The number of
	// a connection determines its random times, \{connection.uid}, its first message and a subscriber's topic.
	// Divide gives each generator its own numbers.
	NumberFrom int `key:"number-from" max:"1Gi"`
	// Histograms fills Result.Histograms and Interval.Histograms, so that Merge can combine all distributions of
	// several generators exactly. Without them, only Result.Latency is combined exactly.
	Histograms bool `key:"histograms"`

	// Begin synchronizes several generators. When the connections are established, the run waits until it receives a
	// value from Begin or until Begin is closed. If Begin is nil, the run does not wait. Begin cannot be combined with
	// Early.
	//
	// In a search, each value is a rate. The run loads the server at this rate, emits the event Tried with the Result,
	// and waits for the next value. The value 0 ends the search.
	Begin <-chan float64
	// Enough is for a Steady run, whose measured window continues until the rate is steady, but for at most three times
	// Duration. If Enough is nil, the run itself decides when its rate is steady. Otherwise, the window ends when
	// Enough is closed. With several generators, the coordinator closes Enough when their total rate is steady.
	Enough <-chan struct{}
	// Published is for publish/subscribe runs of several generators that share topics. At the end, each run emits the
	// event Published with the number of messages that each of its publishers has sent. The run then receives from this
	// channel the numbers for the publishers of all generators. A negative number means unknown. From these numbers,
	// the run knows which deliveries are missing. It waits for them, as limited by Drain.
	Published <-chan []int64
	// Observe is called with each event of the run, on the goroutine of Run. Run waits until Observe returns.
	Observe func(Event)
}

// Ramp describes a number of connections that grows evenly over a period of time.
type Ramp struct {
	// From and To are the numbers of connections at the start and the end. To defaults to Config.Connections.
	From, To int
	// Over is the duration of the ramp. 0 means no ramp.
	Over time.Duration
}

// Rate defines when an open loop sends messages. The latency of a message is measured from its planned time, not from
// the time of sending. If a message is sent late, for example because the server is slow, the delay is part of the
// latency. This corrects for coordinated omission (Gil Tene, "How NOT to Measure Latency", and wrk2).
type Rate struct {
	// PerSecond is the number of messages per second on all connections together. Any connection with fewer than
	// Config.Pipeline messages in flight may send the next one. If Each is set, PerSecond is the rate of every single
	// connection. 0 means no planned rate.
	PerSecond float64 `json:"per_second"`
	Each      bool    `json:"each,omitempty"`
	// Poisson draws the times between messages from an exponential distribution. By default, these times are equal.
	Poisson bool `json:"poisson,omitempty" flag:"arrivals" words:"constant,poisson" needs:"rate" help:"times between the messages of a rate: <constant|poisson>, that is, equal or exponentially distributed"`
	// To is the rate at the end of the window. The rate changes linearly from PerSecond to To. 0 means no change.
	To float64 `json:"to,omitempty"`
	// Goal makes the run search for the highest rate that meets the goal. Goal replaces PerSecond.
	Goal Goal `json:"-"`
}

type TLS struct {
	CAFile   string `flag:"tls-ca" help:"trust the certificates in this PEM <FILE> (default: the system's)"`
	Insecure bool   `flag:"tls-insecure" not:"tls-ca" help:"accept any certificate"`
	// ServerName is the name that the certificate must have. It is also sent to the server (SNI).
	ServerName string `flag:"tls-server-name" help:"expect a certificate for this <NAME>, and ask for it (default: the host)"`
	// Config is the basis of the TLS configuration. The other fields of TLS override Config. If Config has no
	// ClientSessionCache, sessions are not resumed.
	Config *tls.Config
}

type Socket struct {
	// SendBuffer and ReceiveBuffer are the requested buffer sizes in bytes. The kernel doubles them.
	SendBuffer    int `flag:"sndbuf" max:"1Gi" help:"set SO_SNDBUF to <BYTES> (default: the kernel's choice)"`
	ReceiveBuffer int `flag:"rcvbuf" max:"1Gi" help:"set SO_RCVBUF to <BYTES> (default: the kernel's choice)"`
	// Delay enables Nagle's algorithm: TCP_NODELAY stays off.
	Delay bool `flag:"nagle" words:"off,on" help:"turn Nagle's algorithm <on|off>"`
}

// WebSocket configures the WebSocket handshake.
type WebSocket struct {
	Path   string      `flag:"ws" default:"/" bare:"/" help:"use WebSockets at a <PATH>, given as --ws=/chat; each message is one WebSocket message"`
	Header http.Header `flag:"header,H" help:"add this <NAME: VALUE> to the request of a WebSocket (repeatable)"`
}
