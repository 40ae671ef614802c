package load

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"time"
)

// Limits that are not the min or max tag of a field of Config.
const (
	// MaxMessage is the size of the longest message, in bytes.
	MaxMessage = 1 << 20
	// MaxLine is the longest line, in bytes, that a server may send to held connections if lines
	// are verified.
	MaxLine = 4096
	// MaxRate is the highest rate, in messages a second, that can be planned.
	MaxRate = 100_000_000
	// maxInFlight limits the messages in flight on all connections: each takes 8 bytes.
	maxInFlight = 256 << 20
	// maxInFlightBytes limits the bytes in flight on one connection.
	maxInFlightBytes = 64 << 20
	// maxLoops limits the loops that are started to get enough descriptor tables.
	maxLoops = 1024
	// maxDuration limits every duration.
	maxDuration = 30 * 24 * time.Hour
)

// Config describes a load and its target. Only Target is required; zero fields select defaults.
//
// The tags describe each field that is a setting: its flag and JSON key, help, default, limits, and
// the settings that it excludes or requires. See Setting.
type Config struct {
	// Target is the server's address: host:port, or "unix:" and the path of a unix socket. The host
	// is resolved once, IPv4 before IPv6; an empty host is this machine.
	Target string `key:"target"`
	// Also lists further targets. Connections use all targets in turn.
	Also []string `key:"also"`

	Connections int `group:"Connections" flag:"connections,c" default:"100" max:"64Mi" help:"open <N> connections"`
	// ConnectRate also limits half-open connections to one second's worth, but at least 512.
	// Without it, at most 512 are half open.
	ConnectRate int `flag:"connect-rate" max:"10M" help:"start <N> connections a second (default: as fast as the server accepts)"`
	// ConnectTimeout ends the connect phase. An early run has no such phase: there, a connection
	// has failed if it is not established by the end of the run.
	ConnectTimeout time.Duration `flag:"connect-timeout" default:"10s" help:"stop connecting when no attempt has succeeded or failed for this <TIME>"`
	Ramp           Ramp          `flag:"ramp" help:"open the connections evenly over a <TIME>, or FROM:TO:TIME such as 0:100k:60s (default: all from the start)"`
	// Sources share the connections equally. By default the kernel chooses. Exception: on Linux,
	// for a target in 127.0.0.0/8, the sources are as many addresses of 127.0.0.0/8 as are needed
	// to keep each under a quarter of the ephemeral ports and under 20,000 connections: about 7,000
	// each with the usual port range. The port is chosen when the connection is made
	// (IP_BIND_ADDRESS_NO_PORT), so a source can reuse its ports for each target.
	Sources []netip.Addr `flag:"src" help:"connect from this local <ADDRESS>, range A-B or network A/BITS (repeatable; default: chosen automatically)"`
	// Graceful closes connections with FIN at the end of the run, which leaves each address and
	// port in TIME_WAIT for a minute. Otherwise they are reset, which a server sees as "connection
	// reset by peer".
	Graceful bool `flag:"close" words:"rst,fin" help:"close connections with <fin|rst>; a reset leaves no TIME_WAIT"`
	Socket   Socket
	// Model is a name such as "uring" or "epoll". "" and "auto" select the best one that can run.
	Model string `flag:"model" help:"run on this I/O <MODEL> (default: the best that can run here)"`
	// Loops is raised if the connections exceed the descriptor limit: each loop then has its own
	// descriptor table.
	Loops int `flag:"loops,w" default:"1" max:"1024" help:"run <N> event loops, if the model has loops"`

	// Duration is the length of the measured window. In a search it is the time for which each rate
	// is tried: see Goal.
	Duration time.Duration `group:"Traffic" flag:"duration,T" default:"10s" help:"measure for this <TIME>"`
	// Steady extends the window while Result.Variation is above SteadyVariation.
	Steady   bool  `flag:"steady" not:"messages,rate,hold" help:"extend the window, to at most 3 times the duration, while the receive rate varies by more than 25 %"`
	Messages int64 `flag:"messages" not:"duration,warmup,rate,flood,hold,early,ramp,lifetime" help:"exchange <N> messages on each connection, instead of a duration"`
	// Rate, if it has a rate or a goal, selects an open loop: messages are sent at planned times,
	// regardless of answers. Without it, each connection waits for answers: a closed loop.
	Rate Rate `flag:"rate" oneof:"pace" help:"open loop: send <N> messages a second in all, such as 50k; 1k:100k changes from the first to the second; @10ms or @10ms,p99.9 searches for the highest rate at which p99, or p99.9, stays below" flag2:"message-rate,r" help2:"open loop: send <N> messages a second on each connection; otherwise as --rate"`
	// Flood expects no answers, so Match is "none". The goroutine model alternates reads and
	// writes; it deadlocks with a server that stops reading until its answers are read.
	Flood bool `flag:"flood" oneof:"pace" not:"first-message,answer" help:"send as fast as connections accept data, without waiting for answers"`
	// Pipeline limits the messages in flight on a connection. With PubSub it applies to each
	// publisher, and its default in an open loop is 64. All messages in flight on one connection
	// may have 64 MiB.
	Pipeline int           `flag:"pipeline" default:"1" max:"1024" help:"keep <N> messages in flight on each connection; with a rate, at most"`
	Think    time.Duration `flag:"think" default:"0s" min:"0" oneof:"pace" help:"wait this <TIME> between an answer and the next message"`
	// Early begins the window with the first connection attempt. A Lifetime implies it, and so does
	// a Ramp without Hold.
	Early bool `flag:"early" help:"start the traffic on each connection when it is established (default: when all are)"`
	// NoReconnect applies if Match is "http". By default, a connection that the server closes
	// cleanly is replaced by a new one to the same target, and its traffic continues there. A close
	// is clean after a response with no request outstanding, or after "Connection: close". Requests
	// that were sent after the last response are sent again. A failed attempt is repeated after 100
	// ms, up to 10 times; then the connection is lost. ConnectRate does not apply to these
	// attempts. A connection that ends in any other way is lost.
	NoReconnect bool `flag:"no-reconnect" needs:"match" help:"count connections that an HTTP server closes cleanly, as with Connection: close, as lost (default: open another one)"`
	// Lifetime closes a connection in the middle of its traffic. Messages in flight then count as
	// cut off, not as unanswered. The replacement is opened at ConnectRate at most. Lost
	// connections are replaced, too, and failed attempts are repeated after 100 ms.
	Lifetime   time.Duration `flag:"lifetime" help:"close each connection after this <TIME> and open another one (default: never)"`
	Warmup     time.Duration `flag:"warmup" default:"0s" min:"0" help:"run for this <TIME> before measuring"`
	HoldBefore time.Duration `flag:"hold-before" default:"0s" min:"0" help:"leave the connections idle for this <TIME> before the traffic"`
	HoldAfter  time.Duration `flag:"hold-after" default:"0s" min:"0" help:"leave the connections idle for this <TIME> after the traffic"`
	// Drain applies after the window, and at any time if Messages is set.
	Drain time.Duration `flag:"drain" default:"5s" help:"stop waiting for missing answers when none has arrived for this <TIME>"`

	// Message is sent, and expected back unless Answer or Match is set: 1 byte to MaxMessage. A
	// text with expressions such as \{connection.uid} is a template, which generates each message
	// anew: see docs/load.md. A literal \{ is written \\{. With Match "http" the default is a GET
	// of "/".
	Message string `group:"Messages" flag:"message,m" oneof:"message" help:"send this <TEXT>, a template if it contains \\{…}; line-based servers need a newline at the end, as $'ping\\n' in most shells" flag2:"message-file,f" help2:"send the content of this <FILE> verbatim" flag3:"template-file" help3:"send messages from the template in this <FILE>"`
	// First can also be a template. The other messages follow when it has been answered, or
	// immediately if no answers are expected.
	First string `flag:"first-message,1" help:"send this <TEXT>, or template, first on each connection" flag2:"first-message-file" help2:"send a message from the template in this <FILE> first on each connection"`
	// Size is the length of the default messages: printable characters and a "\n". With PubSub it
	// is the length of the payload, at least MinPayload.
	Size int `flag:"size" default:"64" min:"2" max:"1Mi" oneof:"message" help:"without a message, send lines of <BYTES>, each different"`
	// Ahead is less than the length of a message. Its bytes count as sent together with their
	// message. It excludes templates and WebSockets.
	Ahead int `flag:"ahead" default:"0" min:"0" max:"1048575" help:"send <BYTES> of the next message with each one, so that the server always holds a part"`
	// Seed determines everything random: two runs with the same seed send the same bytes on the
	// same connections and plan the same times.
	Seed uint64 `flag:"seed" default:"0" help:"derive everything random from this <NUMBER>"`
	// WebSocket, if set, makes every connection a WebSocket (RFC 6455). A connection is established
	// when its handshake is complete. Each message is a text message.
	WebSocket *WebSocket

	// Answer is what to expect back for each Message, byte for byte: 1 byte to MaxMessage.
	Answer string `group:"Answers" flag:"answer" oneof:"answer" needs:"message" help:"expect this <TEXT> in answer to each message (default: the message)"`
	// Match describes how answers are delimited if they are not known byte for byte:
	//
	//	""              each answer equals the message, or Answer
	//	"delimiter:T"   each ends in the text T, such as delimiter:\r\n
	//	"length:4be"    each begins with its length: 1, 2, 4 or 8 bytes, be
	//	                or le; "length:4be+8" if the number is 8 less than the
	//	                bytes that follow, -4 if it includes itself
	//	"bytes:N"       each has N bytes
	//	"marker:T"      each contains the text T once
	//	"frames"        each is one WebSocket message
	//	"http"          each is an HTTP/1.1 response; a status of 400 or more is an error
	//	"none"          none is expected; input is counted in bytes
	Match string `flag:"match" oneof:"answer" help:"delimit answers by a <RULE>: delimiter:TEXT, length:4be, bytes:N, marker:TEXT, frames, http or none (default: by their bytes)" flag2:"http" bare2:"true" help2:"send HTTP/1.1 requests, the message or a GET of \"/\": --match http" flag3:"latency-marker" help3:"count an answer for each occurrence of this <TEXT>, as tcpkali does: --match marker:TEXT"`
	// Unprompted sends the first message to introduce the connection; each further one answers
	// something that the server sent. At the end of the window the run does not wait for missing
	// answers, and they are no fault.
	Unprompted bool `flag:"unprompted" oneof:"pace" help:"answer what the server sends by itself, such as heartbeats, with the next message"`

	// TLS, if set, encrypts every connection. A connection has failed if its handshake fails or
	// takes longer than ConnectTimeout. At most 512 handshakes run at once.
	TLS *TLS `group:"Encryption" flag:"tls" help:"encrypt with TLS; a connection is established when its handshake is complete"`

	// PubSub, if set, makes the connections subscribers.
	PubSub *PubSub `group:"Publish/subscribe"`

	// Hold sends no messages: the connections stay open for Duration, and input is counted in
	// bytes. Without a Lifetime, a held connection needs no memory but the engine's, and 16 bytes
	// with Check.
	Hold bool `key:"hold" oneof:"pace"`
	// Check verifies held connections: see Verification. On WebSockets a message is a line without
	// its newline.
	Check int `group:"Lines" flag:"check" max:"1Mi" bare:"1000" not:"lifetime,early" needs:"hold" help:"verify all connections when they are established, and again at the end: each sends a unique line and expects it back; at most <N> lines are in flight, given as --check=N (default 1000)"`
	// Heartbeat, HeartbeatAnswer and Broadcast are lines of 2 bytes to MaxLine that end in their
	// only "\n". On WebSockets, pings are the heartbeats. See Broadcast for the last.
	Heartbeat       string `flag:"heartbeat" not:"lifetime,early,ws" needs:"hold" help:"answer this heartbeat <LINE> of the server immediately; its newline is optional"`
	HeartbeatAnswer string `flag:"heartbeat-answer" default:"pong" needs:"heartbeat" help:"answer heartbeats with this <LINE>"`
	Broadcast       string `flag:"broadcast" not:"lifetime,early" needs:"hold" help:"expect this <LINE> once on each connection"`

	// ProgressEvery is the time between Progress events and so the length of an Interval.
	ProgressEvery time.Duration `group:"Results" flag:"interval" default:"1s" help:"report on the run every <TIME>"`

	// NumberFrom is the number of the first connection, and with PubSub that of the first
	// subscriber, which determines its topic. Random times, \{connection.uid} and the first message
	// of a connection depend on these numbers: see Divide.
	NumberFrom int `key:"number-from" max:"1Gi"`
	// Histograms fills Result.Histograms and Interval.Histograms, so that all distributions of
	// several generators can be merged exactly. Without it, only the latency of the result can.
	Histograms bool `key:"histograms"`

	// Begin makes the run wait, once every connection has been established or has failed, until the
	// channel delivers a value or is closed, so that several generators can begin together. In a
	// search the value is a rate to try, chosen by a Search that decides for all generators. Tried
	// then has the Result, and the run waits for the next rate; 0 ends it. Begin excludes Early.
	Begin <-chan float64
	// Enough extends the window of a Steady run until the channel is closed, to at most 3 times the
	// Duration. The coordinator of several generators closes it.
	Enough <-chan struct{}
	// Published delivers the number of messages of each publisher of all generators, negative if
	// unknown, at the end of a publish/subscribe run with shared topics. The run reports its own
	// publishers with the phase Published before. It then waits for missing deliveries: see Drain.
	Published <-chan []int64
	// Observe is called with each event of the run on Run's goroutine, so never concurrently. Run
	// waits until it returns.
	Observe func(Event)
}

