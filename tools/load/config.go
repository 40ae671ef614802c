package load

import (
	"crypto/tls"
	"net/http"
	"net/netip"
	"time"
)

// Limits that are not declared in the tag min or max of a Config field.
const (
	// MaxMessage is the maximum size of a message in bytes.
	MaxMessage = 1 << 20
	// MaxLine is the maximum length in bytes of a line that the server sends to verified held connections.
	MaxLine = 4096
	// MaxRate is the highest plannable rate in messages per second.
	MaxRate = 100_000_000
	// maxInFlight limits the messages in flight on all connections. Each takes 8 bytes of memory.
	maxInFlight = 256 << 20
	// maxInFlightBytes limits the bytes in flight on one connection.
	maxInFlightBytes = 64 << 20
	// maxLoops limits the number of loops. A run starts further loops when it needs more descriptor tables.
	maxLoops = 1024
	// maxDuration limits every duration.
	maxDuration = 30 * 24 * time.Hour
)

// Config describes a load and its target. Only Target is required. A zero field selects its default.
//
// The tags of a field declare its setting: the flag, the JSON key, help, default, limits, and settings that it
// excludes or requires. See Setting.
type Config struct {
	// Target is the server's address: host:port, or "unix:" followed by the path of a unix socket. The host is
	// resolved once, and IPv4 is preferred. An empty host is this machine.
	Target string `key:"target"`
	// Also lists further targets. Connections use all targets in rotation.
	Also []string `key:"also"`

	Connections int `group:"Connections" flag:"connections,c" default:"100" max:"64Mi" help:"open <N> connections"`
	// ConnectRate also limits half-open connections: to one second's worth, or to 512 if that is more. Without
	// a rate the limit is 512.
	ConnectRate int `flag:"connect-rate" max:"10M" help:"start <N> connections a second (default: as fast as the server accepts)"`
	// ConnectTimeout ends the connect phase. An early run has no connect phase; there, connections that are not
	// established by the end of the run have failed.
	ConnectTimeout time.Duration `flag:"connect-timeout" default:"10s" help:"stop connecting when no attempt has succeeded or failed for this <TIME>"`
	Ramp           Ramp          `flag:"ramp" help:"open the connections evenly over a <TIME>, or FROM:TO:TIME such as 0:100k:60s (default: all from the start)"`
	// Sources share the connections equally. By default the kernel chooses a source, except on Linux with a
	// target in 127.0.0.0/8. The run then uses as many addresses of 127.0.0.0/8 as it needs. Each gets less
	// than a quarter of the ephemeral ports and less than 20,000 connections, about 7,000 with the usual port
	// range. The port is chosen when the connection is made (IP_BIND_ADDRESS_NO_PORT), so a source can use the
	// same port for several targets.
	Sources []netip.Addr `flag:"src" help:"connect from this local <ADDRESS>, range A-B or network A/BITS (repeatable; default: chosen automatically)"`
	// Graceful closes connections with FIN at the end of the run. Each address and port then stays in TIME_WAIT
	// for a minute. By default connections are reset, and a server reports "connection reset by peer".
	Graceful bool `flag:"close" words:"rst,fin" help:"close connections with <fin|rst>; a reset leaves no TIME_WAIT"`
	Socket   Socket
	// Model is the name of an I/O model, such as "uring" or "epoll". "" and "auto" select the best available
	// model.
	Model string `flag:"model" help:"run on this I/O <MODEL> (default: the best that can run here)"`
	// Loops is raised if the connections exceed the limit of one descriptor table. Each loop then has its own
	// table.
	Loops int `flag:"loops,w" default:"1" max:"1024" help:"run <N> event loops, if the model has loops"`

	// Duration is the length of the measured window. In a search (see Goal) each rate is tried for this time.
	Duration time.Duration `group:"Traffic" flag:"duration,T" default:"10s" help:"measure for this <TIME>"`
	// Steady extends the window while Result.Variation is above SteadyVariation.
	Steady   bool  `flag:"steady" not:"messages,rate,hold" help:"extend the window, to at most 3 times the duration, while the receive rate varies by more than 25 %"`
	Messages int64 `flag:"messages" not:"duration,warmup,rate,flood,hold,early,ramp,lifetime" help:"exchange <N> messages on each connection, instead of a duration"`
	// Rate selects an open loop if it has a rate or a goal: messages are sent at planned times, regardless of
	// answers. Otherwise the run is a closed loop, in which each connection waits for answers.
	Rate Rate `flag:"rate" oneof:"pace" help:"open loop: send <N> messages a second in all, such as 50k; 1k:100k changes from the first to the second; @10ms or @10ms,p99.9 searches for the highest rate at which p99, or p99.9, stays below" flag2:"message-rate,r" help2:"open loop: send <N> messages a second on each connection; otherwise as --rate"`
	// Flood expects no answers, so Match is "none". The goroutine model alternates reads and writes. It
	// therefore deadlocks if the server stops reading until its answers are read.
	Flood bool `flag:"flood" oneof:"pace" not:"first-message,answer" help:"send as fast as connections accept data, without waiting for answers"`
	// Pipeline limits the messages in flight on a connection. With PubSub it applies to each publisher, and
	// defaults to 64 in an open loop. The messages in flight on one connection are limited to 64 MiB.
	Pipeline int           `flag:"pipeline" default:"1" max:"1024" help:"keep <N> messages in flight on each connection; with a rate, at most"`
	Think    time.Duration `flag:"think" default:"0s" min:"0" oneof:"pace" help:"wait this <TIME> between an answer and the next message"`
	// Early begins the window with the first connection attempt. Lifetime implies Early, and so does Ramp
	// without Hold.
	Early bool `flag:"early" help:"start the traffic on each connection when it is established (default: when all are)"`
	// NoReconnect applies if Match is "http". By default, when the server closes a connection cleanly, a new
	// connection to the same target continues its traffic. A close is clean after "Connection: close", or after
	// a response with no request outstanding. Requests sent after the last response are sent again. A failed
	// attempt is repeated every 100 ms, at most 10 times; then the connection is lost. ConnectRate does not
	// limit these attempts. A connection that ends in any other way is lost.
	NoReconnect bool `flag:"no-reconnect" needs:"match" help:"count connections that an HTTP server closes cleanly, as with Connection: close, as lost (default: open another one)"`
	// Lifetime closes each connection in the middle of its traffic. Its messages in flight count as cut off,
	// not as unanswered. Replacements are opened at ConnectRate at most. Lost connections are also replaced,
	// and failed attempts are repeated after 100 ms.
	Lifetime   time.Duration `flag:"lifetime" help:"close each connection after this <TIME> and open another one (default: never)"`
	Warmup     time.Duration `flag:"warmup" default:"0s" min:"0" help:"run for this <TIME> before measuring"`
	HoldBefore time.Duration `flag:"hold-before" default:"0s" min:"0" help:"leave the connections idle for this <TIME> before the traffic"`
	HoldAfter  time.Duration `flag:"hold-after" default:"0s" min:"0" help:"leave the connections idle for this <TIME> after the traffic"`
	// Drain applies after the window. With Messages it applies at any time.
	Drain time.Duration `flag:"drain" default:"5s" help:"stop waiting for missing answers when none has arrived for this <TIME>"`

	// Message is the text to send, 1 byte to MaxMessage. The answer is expected to be equal unless Answer or
	// Match is set. A text with expressions such as \{connection.uid} is a template, which generates each
	// message anew: see docs/load.md. A literal \{ is written \\{. With Match "http" the default is a GET of
	// "/".
	Message string `group:"Messages" flag:"message,m" oneof:"message" help:"send this <TEXT>, a template if it contains \\{…}; line-based servers need a newline at the end, as $'ping\\n' in most shells" flag2:"message-file,f" help2:"send the content of this <FILE> verbatim" flag3:"template-file" help3:"send messages from the template in this <FILE>"`
	// First can also be a template. The other messages follow when First has been answered, or immediately if
	// no answers are expected.
	First string `flag:"first-message,1" help:"send this <TEXT>, or template, first on each connection" flag2:"first-message-file" help2:"send a message from the template in this <FILE> first on each connection"`
	// Size is the length of default messages, which consist of printable characters and a final "\n". With
	// PubSub, Size is the length of the payload, at least MinPayload.
	Size int `flag:"size" default:"64" min:"2" max:"1Mi" oneof:"message" help:"without a message, send lines of <BYTES>, each different"`
	// Ahead is less than the length of a message. The bytes sent ahead count as sent with their own message.
	// Ahead excludes templates and WebSockets.
	Ahead int `flag:"ahead" default:"0" min:"0" max:"1048575" help:"send <BYTES> of the next message with each one, so that the server always holds a part"`
	// Seed determines everything random. Two runs with the same seed plan the same times and send the same
	// bytes on the same connections.
	Seed uint64 `flag:"seed" default:"0" help:"derive everything random from this <NUMBER>"`
	// WebSocket turns every connection into a WebSocket (RFC 6455) if it is not nil. A connection is
	// established when its handshake is complete. Each message is a text message.
	WebSocket *WebSocket

	// Answer is the expected answer to each Message, byte for byte: 1 byte to MaxMessage.
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
	// Unprompted answers what the server sends. The first message introduces the connection. Each further
	// message answers one message from the server. The run does not wait for answers at the end of the window,
	// and missing answers are not faults.
	Unprompted bool `flag:"unprompted" oneof:"pace" help:"answer what the server sends by itself, such as heartbeats, with the next message"`

	// TLS encrypts every connection if it is not nil. A connection has failed if its handshake fails or takes
	// longer than ConnectTimeout. At most 512 handshakes run at the same time.
	TLS *TLS `group:"Encryption" flag:"tls" help:"encrypt with TLS; a connection is established when its handshake is complete"`

	// PubSub turns the connections into subscribers if it is not nil.
	PubSub *PubSub `group:"Publish/subscribe"`

	// Hold keeps the connections open for Duration without sending messages. Input is counted in bytes. Without
	// Lifetime, a held connection needs only the engine's memory, and 16 bytes more with Check.
	Hold bool `key:"hold" oneof:"pace"`
	// Check verifies held connections: see Verification. On a WebSocket, a line is a message without the
	// newline.
	Check int `group:"Lines" flag:"check" max:"1Mi" bare:"1000" not:"lifetime,early" needs:"hold" help:"verify all connections when they are established, and again at the end: each sends a unique line and expects it back; at most <N> lines are in flight, given as --check=N (default 1000)"`
	// Heartbeat, HeartbeatAnswer and Broadcast are lines of 2 bytes to MaxLine. Each ends in "\n" and contains
	// no other. On WebSockets, pings are the heartbeats. The type Broadcast describes the last field.
	Heartbeat       string `flag:"heartbeat" not:"lifetime,early,ws" needs:"hold" help:"answer this heartbeat <LINE> of the server immediately; its newline is optional"`
	HeartbeatAnswer string `flag:"heartbeat-answer" default:"pong" needs:"heartbeat" help:"answer heartbeats with this <LINE>"`
	Broadcast       string `flag:"broadcast" not:"lifetime,early" needs:"hold" help:"expect this <LINE> once on each connection"`

	// ProgressEvery is the time between Progress events, and so the length of an Interval.
	ProgressEvery time.Duration `group:"Results" flag:"interval" default:"1s" help:"report on the run every <TIME>"`

	// NumberFrom is the number of the first connection; with PubSub, that of the first subscriber. A
	// connection's number determines its random times, \{connection.uid}, its first message and a subscriber's
	// topic. See Divide.
	NumberFrom int `key:"number-from" max:"1Gi"`
	// Histograms fills Result.Histograms and Interval.Histograms. Merge can then combine all distributions of
	// several generators exactly; without them, only the latency of the result.
	Histograms bool `key:"histograms"`

	// Begin synchronizes several generators. When every connection has been established or has failed, the run
	// waits until Begin delivers a value or is closed. In a search, each value is a rate to try, chosen by a
	// Search that decides for all generators. The event Tried then has the Result, and the run waits for the
	// next rate; 0 ends the search. Begin excludes Early.
	Begin <-chan float64
	// Enough extends the window of a Steady run until the channel is closed, to at most three times the
	// Duration. The coordinator of several generators closes the channel.
	Enough <-chan struct{}
	// Published is used by a publish/subscribe run that shares topics with other generators. At the end, the
	// run reports the message counts of its own publishers with the event Published. Then this channel delivers
	// the counts of all generators' publishers, negative if unknown. The run waits for the deliveries that are
	// missing: see Drain.
	Published <-chan []int64
	// Observe is called with each event of the run. Calls are made on Run's goroutine, so never concurrently,
	// and Run waits for each.
	Observe func(Event)
}

