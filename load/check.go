package load

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/match"
	"github.com/myriad-go/myriad/internal/message"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/internal/websocket"
)

// Validate says what is wrong with the configuration, nil if nothing is. It
// looks at the fields only, not at the machine or the network.
func (c Config) Validate() error {
	if c.Ramp.Over > 0 && c.Ramp.To > 0 && c.Connections > 0 && c.Ramp.To != c.Connections {
		return fmt.Errorf("load: a ramp to %d and %d connections; expected the same, or one of the two", c.Ramp.To, c.Connections)
	}
	if c.Goal.Under != 0 {
		return c.checkGoal()
	}
	c = c.filled()
	for _, check := range []func() error{
		c.checkTargets, c.checkTLS, c.checkMessage, c.checkAnswers, c.checkBounds, c.checkTimes,
		c.checkPace, c.checkHold, c.checkRate, c.checkWebSocket, c.checkMachine,
	} {
		if err := check(); err != nil {
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
	if c.Ramp.Over > 0 {
		setDefault(&c.Ramp.To, c.Connections)
		c.Connections = c.Ramp.To
	}
	if c.Heartbeat != "" {
		setDefault(&c.HeartbeatAnswer, "pong\n")
	}
	c.Early = c.Early || c.Ramp.Over > 0 && !c.Hold || c.Lifetime > 0
	if c.Flood {
		setDefault(&c.Match, matchNone)
		c.Pipeline = 1
	}
	if c.WebSocket != nil {
		ws := *c.WebSocket
		setDefault(&ws.Path, "/")
		c.WebSocket = &ws
	}
	if (c.HTTP || c.Match == matchHTTP) && c.Message == nil && c.Template == "" {
		c.Message = []byte("GET / HTTP/1.1\r\nHost: " + c.host() + "\r\n\r\n")
	}
	if c.Message == nil && c.Template == "" {
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

// The rules of Match that are not package match's.
const (
	matchNone   = "none"
	matchFrames = "frames"
	matchHTTP   = "http"
)

// noReply says whether no answer is awaited.
func (c *Config) noReply() bool { return c.Match == matchNone || c.Hold }

// listens says whether lines matter that come to connections which are held.
func (c *Config) listens() bool { return c.Check > 0 || c.Heartbeat != "" || c.Broadcast != "" }

// mode is what sends messages.
func (c *Config) mode() mode {
	switch {
	case c.Hold:
		return holding
	case c.Flood:
		return flooding
	case c.Rate.PerSecond > 0 && c.Rate.Each:
		return openEach
	case c.Rate.PerSecond > 0:
		return openLoop
	}
	return closedLoop
}

// modeHold is the mode of connections that are only held.
const modeHold = "hold"

// modeName is how reports call it.
func (c *Config) modeName() string {
	if c.Unprompted {
		return "unprompted"
	}
	return [...]string{closedLoop: "closed loop", openLoop: "open loop", openEach: "open loop", flooding: "flood", holding: modeHold}[c.mode()]
}

// most is how many connections there can be at a time: those that are closed to
// make room for others may not be gone yet.
func (c *Config) most() int {
	if c.Lifetime > 0 {
		return c.Connections + max(halfOpen, c.Connections/8)
	}
	return c.Connections
}

// host is what the first target is called in requests.
func (c *Config) host() string {
	if strings.HasPrefix(c.Target, unixPrefix) {
		return "localhost"
	}
	return c.Target
}

func (c Config) checkTLS() error {
	_, err := c.clientTLS()
	return err
}

// unixPrefix begins a target that is a unix socket.
const unixPrefix = "unix:"

// maxTargets bounds a list of targets.
const maxTargets = 1024

func (c Config) checkTargets() error {
	if len(c.Also) >= maxTargets {
		return fmt.Errorf("load: %d targets; expected at most %d", len(c.Also)+1, maxTargets)
	}
	for _, target := range append([]string{c.Target}, c.Also...) {
		if err := c.checkTarget(target); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) checkTarget(text string) error {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		switch {
		case path == "" || len(path) > maxUnixPath:
			return fmt.Errorf("load: target %q; expected unix: and a path of 1 to %d bytes", text, maxUnixPath)
		case len(c.Sources) > 0:
			return fmt.Errorf("load: source addresses for the unix socket %q; expected none", path)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || port == "" || port == "0" {
		return fmt.Errorf("load: target %q; expected host:port, or unix: and a path", text)
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

// maxUnixPath is what fits into a socket address.
const maxUnixPath = 107

func errFamily(source, target netip.Addr) error {
	return fmt.Errorf("load: source %v for target %v; expected both to be IPv4 or both IPv6", source, target)
}

func (c Config) checkMessage() error {
	given := 0
	for _, is := range []bool{c.Message != nil, c.Template != "", c.Size != 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return fmt.Errorf("load: a message of %d bytes, a template of %d and a size of %d; expected one of the three", len(c.Message), len(c.Template), c.Size)
	}
	if n := len(c.Message); c.Message != nil && (n < 1 || n > MaxMessage) {
		return fmt.Errorf("load: a message of %d bytes; expected 1 to %d", n, MaxMessage)
	}
	if c.Size != 0 && (c.Size < 2 || c.Size > MaxMessage) {
		return fmt.Errorf("load: messages of %d bytes; expected 2 to %d", c.Size, MaxMessage)
	}
	for _, text := range []string{c.Template, c.First} {
		if text == "" {
			continue
		}
		t, err := message.Parse(text)
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		if low, high := t.MinLen(), t.MaxLen(); low < 1 || high > MaxMessage {
			return fmt.Errorf("load: a template that makes messages of %d to %d bytes; expected 1 to %d", low, high, MaxMessage)
		}
	}
	return nil
}

func (c Config) checkAnswers() error {
	if err := c.checkAnswer(); err != nil {
		return err
	}
	switch c.Match {
	case "":
		return nil
	case matchNone:
		if c.mode() == closedLoop {
			return errors.New("load: no answers are awaited in a closed loop, which waits for them; expected a rate or a flood")
		}
	case matchFrames:
		if c.WebSocket == nil {
			return errors.New("load: answers are frames without a WebSocket; expected one")
		}
	default:
		if _, err := match.Parse(c.Match); err != nil {
			return fmt.Errorf("load: %w", err)
		}
		if c.WebSocket != nil {
			return fmt.Errorf("load: answers on WebSockets are told apart by %q; expected \"\", frames or none", c.Match)
		}
	}
	if c.Answer != nil || c.HTTP {
		return fmt.Errorf("load: answers are told apart by %q and known byte for byte; expected one of the two", c.Match)
	}
	return nil
}

func (c Config) checkAnswer() error {
	switch n := len(c.Answer); {
	case c.HTTP && (c.Template != "" || c.First != ""):
		return errors.New("load: a template for an HTTP answer that is learned; expected one message, or a match of http")
	case c.HTTP && c.WebSocket != nil:
		return errors.New("load: HTTP and a WebSocket; expected one of the two")
	case c.Answer == nil:
		return nil
	case c.HTTP:
		return fmt.Errorf("load: an answer of %d bytes for HTTP; expected none, it is learned from the server", n)
	case n < 1 || n > MaxMessage:
		return fmt.Errorf("load: an answer of %d bytes; expected 1 to %d", n, MaxMessage)
	case c.Message == nil && c.Template == "":
		return fmt.Errorf("load: an answer of %d bytes, and no message; expected the message that it answers", n)
	}
	return nil
}

// checkPace says which ways of sending exclude each other.
func (c Config) checkPace() error {
	var ways []string
	for _, w := range []struct {
		name string
		is   bool
	}{
		{"a rate", c.Rate.PerSecond != 0}, {"a flood", c.Flood}, {"unprompted answers", c.Unprompted}, {"holding", c.Hold},
		{"a time to think", c.Think != 0},
	} {
		if w.is {
			ways = append(ways, w.name)
		}
	}
	switch {
	case len(ways) > 1:
		return fmt.Errorf("load: %s; expected one of them", strings.Join(ways, " and "))
	case c.Flood && c.Match != matchNone:
		return fmt.Errorf("load: a flood that awaits answers told apart by %q; expected none", c.Match)
	case c.Flood && (c.Template != "" || c.First != ""):
		return errors.New("load: a flood of messages from a template; expected one message or a size")
	case c.Messages > 0 && len(ways) > 0 && !c.Unprompted && c.Think == 0:
		return fmt.Errorf("load: %d messages a connection and %s; expected one of the two", c.Messages, ways[0])
	case c.Messages > 0 && c.Early:
		return fmt.Errorf("load: %d messages a connection and connections that come and go; expected a duration", c.Messages)
	case c.Early && c.HoldBefore+c.HoldAfter > 0:
		return errors.New("load: connections that come while there is traffic, and times without traffic; expected one of the two")
	case c.SendLimit > 0 && c.Rate.PerSecond > 0:
		return errors.New("load: a rate of messages and one of bytes sent; expected one of the two")
	}
	return nil
}

// checkHold says what the lines of connections that are held exclude.
func (c Config) checkHold() error {
	lines := []struct{ name, text string }{{"heartbeat", c.Heartbeat}, {"answer to a heartbeat", c.HeartbeatAnswer}, {"broadcast", c.Broadcast}}
	for _, l := range lines {
		n := len(l.text)
		if n > 0 && (n < 2 || n > MaxLine || strings.IndexByte(l.text, '\n') != n-1) {
			return fmt.Errorf("load: %s of %s; expected a line of 2 to %d bytes that ends in \"\\n\"", l.name, quote([]byte(l.text)), MaxLine)
		}
	}
	var other []string
	for _, w := range []struct {
		name string
		is   bool
	}{
		{"WebSockets", c.WebSocket != nil}, {"lifetimes", c.Lifetime > 0}, {"connections that come early", c.Early},
		{"limits of bytes", c.SendLimit > 0 || c.ReceiveLimit > 0},
	} {
		if w.is {
			other = append(other, w.name)
		}
	}
	switch {
	case !c.listens() && c.HeartbeatAnswer == "":
		return nil
	case !c.Hold:
		return errors.New("load: a verification, a heartbeat or a broadcast of connections that are not held; expected them with Hold")
	case len(other) > 0:
		return fmt.Errorf("load: a verification, a heartbeat or a broadcast with %s; expected neither", strings.Join(other, " and "))
	case c.Heartbeat == "" && c.HeartbeatAnswer != "":
		return fmt.Errorf("load: an answer %q to heartbeats, and no heartbeat; expected the line that it answers", c.HeartbeatAnswer)
	case c.Heartbeat != "" && c.Heartbeat == c.Broadcast:
		return fmt.Errorf("load: %q is the heartbeat and the broadcast; expected two lines", c.Heartbeat)
	}
	return nil
}

func (c Config) checkRate() error {
	r := c.Rate
	switch {
	case r == (Rate{}):
		return nil
	case !(r.PerSecond > 0 && r.PerSecond <= MaxRate):
		return fmt.Errorf("load: rate of %v messages a second; expected more than 0, at most %d", r.PerSecond, MaxRate)
	case !(r.To >= 0 && r.To <= MaxRate):
		return fmt.Errorf("load: rate that changes to %v messages a second; expected more than 0, at most %d", r.To, MaxRate)
	case !(r.Swing >= 0 && r.Swing <= 1):
		return fmt.Errorf("load: rate that swings by %v of itself; expected 0 to 1", r.Swing)
	case (r.Swing > 0) != (r.Period > 0) || r.Period < 0 || r.Period > maxTime:
		return fmt.Errorf("load: rate that swings by %v of itself in %v; expected a share and a time, or neither", r.Swing, r.Period)
	case r.Swing > 0 && r.To > 0:
		return errors.New("load: rate that changes and swings; expected one of the two")
	}
	return nil
}

func (c Config) checkWebSocket() error {
	if c.WebSocket == nil {
		return nil
	}
	if err := websocket.CheckHeader(c.WebSocket.Path, c.WebSocket.Header); err != nil {
		return fmt.Errorf("load: %w", err)
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
		{"lines of a verification in flight", c.Check, 0, MaxCheck},
		{"loops", c.Loops, 1, maxLoops},
		{"ramp from", c.Ramp.From, 0, c.Connections},
		{"send buffer", c.Socket.SendBuffer, 0, maxSocketBuffer},
		{"receive buffer", c.Socket.ReceiveBuffer, 0, maxSocketBuffer},
		{"bytes sent a second", c.SendLimit, 0, maxLimit},
		{"bytes received a second", c.ReceiveLimit, 0, maxLimit},
	} {
		if f.got < f.low || f.got > f.high {
			return fmt.Errorf("load: %s of %d; expected %d to %d", f.name, f.got, f.low, f.high)
		}
	}
	if c.Messages < 0 {
		return fmt.Errorf("load: %d messages a connection; expected 1 or more, or 0 for as many as there is time for", c.Messages)
	}
	if n := int64(c.Pipeline) * int64(c.messageSize()); n > maxFlyingBytes {
		return fmt.Errorf("load: a pipeline of %d messages of %d bytes; expected at most %d bytes in flight on a connection", c.Pipeline, c.messageSize(), maxFlyingBytes)
	}
	if n := int64(c.Pipeline) * int64(c.Connections); n > maxFlying {
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
	return sock.Shards(c.most(), c.Loops, most)
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
		{"ramp", c.Ramp.Over},
		{"lifetime", c.Lifetime},
		{"time to think", c.Think},
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

// messageSize is the size of the longest message in bytes.
func (c Config) messageSize() int {
	n := max(len(c.Message), c.Size)
	for _, text := range []string{c.Template, c.First} {
		if t, err := message.Parse(text); err == nil {
			n = max(n, t.MaxLen())
		}
	}
	return n
}