// Ramp opens connections evenly over a time.
type Ramp struct {
	// From is the number of connections at the start, To the number at the end. The default of To
	// is Config.Connections.
	From, To int
	// Over is the duration of the ramp; 0 is no ramp.
	Over time.Duration
}

// Rate is the plan of an open loop: when messages are sent. Latency is then measured from the
// planned time, so that messages delayed by a stalled server or a slow generator count in full.
// This corrects for coordinated omission (Gil Tene, "How NOT to Measure Latency", and wrk2).
type Rate struct {
	// PerSecond is the number of messages a second on all connections together, each on any
	// connection with capacity; with Each, on every single connection. 0 is no plan.
	PerSecond float64 `json:"per_second"`
	Each      bool    `json:"each,omitempty"`
	// Poisson draws the times between messages from an exponential distribution.
	Poisson bool `json:"poisson,omitempty" flag:"arrivals" words:"constant,poisson" needs:"rate" help:"times between the messages of a rate, <constant|poisson>: equal, or drawn from an exponential distribution"`
	// To is the rate at the end of the window; the rate changes linearly. 0 is no change.
	To float64 `json:"to,omitempty"`
	// Goal, instead of PerSecond, searches for a rate.
	Goal Goal `json:"-"`
}

// TLS configures encryption.
type TLS struct {
	CAFile   string `flag:"tls-ca" help:"trust the certificates in this PEM <FILE> (default: the system's)"`
	Insecure bool   `flag:"tls-insecure" not:"tls-ca" help:"accept any certificate"`
	// ServerName is also sent to the server (SNI).
	ServerName string `flag:"tls-server-name" help:"expect a certificate for this <NAME>, and ask for it (default: the host)"`
	// Config is the base of the above. Sessions are resumed only with a ClientSessionCache.
	Config *tls.Config
}

// Socket has the socket options.
type Socket struct {
	// SendBuffer and ReceiveBuffer are the sizes of the kernel's buffers, which the kernel doubles.
	SendBuffer    int `flag:"sndbuf" max:"1Gi" help:"set SO_SNDBUF to <BYTES> (default: the kernel's choice)"`
	ReceiveBuffer int `flag:"rcvbuf" max:"1Gi" help:"set SO_RCVBUF to <BYTES> (default: the kernel's choice)"`
	// Delay leaves TCP_NODELAY off.
	Delay bool `flag:"nagle" words:"off,on" help:"Nagle's algorithm, <on|off>"`
}

// WebSocket configures the WebSocket handshake.
type WebSocket struct {
	Path   string      `flag:"ws" default:"/" bare:"/" help:"use WebSockets at a <PATH>, given as --ws=/chat; each message is one WebSocket message"`
	Header http.Header `flag:"header,H" help:"add this <NAME: VALUE> to the request of a WebSocket (repeatable)"`
}