// Ramp opens connections evenly over a time.
type Ramp struct {
	// From and To are the numbers of connections at the start and the end. To defaults to Config.Connections.
	From, To int
	// Over is the duration of the ramp. 0 means no ramp.
	Over time.Duration
}

// Rate is the plan of an open loop: when messages are sent. Latency is measured from the planned time. Delays
// caused by a stalled server or a slow generator therefore count in full. This corrects for coordinated
// omission (Gil Tene, "How NOT to Measure Latency", and wrk2).
type Rate struct {
	// PerSecond is the number of messages per second on all connections together, or on every single connection
	// with Each. A message is sent on any connection that has capacity. 0 means no plan.
	PerSecond float64 `json:"per_second"`
	Each      bool    `json:"each,omitempty"`
	// Poisson draws the times between messages from an exponential distribution.
	Poisson bool `json:"poisson,omitempty" flag:"arrivals" words:"constant,poisson" needs:"rate" help:"times between the messages of a rate, <constant|poisson>: equal, or drawn from an exponential distribution"`
	// To is the rate at the end of the window. The rate changes linearly up to then. 0 means a constant rate.
	To float64 `json:"to,omitempty"`
	// Goal searches for a rate. It replaces PerSecond.
	Goal Goal `json:"-"`
}

type TLS struct {
	CAFile   string `flag:"tls-ca" help:"trust the certificates in this PEM <FILE> (default: the system's)"`
	Insecure bool   `flag:"tls-insecure" not:"tls-ca" help:"accept any certificate"`
	// ServerName is the expected name in the certificate. It is also sent to the server (SNI).
	ServerName string `flag:"tls-server-name" help:"expect a certificate for this <NAME>, and ask for it (default: the host)"`
	// Config is the basis of the TLS configuration. The other fields override it. Sessions are resumed only
	// with a ClientSessionCache.
	Config *tls.Config
}

type Socket struct {
	// SendBuffer and ReceiveBuffer are the requested buffer sizes. The kernel doubles them.
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
