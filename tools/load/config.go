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
	// MaxLine is the longest line, in bytes, that a server may send to connections that are held,
	// if lines are checked.
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

// Config describes a load and the server that gets it. The zero value of each field but Target is
// a good default.
//
// The tags describe each field that is a setting: the name of its flag and of its key in JSON,
// what it does, its default, its limits, and the settings that it excludes or needs. See Setting.
type Config struct {
	// Target is the server's address: host:port, or "unix:" and the path of a unix socket. The
	// host is resolved once, IPv4 before IPv6; an empty host is this machine.
	Target string `key:"target"`
	// Also are further targets; connections are made to all in turn.
	Also []string `key:"also"`

	Connections int `group:"Connections" flag:"connections,c" default:"100" max:"64Mi" help:"open <N> connections"`
	// ConnectRate also limits the connections that are half open: to one second's worth, but at
	// least 512. At most 512 are half open without it.
	ConnectRate int `flag:"connect-rate" max:"10M" help:"start <N> connections a second (default: as fast as the server accepts)"`
	// ConnectTimeout ends the connect phase. An early run has no such phase: there, a connection
	// has failed that is not established by the end of the run.
	ConnectTimeout time.Duration `flag:"connect-timeout" default:"10s" help:"give up connections that are missing if no attempt has succeeded or failed for this <TIME>"`
	Ramp           Ramp          `flag:"ramp" help:"open the connections evenly over a <TIME>, or FROM:TO:TIME such as 0:100k:60s (default: all from the start)"`
	// Sources are used in equal parts. By default the kernel chooses. But on Linux, for a target
	// in 127.0.0.0/8, they are as many addresses of 127.0.0.0/8 as are needed for none to use more
	// than a quarter of the ephemeral ports, nor more than 20,000: about 7,000 connections each
	// with the usual port range. A port is chosen when its connection is made
	// (IP_BIND_ADDRESS_NO_PORT), so that a source can use its ports again for each target.
	Sources []netip.Addr `flag:"src" help:"connect from this local <ADDRESS>, range A-B or network A/BITS (repeatable; default: chosen automatically)"`
	// Graceful closes connections in order at the end of the run. That leaves each address and
	// port in TIME_WAIT for a minute. A server sees a reset as "connection reset by peer".
	Graceful bool `flag:"close" words:"rst,fin" help:"end connections with <fin|rst>: in order, or by a reset, which leaves nothing behind"`
	Socket   Socket
	// Model is a name such as "uring" or "epoll"; "auto" is the default too.
	Model string `flag:"model" help:"run on this I/O <MODEL> (default: the best that can run here)"`
	// Loops is raised if the connections exceed the limit of descriptors: each loop then has a
	// descriptor table.
	Loops int `flag:"loops,w" default:"1" max:"1024" help:"run <N> loops, if the model has loops"`

	// Duration is the length of the measured window, and in a search the time for which each
	// rate is tried: see Goal.
	Duration time.Duration `group:"Traffic" flag:"duration,T" default:"10s" help:"measure for this <TIME>"`
	// Steady extends the window while Result.Variation is above SteadyVariation.
	Steady   bool  `flag:"steady" not:"messages,rate,hold" help:"measure on, for at most 3 times the duration, while the rate of received bytes varies by more than 25 %"`
	Messages int64 `flag:"messages" not:"duration,warmup,rate,flood,hold,early,ramp,lifetime" help:"exchange <N> messages on each connection, instead of a duration"`
	// Rate, if it has a rate or a goal, sends messages at planned times, regardless of when answers
	// come: an open loop. Without one each connection waits for answers: a closed loop.
	Rate Rate `flag:"rate" oneof:"pace" help:"open loop: send <N> messages a second in all, such as 50k; 1k:100k changes from the first to the second; @10ms or @10ms,p99.9 searches the highest at which p99, or p99.9, stays below" flag2:"message-rate,r" help2:"open loop: send <N> messages a second on each connection; otherwise as --rate"`
	// Flood awaits no answer, so Match is "none". The goroutine model reads and writes in turn:
	// there, a server that does not read while its answers are not read stands still.
	Flood bool `flag:"flood" oneof:"pace" not:"first-message,answer" help:"send as fast as connections take it, without waiting for answers"`
	// Pipeline limits what a connection has in flight in an open loop. It is for each publisher
	// with PubSub, where the default is 64 in an open loop. All messages in flight on one
	// connection may have 64 MiB.
	Pipeline int           `flag:"pipeline" default:"1" max:"1024" help:"keep <N> messages in flight on each connection; with a rate, at most"`
	Think    time.Duration `flag:"think" default:"0s" min:"0" oneof:"pace" help:"wait this <TIME> between an answer and the next message"`
	// Early begins the window with the first attempt to connect. A Lifetime implies it, and so
	// does a Ramp without Hold.
	Early bool `flag:"early" help:"begin on each connection when it is established (default: on all when all are)"`
	// NoReconnect matters if Match is "http". By default, a connection that the server closes
	// after a response, with no request outstanding, or after "Connection: close", is replaced by
	// another one to the same target, and its traffic continues there. Requests that were sent
	// after the last response are sent again. An attempt that fails is made again after 100 ms, up
	// to 10 times; then the connection is lost. ConnectRate does not count these attempts. A
	// connection that ends otherwise is lost.
	NoReconnect bool `flag:"no-reconnect" needs:"match" help:"count a connection as lost that an HTTP server closes in order, as with Connection: close (default: open another one)"`
	// Lifetime closes a connection in the middle of its traffic. What was in flight counts as cut
	// off, not as unanswered. The next one is opened at ConnectRate at most. Connections that are
	// lost are replaced too, and attempts that fail are made again after 100 ms.
	Lifetime   time.Duration `flag:"lifetime" help:"close each connection after this <TIME> and open another one (default: never)"`
	Warmup     time.Duration `flag:"warmup" default:"0s" min:"0" help:"run for this <TIME> before measuring"`
	HoldBefore time.Duration `flag:"hold-before" default:"0s" min:"0" help:"leave the connections idle for this <TIME> before the traffic"`
	HoldAfter  time.Duration `flag:"hold-after" default:"0s" min:"0" help:"leave the connections idle for this <TIME> after the traffic"`
	// Drain applies after the window, and at any time if Messages is set.
	Drain time.Duration `flag:"drain" default:"5s" help:"give up missing answers when none has come for this <TIME>"`

	// Message is what to send, and to expect back unless Answer or Match says otherwise: 1 byte to
	// MaxMessage. A text with expressions such as \{connection.uid} is a template, which makes each
	// message anew: see docs/load.md. A literal \{ is written \\{. With Match "http" the default is
	// a GET of "/".
	Message string `group:"Messages" flag:"message,m" oneof:"message" help:"send this <TEXT>, as it is, or a template if it has a \\{…}; for a server of lines it ends in a newline, as $'ping\\n' in most shells" flag2:"message-file,f" help2:"send what is in this <FILE>, as it is" flag3:"template-file" help3:"send what the template in this <FILE> makes"`
	// First is a template too. The other messages follow when it has been answered, or at once if no
	// answer is awaited.
	First string `flag:"first-message,1" help:"send this <TEXT>, or template, first on each connection" flag2:"first-message-file" help2:"send what the template in this <FILE> makes first on each connection"`
	// Size is the size of messages of printable characters and a "\n" at the end, or of the
	// payload with PubSub, where it is at least MinPayload.
	Size int `flag:"size" default:"64" min:"2" max:"1Mi" oneof:"message" help:"without a message, send lines of <BYTES>, each different"`
	// Ahead is smaller than a message. Its bytes do not count as sent before their message does. It
	// excludes templates and WebSockets.
	Ahead int `flag:"ahead" default:"0" min:"0" max:"1048575" help:"send <BYTES> of the next message with each one, so that the server always holds a part"`
	// Seed determines everything random: two runs with the same seed send the same bytes on the
	// same connections, and plan the same times.
	Seed uint64 `flag:"seed" default:"0" help:"make everything random from this <NUMBER>"`
	// WebSocket, if set, upgrades every connection to a WebSocket (RFC 6455). A connection is
	// established when the server has agreed. Each message is a text message.
	WebSocket *WebSocket

	// Answer is what to expect back for each Message, byte for byte: 1 byte to MaxMessage.
	Answer string `group:"Answers" flag:"answer" oneof:"answer" needs:"message" help:"expect this <TEXT> in answer to each message (default: the message)"`
	// Match is how answers are delimited if they are not known byte for byte:
	//
	//	""              by their bytes: each is the message, or Answer
	//	"delimiter:T"   each ends in the text T, such as delimiter:\r\n
	//	"length:4be"    each begins with its length: 1, 2, 4 or 8 bytes, be
	//	                or le; "length:4be+8" if the number counts 8 bytes
	//	                less than what follows it, -4 if itself too
	//	"bytes:N"       each has N bytes
	//	"marker:T"      each has the text T in it somewhere, once
	//	"frames"        each is one WebSocket message
	//	"http"          each is an HTTP/1.1 response; a status of 400 or more is an error
	//	"none"          none is awaited; what comes is counted in bytes
	Match string `flag:"match" oneof:"answer" help:"delimit answers by a <RULE>: delimiter:TEXT, length:4be, bytes:N, marker:TEXT, frames, http or none (default: by their bytes)" flag2:"http" bare2:"true" help2:"send HTTP/1.1 requests, the message or a GET of \"/\": --match http" flag3:"latency-marker" help3:"an answer is what has this <TEXT> in it, as for tcpkali: --match marker:TEXT"`
	// Unprompted sends the first message to make the connection known; each further one answers
	// what the server has sent. When the window ends, missing answers are not waited for, and are no
	// fault.
	Unprompted bool `flag:"unprompted" oneof:"pace" help:"the answers come when the server likes, as heartbeats do, and are answered with the next message"`

	// TLS, if set, encrypts every connection. A connection has failed if its handshake fails, or
	// takes longer than ConnectTimeout. At most 512 handshakes are under way at once.
	TLS *TLS `group:"Encryption" flag:"tls" help:"encrypt with TLS; a connection is established when its handshake is complete"`

	// PubSub, if set, makes the connections subscribers.
	PubSub *PubSub `group:"Publish/subscribe"`

	// Hold sends no messages: the connections are held open for Duration, and what the server
	// sends is counted in bytes. A connection that is only held, so without a Lifetime, takes no
	// memory but the engine's, and 16 bytes with Check.
	Hold bool `key:"hold" oneof:"pace"`
	// Check verifies the connections that are held: see Verification. On WebSockets a message is a
	// line without its end.
	Check int `group:"Lines" flag:"check" max:"1Mi" bare:"1000" not:"lifetime,early" needs:"hold" help:"verify all connections when they are established, and again at the end: each sends a line of its own, and the same must come back; at most <N> lines are in flight, given as --check=N (default 1000)"`
	// Heartbeat, HeartbeatAnswer and Broadcast are lines: 2 bytes to MaxLine, the last one "\n" and
	// no other. On WebSockets pings are the heartbeats. See Broadcast for the last.
	Heartbeat       string `flag:"heartbeat" not:"lifetime,early,ws" needs:"hold" help:"the <LINE> that the server sends as a heartbeat, answered at once; the newline at its end can be left out"`
	HeartbeatAnswer string `flag:"heartbeat-answer" default:"pong" needs:"heartbeat" help:"the <LINE> that answers a heartbeat"`
	Broadcast       string `flag:"broadcast" not:"lifetime,early" needs:"hold" help:"expect this <LINE> once on each connection"`

	// ProgressEvery is the time between Progress events, and so the length of an Interval.
	ProgressEvery time.Duration `group:"Results" flag:"interval" default:"1s" help:"report on the run every <TIME>"`

	// NumberFrom is the number of the first connection, and with PubSub that of the first
	// subscriber: the number determines its topic. Random times, \{connection.uid} and which
	// message of a block comes first depend on numbers: see Divide.
	NumberFrom int `key:"number-from" max:"1Gi"`
	// Histograms fills Result.Histograms and Interval.Histograms, so that all distributions of
	// several generators can be merged exactly. Without it there is only the latency of the result.
	Histograms bool `key:"histograms"`

	// Begin makes the run wait, once all connections have been established or have failed, until
	// a value comes or it is closed: several generators can begin together. In a search the value
	// is a rate to try, chosen by a Search that decides for all generators; Tried has the Result,
	// and the run waits for the next one, until that is 0. It excludes Early.
	Begin <-chan float64
	// Enough extends the window of a Steady run until it is closed, to at most 3 times the
	// Duration: its owner looks at what several generators have received.
	Enough <-chan struct{}
	// Published gets the number of messages of each publisher of all generators, below 0 if it isn't
	// known, at the end of a publish/subscribe run whose topics are shared. The run has told those of
	// its own publishers with the phase Published. It then waits for what is missing: see Drain.
	Published <-chan []int64
	// Observe is called with each event of the run. Run calls it on its own goroutine, so never
	// concurrently, and waits until it returns.
	Observe func(Event)
}

