package load

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/myriad-go/myriad/internal/engine/models"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/match"
	"github.com/myriad-go/myriad/tools/internal/message"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// Validate returns an error if the configuration is wrong. It reads the file of CA certificates, but does not use the
// network. The error names a setting by its flag or, if the setting has no flag, by its JSON key.
func (c Config) Validate() error {
	if c.Ramp.Over > 0 && c.Ramp.To > 0 && c.Connections > 0 && c.Ramp.To != c.Connections {
		return fmt.Errorf("load: --ramp ends at %d and --connections is %d; expected the same number, or one of the two flags", c.Ramp.To, c.Connections)
	}
	if err := c.validateExclusionsAndRequirements(); err != nil {
		return err
	}
	if c.Rate.Goal.Under != 0 {
		if err := c.validateSearchSettings(); err != nil {
			return err
		}
		c = c.withFirstStepRateAndDuration()
	}
	c = c.withDefaultsAndImplied()
	for i := range settings {
		if err := settings[i].checkNumberInRangeUnlessZero(&c); err != nil {
			return &SettingError{settings[i].Name, err}
		}
	}
	for _, check := range []func() error{
		c.validateTargets, c.validateMessages, c.validateMatchRule, c.validateRampAndInFlight,
		c.validateRate, c.validateHeartbeatAndBroadcastLines, c.validatePubSub, c.validateTLSWebSocketAndModel,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (c *Config) validateExclusionsAndRequirements() error {
	given := c.nonEmptySettings()
	for i, s := range given {
		for _, other := range given[:i] {
			if s.excludes(other) {
				return errMutuallyExclusive(s.Name, other.Name)
			}
		}
	}
	for _, s := range given {
		if needed := s.missingRequiredSetting(given); needed != "" {
			return &SettingError{s.Name, fmt.Errorf("given without %s; expected both", flagOrElseJSONKey(needed))}
		}
	}
	return nil
}

func (c Config) withDefaultsAndImplied() Config {
	if c.PubSub != nil {
		own := *c.PubSub
		c.PubSub = &own
		if c.PubSub.Protocol == protocolWS && c.WebSocket == nil {
			c.WebSocket = &WebSocket{Path: pathWS}
		}
		if c.Rate.PerSecond > 0 {
			setIfZero(&c.Pipeline, pubsubPipeline)
		}
	}
	if c.WebSocket != nil {
		own := *c.WebSocket
		c.WebSocket = &own
	}
	if c.Match == matchHTTP && c.Message == "" {
		c.Message = formatGetRequest("/", c.hostHeaderOfFirstTarget())
	}
	c.applyDefaultsUnlessExcluded()
	if c.PubSub != nil {
		setIfZero(&c.PubSub.AllPublishers, c.PubSub.PublishersFrom+c.PubSub.Publishers)
	}
	if c.Ramp.Over > 0 {
		setIfZero(&c.Ramp.To, c.Connections)
		c.Connections = c.Ramp.To
	}
	c.Early = c.Early || c.Ramp.Over > 0 && !c.Hold || c.Lifetime > 0
	if c.Flood {
		setIfZero(&c.Match, matchNone)
		c.Pipeline = 1
	}
	if c.Model == "" || c.Model == models.Auto {
		best, _ := models.BestAvailable()
		c.Model = best.Name
	}
	return c
}

func formatGetRequest(path, host string) string {
	return message.LiteralTemplate("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n")
}

func setIfZero[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Special values of Config.Match.
const (
	matchNone   = "none"
	matchFrames = "frames"
	matchHTTP   = "http"
)

func (c *Config) awaitsNoAnswers() bool { return c.Match == matchNone || c.Hold }

func (c *Config) checksHeldConnLines() bool {
	return c.Check > 0 || c.Heartbeat != "" || c.Broadcast != ""
}

func (c *Config) trafficMode() mode {
	switch {
	case c.Hold:
		return holding
	case c.Flood:
		return flooding
	case c.Rate.PerSecond > 0 && c.Rate.Each:
		return openLoopPerConn
	case c.Rate.PerSecond > 0:
		return openLoop
	}
	return closedLoop
}

const modeNameHold = "hold"

func (c *Config) trafficModeName() string {
	if c.Unprompted {
		return "unprompted"
	}
	return [...]string{closedLoop: "closed loop", openLoop: "open loop", openLoopPerConn: "open loop", flooding: "flood", holding: modeNameHold}[c.trafficMode()]
}

func (c *Config) maxConnStates() int {
	switch {
	case c.PubSub != nil:
		return c.PubSub.Publishers
	case c.Lifetime > 0:
		return 2 * c.maxSimultaneousConns() // a shard can reuse only the states of its own closed connections
	}
	return c.maxSimultaneousConns()
}

func (c *Config) maxSimultaneousConns() int {
	if c.Lifetime > 0 {
		// The resources of closed connections are released later.
		return c.Connections + max(maxHalfOpen, c.Connections/8)
	}
	return c.totalConns()
}

// hostHeaderOfFirstTarget returns the Host header for requests: the first target, or localhost for a Unix socket.
func (c *Config) hostHeaderOfFirstTarget() string {
	if strings.HasPrefix(c.Target, unixPrefix) {
		return "localhost"
	}
	return c.Target
}

const unixPrefix = "unix:"

const maxTargets = 1024

func (c Config) validateTargets() error {
	if len(c.Also) >= maxTargets {
		return fmt.Errorf("load: %d targets; expected at most %d", len(c.Also)+1, maxTargets)
	}
	for _, target := range append([]string{c.Target}, c.Also...) {
		if err := c.validateTargetAndSources(target); err != nil {
			return err
		}
	}
	return nil
}

func (c Config) validateTargetAndSources(text string) error {
	if path, ok := strings.CutPrefix(text, unixPrefix); ok {
		switch {
		case path == "" || len(path) > maxUnixPath:
			return fmt.Errorf("load: target is %q; expected unix: and a path of 1 to %d bytes", text, maxUnixPath)
		case len(c.Sources) > 0:
			return fmt.Errorf("load: --src is given for the unix socket %q; expected no source addresses", path)
		}
		return nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || port == "" || port == "0" {
		return fmt.Errorf("load: target is %q; expected host:port, or unix: and a path", text)
	}
	target, err := netip.ParseAddr(host)
	for _, s := range c.Sources {
		if !s.IsValid() {
			return errors.New("load: Config.Sources contains the zero netip.Addr; expected IP addresses of this machine")
		}
		if err == nil && s.Unmap().Is4() != target.Unmap().Is4() {
			return errAddressFamily(s, target)
		}
	}
	return nil
}

const maxUnixPath = 107

func errAddressFamily(source, target netip.Addr) error {
	return fmt.Errorf("load: source is %v for target %v; expected both to be IPv4 or both IPv6", source, target)
}

func (c Config) validateMessages() error {
	switch {
	case c.Size != 0 && c.Message != "":
		return &SettingError{"size", fmt.Errorf("%d together with a message; expected either a size or a message", c.Size)}
	case c.Flood && c.hasVaryingMessage():
		return &SettingError{"flood", errors.New("given with a template; expected a message without expressions")}
	case c.Ahead != 0 && (c.hasVaryingMessage() || c.First != "" || c.WebSocket != nil || c.PubSub != nil || c.Hold):
		return &SettingError{"ahead", fmt.Errorf("%d with a template, a first message, WebSockets, publish/subscribe or idle connections; expected constant messages and none of these", c.Ahead)}
	case len(c.Answer) > MaxMessage:
		return &SettingError{"answer", fmt.Errorf("%d bytes long; expected 1 to %d", len(c.Answer), MaxMessage)}
	}
	for _, m := range []struct{ name, text string }{{"message", c.Message}, {"first-message", c.First}} {
		t, err := message.Parse(m.text)
		if err != nil {
			return &SettingError{m.name, fmt.Errorf("invalid: %w", err)}
		}
		if low, high := t.MinLen(), t.MaxLen(); m.text != "" && (low < 1 || high > MaxMessage) {
			return &SettingError{m.name, fmt.Errorf("%d to %d bytes long; expected 1 to %d", low, high, MaxMessage)}
		}
	}
	return nil
}

func (c Config) validateMatchRule() error {
	wrong := func(expected string) error {
		return &SettingError{"match", fmt.Errorf("%q; expected %s", c.Match, expected)}
	}
	switch {
	case c.Flood && c.Match != matchNone:
		return wrong("none with --flood, which awaits no answers")
	case c.Match == "":
	case c.Match == matchNone:
		if c.trafficMode() == closedLoop {
			return wrong("another rule, or --rate or --flood: a closed loop waits for answers")
		}
	case c.Match == matchFrames:
		if c.WebSocket == nil {
			return wrong("--ws with it")
		}
	case c.WebSocket != nil:
		return wrong("none or frames with --ws, or none of it")
	default:
		if _, err := match.Parse(c.Match); err != nil {
			return fmt.Errorf("load: %w", err)
		}
	}
	return nil
}

func (c Config) validateHeartbeatAndBroadcastLines() error {
	for _, l := range []struct{ name, text string }{{"heartbeat", c.Heartbeat}, {"heartbeat-answer", c.HeartbeatAnswer}, {"broadcast", c.Broadcast}} {
		n := len(l.text)
		if n > 0 && (n < 2 || n > MaxLine || strings.IndexByte(l.text, '\n') != n-1) {
			return &SettingError{l.name, fmt.Errorf("%s; expected a line of 2 to %d bytes that ends in \"\\n\"", quoteTruncated([]byte(l.text)), MaxLine)}
		}
	}
	if c.Heartbeat != "" && c.Heartbeat == c.Broadcast {
		return &SettingError{"broadcast", fmt.Errorf("%q, the same as --heartbeat; expected different lines", c.Broadcast)}
	}
	return nil
}

func (c Config) validateRate() error {
	r := c.Rate
	name := "rate"
	if r.Each {
		name = "message-rate"
	}
	switch {
	case r == (Rate{}):
		return nil
	case !(r.PerSecond > 0 && r.PerSecond <= MaxRate):
		return &SettingError{name, fmt.Errorf("%v messages a second; expected more than 0 and at most %d", r.PerSecond, MaxRate)}
	case !(r.To >= 0 && r.To <= MaxRate):
		return &SettingError{name, fmt.Errorf("%v messages a second at the end; expected more than 0 and at most %d", r.To, MaxRate)}
	}
	return nil
}

func (c Config) validateRampAndInFlight() error {
	if c.Early && c.HoldBefore+c.HoldAfter > 0 {
		return errors.New("load: --early, --ramp or --lifetime is given together with --hold-before or --hold-after; expected flags from only one of the two groups")
	}
	if c.Ramp.From < 0 || c.Ramp.From > c.Connections {
		return &SettingError{"ramp", fmt.Errorf("%d connections at the start; expected 0 to %d", c.Ramp.From, c.Connections)}
	}
	if c.Ramp.Over < 0 || c.Ramp.Over > maxDuration {
		return &SettingError{"ramp", fmt.Errorf("%v; expected 0s to %v", c.Ramp.Over, maxDuration)}
	}
	if c.Ahead >= c.maxMessageSize() && c.Ahead > 0 {
		return &SettingError{"ahead", fmt.Errorf("%d bytes of messages of %d bytes; expected less than a message", c.Ahead, c.maxMessageSize())}
	}
	if n := int64(c.Pipeline) * int64(c.maxMessageSize()); n > maxInFlightBytes {
		return fmt.Errorf("load: a pipeline of %d messages of %d bytes; expected at most %d bytes in flight on a connection", c.Pipeline, c.maxMessageSize(), maxInFlightBytes)
	}
	if n := int64(c.Pipeline) * int64(c.Connections); c.PubSub == nil && n > maxInFlight {
		return fmt.Errorf("load: %d connections with a pipeline of %d; expected at most %d messages in flight", c.Connections, c.Pipeline, maxInFlight)
	}
	return nil
}

func (c Config) validateTLSWebSocketAndModel() error {
	if _, err := c.clientTLSConfig(); err != nil {
		return err
	}
	if ws := c.WebSocket; ws != nil {
		if err := websocket.CheckPathAndHeader(ws.Path, ws.Header); err != nil {
			return fmt.Errorf("load: %w", err)
		}
	}
	if _, err := models.FindAvailable(c.Model); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	if _, _, err := c.planLoops(); err != nil {
		return fmt.Errorf("load: %w", err)
	}
	return nil
}

// planLoops returns the number of event loops. If all loops can share one descriptor table, connsPerLoopOrZero is 0.
// Otherwise, each loop has its own descriptor table, and connsPerLoopOrZero is the number of connections per table.
func (c Config) planLoops() (loops, connsPerLoopOrZero int, err error) {
	limit := maxLoops
	if m, err := models.FindAvailable(c.Model); err != nil || !m.HasLoops {
		limit = 0
	}
	return sock.PlanLoopsAndDescriptorTables(c.maxSimultaneousConns(), c.Loops, limit)
}

func (c Config) maxMessageSize() int {
	n := c.Size
	for _, text := range []string{c.Message, c.First} {
		if t, err := message.Parse(text); err == nil {
			n = max(n, t.MaxLen())
		}
	}
	return n
}

func (c *Config) constantMessage() (_ []byte, isConstant bool) {
	t, err := message.Parse(c.Message)
	if err != nil || c.Message == "" {
		return nil, false
	}
	return t.MessageIfConstant()
}

func (c *Config) hasVaryingMessage() bool {
	_, fixed := c.constantMessage()
	return c.Message != "" && !fixed
}
