package load

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
)

// The bounds of a Config.
const (
	// MaxMessage is the size of the longest message, in bytes.
	MaxMessage = 1 << 20
	// MaxPipeline is the most messages in flight on one connection.
	MaxPipeline = 1024
	// maxConnections bounds the memory of a mistyped number.
	maxConnections = 64 << 20
	// maxFlying bounds the messages in flight on all connections: 8 bytes
	// are kept for each.
	maxFlying = 256 << 20
	// maxFlyingBytes bounds the bytes in flight on one connection.
	maxFlyingBytes = 64 << 20
	// maxRate is the most new connections a second that can be paced.
	maxRate = 10_000_000
	// maxLoops bounds the threads of a mistyped number.
	maxLoops = 1024
	// maxTime bounds every duration.
	maxTime = 30 * 24 * time.Hour
)

// Config says what load to put on which server. The zero value of each field
// but Target is a good default.
type Config struct {
	// Target is the server's address as host:port. The host is resolved
	// once, IPv4 before IPv6; an empty host is this machine.
	Target string

	// Connections is how many connections to open. Default 100.
	Connections int
	// ConnectRate is how many connections to start a second. Default 0: as
	// fast as the server takes them, with at most 512 half open. A rate
	// bounds those too, at a second's worth of it or 512.
	ConnectRate int
	// ConnectTimeout bounds the connect phase: when no attempt has
	// succeeded or failed for that long, those that are missing have
	// failed. Default 10 s.
	ConnectTimeout time.Duration
	// Sources are the local addresses to connect from, in equal parts.
	// Default: the kernel's choice; but on Linux, for a target within
	// 127.0.0.0/8, as many addresses of 127.0.0.0/8 as are needed for none
	// to use more than a quarter of the ephemeral ports, nor more than
	// 20,000: about 7,000 connections each with the usual port range.
	Sources []netip.Addr

	// TLS, if set, has every connection encrypted. A connection is
	// established when its handshake is over; one whose handshake fails, or
	// is not over within ConnectTimeout, has failed. At most 512 handshakes
	// are under way at once. Where ServerName is not set it is the target's
	// host, unless InsecureSkipVerify is. Sessions are resumed only with a
	// ClientSessionCache. Default nil: no encryption.
	TLS *tls.Config

	// Message is what to send and to expect back, 1 byte to MaxMessage. A
	// server that answers lines needs its last byte to be "\n". Default: a
	// text of Size bytes that differs from message to message.
	Message []byte
	// Answer is what to expect back for each Message, byte for byte, where
	// that is not the message itself: 1 byte to MaxMessage. It takes a
	// Message. Default: the message.
	Answer []byte
	// Unprompted says that the server sends its answers when it likes, as
	// with heartbeats: the first message is what makes a connection known,
	// each further one answers what the server has sent. When the window ends
	// nothing that is missing is waited for, and none of it is a fault.
	Unprompted bool
	// HTTP says that messages are HTTP/1.1 requests. Before the connections
	// are opened, one of its own sends the message once. Its answer has to
	// be complete, with status 200 and a Content-Length, and leave the
	// connection open; it is then what is expected of every answer, byte for
	// byte but for the value of a Date, which has a fixed length. Message
	// is a GET of "/" by default; Answer is not given.
	HTTP bool
	// Size is the size of a message in bytes where Message is not set, 2
	// to MaxMessage: printable characters and a "\n" at the end. Default 64.
	Size int
	// Pipeline is how many messages each connection keeps in flight, 1 to
	// MaxPipeline. All messages in flight on one connection may have 64
	// MiB. Default 1.
	Pipeline int

	// Duration is the measured window. Default 10 s, unless Messages is set.
	Duration time.Duration
	// Warmup is a time of traffic before the window. Default 0.
	Warmup time.Duration
	// Messages is how many messages each connection exchanges, instead of
	// Duration and Warmup. Default 0: as many as there is time for.
	Messages int64
	// HoldBefore and HoldAfter are times during which the open connections
	// are left alone, before and after the traffic. Default 0.
	HoldBefore, HoldAfter time.Duration
	// Drain is how long to wait without a single answer before those that
	// are missing are given up: after the window, and at any time where
	// Messages is set. Default 5 s.
	Drain time.Duration

	// Model is the I/O model to run on, such as "uring" or "epoll".
	// Default: the best that can run on this machine.
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

	// free and freeEnd bound the bytes of Answer that can be anything.
	free, freeEnd int

	// Observe is told of the run as it goes on. Run calls it on its own
	// goroutine, so never concurrently, and does not go on before it
	// returns. Default nil.
	Observe func(Event)
	// ProgressEvery is the time between Progress events. Default 1 s.
	ProgressEvery time.Duration
}

// Validate says what is wrong with the configuration, nil if nothing is. It
// looks at the fields only, not at the machine or the network.
func (c Config) Validate() error {
	c = c.filled()
	for _, err := range []error{c.checkTarget(), c.checkMessage(), c.checkBounds(), c.checkTimes(), c.checkMachine()} {
		if err != nil {
			return err
		}
	}
	return nil
}