// Ramp opens connections evenly over a time.
type Ramp struct {
	// From is how many are opened at once, To how many there are in the end. The default of To is
	// Config.Connections.
	From, To int
	// Over is the time it takes; 0 is no ramp.
	Over time.Duration
}

// Rate is the plan of an open loop: when messages are to be sent. Latency is then the time since a
// message was to be sent, so that messages count that a stalled server, or a slow generator, has
// kept waiting. That corrects for coordinated omission (Gil Tene, "How NOT to Measure Latency", and
// wrk2).
type Rate struct {
	// PerSecond is the number of messages a second: on all connections together, each on any that
	// has capacity, or with Each on every single one. 0 is no plan.
	PerSecond float64 `json:"per_second"`
	Each      bool    `json:"each,omitempty"`
	// Poisson draws the times between messages from an exponential distribution.
	Poisson bool `json:"poisson,omitempty" flag:"arrivals" words:"constant,poisson" needs:"rate" help:"times between the messages of a rate, <constant|poisson>: equal, or drawn from an exponential distribution"`
	// To is the rate at the end of the window, which is reached linearly. 0 is no change.
	To float64 `json:"to,omitempty"`
	// Goal, instead of PerSecond, searches for a rate.
	Goal Goal `json:"-"`
}

// TLS is how connections are encrypted.
type TLS struct {
	CAFile   string `flag:"tls-ca" help:"trust the certificates in this PEM <FILE> (default: those that the system trusts)"`
	Insecure bool   `flag:"tls-insecure" not:"tls-ca" help:"accept any certificate"`
	// ServerName is also what is asked for.
	ServerName string `flag:"tls-server-name" help:"expect a certificate for this <NAME>, and ask for it (default: the host)"`
	// Config is what the above is added to. Sessions are resumed only with a ClientSessionCache.
	Config *tls.Config
}

// Socket are options of sockets.
type Socket struct {
	// SendBuffer and ReceiveBuffer are the sizes of the kernel's buffers, which it doubles.
	SendBuffer    int `flag:"sndbuf" max:"1Gi" help:"set SO_SNDBUF to <BYTES> (default: the kernel's choice)"`
	ReceiveBuffer int `flag:"rcvbuf" max:"1Gi" help:"set SO_RCVBUF to <BYTES> (default: the kernel's choice)"`
	// Delay leaves TCP_NODELAY off.
	Delay bool `flag:"nagle" words:"off,on" help:"Nagle's algorithm, <on|off>"`
}

// WebSocket is how connections are upgraded.
type WebSocket struct {
	Path   string      `flag:"ws" default:"/" bare:"/" help:"upgrade each connection to a WebSocket at a <PATH>, given as --ws=/chat, and send each message as one of its own"`
	Header http.Header `flag:"header,H" help:"add this <NAME: VALUE> to the request of a WebSocket (repeatable)"`
}