// filled is the configuration with its defaults.
func (c Config) filled() Config {
	setDefault(&c.Connections, 100)
	setDefault(&c.ConnectTimeout, 10*time.Second)
	setDefault(&c.Pipeline, 1)
	setDefault(&c.Drain, 5*time.Second)
	setDefault(&c.Loops, 1)
	setDefault(&c.ProgressEvery, time.Second)
	if c.HTTP && c.Message == nil {
		c.Message = []byte("GET / HTTP/1.1\r\nHost: " + c.Target + "\r\n\r\n")
	}
	if c.Message == nil {
		setDefault(&c.Size, 64)
	}
	if c.Messages == 0 {
		setDefault(&c.Duration, 10*time.Second)
	}
	if c.Model == "" {
		best, _ := models.Best()
		c.Model = best.Name
	}
	return c
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func (c Config) checkTarget() error {
	host, port, err := net.SplitHostPort(c.Target)
	if err != nil || port == "" || port == "0" {
		return fmt.Errorf("load: target %q; expected host:port", c.Target)
	}
	target, err := netip.ParseAddr(host)
	for _, s := range c.Sources {
		if !s.IsValid() {
			return fmt.Errorf("load: a source address is not set; expected an IP address of this machine")
		}
		if err == nil && s.Unmap().Is4() != target.Unmap().Is4() {
			return errFamily(s, target)
		}
	}
	return nil
}

func errFamily(source, target netip.Addr) error {
	return fmt.Errorf("load: source %v for target %v; expected both to be IPv4 or both IPv6", source, target)
}

func (c Config) checkMessage() error {
	if c.Message != nil && c.Size != 0 {
		return fmt.Errorf("load: a message and a size of %d bytes; expected one of the two", c.Size)
	}
	if n := len(c.Message); c.Message != nil && (n < 1 || n > MaxMessage) {
		return fmt.Errorf("load: a message of %d bytes; expected 1 to %d", n, MaxMessage)
	}
	if c.Message == nil && (c.Size < 2 || c.Size > MaxMessage) {
		return fmt.Errorf("load: messages of %d bytes; expected 2 to %d", c.Size, MaxMessage)
	}
	return c.checkAnswer()
}

func (c Config) checkAnswer() error {
	switch n := len(c.Answer); {
	case c.Answer == nil:
		return nil
	case c.HTTP:
		return fmt.Errorf("load: an answer of %d bytes for HTTP; expected none, it is learned from the server", n)
	case n < 1 || n > MaxMessage:
		return fmt.Errorf("load: an answer of %d bytes; expected 1 to %d", n, MaxMessage)
	case c.Message == nil:
		return fmt.Errorf("load: an answer of %d bytes, and no message; expected the message that it answers", n)
	}
	return nil
}

func (c Config) checkBounds() error {
	for _, f := range []struct {
		name           string
		got, low, high int
	}{
		{"connections", c.Connections, 1, maxConnections},
		{"connect rate", c.ConnectRate, 0, maxRate},
		{"pipeline", c.Pipeline, 1, MaxPipeline},
		{"loops", c.Loops, 1, maxLoops},
	} {
		if f.got < f.low || f.got > f.high {
			return fmt.Errorf("load: %s of %d; expected %d to %d", f.name, f.got, f.low, f.high)
		}
	}
	if c.Messages < 0 {
		return fmt.Errorf("load: %d messages a connection; expected 1 or more, or 0 for as many as there is time for", c.Messages)
	}
	if n := c.Pipeline * c.messageSize(); n > maxFlyingBytes {
		return fmt.Errorf("load: a pipeline of %d messages of %d bytes; expected at most %d bytes in flight on a connection", c.Pipeline, c.messageSize(), maxFlyingBytes)
	}
	if n := c.Pipeline * c.Connections; n > maxFlying {
		return fmt.Errorf("load: %d connections with a pipeline of %d; expected at most %d messages in flight", c.Connections, c.Pipeline, maxFlying)
	}
	return nil
}

// checkMachine says what this machine does not allow.
func (c Config) checkMachine() error {
	if _, err := models.Find(c.Model); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if _, _, err := c.shards(); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

// shards is how many loops there are, and for how many connections each has room
// if they have a descriptor table each; see sock.Shards.
func (c Config) shards() (loops, each int, err error) {
	most := maxLoops
	if m, err := models.Find(c.Model); err != nil || !m.Loops {
		most = 0
	}
	return sock.Shards(c.Connections, c.Loops, most)
}

func (c Config) checkTimes() error {
	for _, f := range []struct {
		name string
		got  time.Duration
	}{
		{"connect timeout", c.ConnectTimeout},
		{"duration", c.Duration},
		{"warm-up", c.Warmup},
		{"hold before the traffic", c.HoldBefore},
		{"hold after the traffic", c.HoldAfter},
		{"drain", c.Drain},
		{"time between progress events", c.ProgressEvery},
	} {
		if f.got < 0 || f.got > maxTime {
			return fmt.Errorf("load: %s of %v; expected 0 to %v", f.name, f.got, maxTime)
		}
	}
	if c.Messages > 0 && (c.Duration > 0 || c.Warmup > 0) {
		return fmt.Errorf("load: %d messages a connection and a duration of %v with a warm-up of %v; expected a number of messages or times", c.Messages, c.Duration, c.Warmup)
	}
	return nil
}

// messageSize is the size of a message in bytes.
func (c Config) messageSize() int {
	if c.Message != nil {
		return len(c.Message)
	}
	return c.Size
}
