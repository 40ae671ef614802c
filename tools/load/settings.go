package load

import (
	"encoding/base64"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/myriad-go/myriad/tools/internal/message"
	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// Setting is a field of a Config, or some that belong together, as text: a flag of a
// command line, and a key of the Config as JSON.
type Setting struct {
	// Name is that of the flag, such as "connect-rate"; the key has underscores
	// instead of the dashes. Short is a letter, "" for none.
	Name, Short string
	// Group is the heading that the flag stands under in help: "Connections",
	// "Traffic", "Messages", "Answers", "Encryption", "Publish/subscribe", "Lines",
	// "Results" or "tcpkali";
	// "" is only for JSON.
	Group string
	// Help says what it does, and names its value in `backquotes`.
	Help string
	// Bare is what the flag without a value, and true in JSON, stands for; "" where
	// there has to be a value.
	Bare string
	// List says that it can be given more than once, and be an array in JSON.
	List bool

	set   func(text string) error
	texts func() []string // nil for the default
	reset func()          // of a list
	check func() error    // of its bounds, nil for none
}

// SettingError says what is wrong with a setting.
type SettingError struct {
	Name string // as in Setting
	Err  error  // such as: "x"; expected a whole number
}

func (e *SettingError) Error() string { return "load: " + spelled(e.Name) + " is " + e.Err.Error() }

func (e *SettingError) Unwrap() error { return e.Err }

// spelled is a setting as its flag, or as its key in JSON where it has no flag.
func spelled(name string) string {
	all := Settings(new(Config))
	if i := slices.IndexFunc(all, func(s Setting) bool { return s.Name == name }); i >= 0 && all[i].Group == "" {
		return underscored(name)
	}
	return "--" + name
}

// exclude says if more than one of some settings is given, which exclude each other.
func exclude(names []string, given func(name string) bool) error {
	first := ""
	for _, name := range names {
		switch {
		case !given(name):
		case first != "":
			return &SettingError{name, fmt.Errorf("given together with %s; expected one of the two", spelled(first))}
		default:
			first = name
		}
	}
	return nil
}

// Set sets what the texts say, by the names of Settings; for a List there can be
// several. Other fields stay as they are, and names that are none are passed over. An
// error is a *SettingError.
func (c *Config) Set(texts map[string][]string) error {
	for _, names := range alternatives {
		if err := exclude(names, func(name string) bool { return texts[name] != nil }); err != nil {
			return err
		}
	}
	for _, s := range Settings(c) {
		if given := texts[s.Name]; given != nil {
			if err := s.assign(given); err != nil {
				return &SettingError{s.Name, err}
			}
		}
	}
	return nil
}

// assign sets the fields to what the texts say: one text, but for a List.
func (s Setting) assign(texts []string) error {
	if len(texts) != 1 && !s.List {
		return fmt.Errorf("given %d times; expected once", len(texts))
	}
	if s.List {
		s.reset()
	}
	for _, text := range texts {
		if err := s.set(text); err != nil {
			return fmt.Errorf("%q; %w", text, err)
		}
	}
	return nil
}

// Settings are all settings of a Config, in the order of help. They read and write its
// fields.
func Settings(c *Config) []Setting {
	return slices.Concat(connectionSettings(c), trafficSettings(c), messageSettings(c), answerSettings(c),
		encryptionSettings(c), pubsubSettings(c), lineSettings(c), []Setting{
			period("Results", "interval", &c.ProgressEvery, "tell of the run every `TIME` (default 1s)"),
			one("", "target", &c.Target, anyText, same, ""),
			listOf("", "also", &c.Also, func(text string, _ int) ([]string, error) { return []string{text}, nil }, same, ""),
			toggle("", "hold", &c.Hold, ""),
			count("", "number-from", &c.NumberFrom, MaxNumber, ""),
			toggle("", "histograms", &c.Histograms, ""),
		})
}

func connectionSettings(c *Config) []Setting {
	const group = "Connections"
	return []Setting{
		count(group, "connections", &c.Connections, maxConnections, "open `N` connections (default 100)").short("c"),
		count(group, "connect-rate", &c.ConnectRate, maxRate, "start `N` connections a second (default as fast as they are taken)"),
		period(group, "connect-timeout", &c.ConnectTimeout, "give up those that are missing when none has succeeded or failed for this `TIME` (default 10s)"),
		one(group, "ramp", &c.Ramp, parseRamp, Ramp.String, "open them evenly over a `TIME`, or FROM:TO:TIME as 0:100k:60s (default: all from the start)"),
		listOf(group, "src", &c.Sources, moreSources, netip.Addr.String, "connect from this local `ADDRESS`, range A-B or network A/BITS (repeatable; default: chosen automatically)"),
		choice(group, "close", &c.Graceful, "fin", "rst", "end with `fin|rst`: in order, or by a reset, which leaves nothing behind (default rst)"),
		count(group, "sndbuf", &c.Socket.SendBuffer, maxSocketBuffer, "set SO_SNDBUF to `BYTES` (default: the kernel's choice)"),
		count(group, "rcvbuf", &c.Socket.ReceiveBuffer, maxSocketBuffer, "set SO_RCVBUF to `BYTES` (default: the kernel's choice)"),
		one(group, "model", &c.Model, anyText, same, "run on this I/O `MODEL` (default: the best that can run here)"),
		count(group, "loops", &c.Loops, maxLoops, "run `N` loops, if the model has them (default 1)").short("w"),
	}
}

func trafficSettings(c *Config) []Setting {
	const group = "Traffic"
	return []Setting{
		period(group, "duration", &c.Duration, "measure for this `TIME` (default 10s)").short("T"),
		toggle(group, "steady", &c.Steady, "measure on while the rate of what comes back varies by more than 25 %, up to 3 times the duration"),
		bounded(one(group, "messages", &c.Messages, quantity.Positive64, decimal, "exchange `N` messages on each connection, instead of a duration"), &c.Messages, 1, math.MaxInt64),
		rate(group, "rate", c, false, "open loop: send `N` messages a second in all, as 50k; 1k:100k goes from the one to the other; @10ms or @10ms,p99.9 searches the highest with which p99, or p99.9, stays below"),
		rate(group, "message-rate", c, true, "open loop: send `N` messages a second on each connection; otherwise as --rate").short("r"),
		choice(group, "arrivals", &c.Rate.Poisson, "poisson", "constant", "times between the messages of a rate, `constant|poisson`: equal, or drawn from an exponential distribution (default constant)"),
		toggle(group, "flood", &c.Flood, "send as fast as connections take it, without waiting for answers"),
		count(group, "pipeline", &c.Pipeline, MaxPipeline, "keep `N` messages in flight on each connection; with a rate, at most (default 1)"),
		duration(group, "think", &c.Think, "wait this `TIME` between an answer and the next message (default 0s)"),
		toggle(group, "early", &c.Early, "begin on each connection when it is established (default: on all when all are)"),
		toggle(group, "no-reconnect", &c.NoReconnect, "count a connection as lost that an HTTP server closes in order, as with Connection: close (default: open another one)"),
		period(group, "lifetime", &c.Lifetime, "close each connection after this `TIME` and open another one (default: never)"),
		choice(group, "nagle", &c.Socket.Delay, "on", "off", "Nagle's algorithm, `on|off` (default off)"),
		duration(group, "warmup", &c.Warmup, "run for this `TIME` before measuring (default 0s)"),
		duration(group, "hold-before", &c.HoldBefore, "leave the connections alone for this `TIME` before the traffic (default 0s)"),
		duration(group, "hold-after", &c.HoldAfter, "leave the connections alone for this `TIME` after the traffic (default 0s)"),
		period(group, "drain", &c.Drain, "give up the missing answers when none has come for this `TIME` (default 5s)"),
	}
}

func messageSettings(c *Config) []Setting {
	const group = "Messages"
	return []Setting{
		bytesOf(group, "message", &c.Message, c.setMessage, "send this `TEXT`, as it is, or a template if it has a \\{…}; for a server of lines it ends in a newline, as $'ping\\n' in most shells").short("m"),
		base64Of("message-base64", &c.Message),
		one("", "template", &c.Template, notEmpty, same, ""),
		file(group, "message-file", func(text string) error { c.Message, c.Template = []byte(text), ""; return nil }, "send what is in this `FILE`, as it is").short("f"),
		file(group, "template-file", c.setTemplate, "send what the template in this `FILE` makes"),
		one(group, "first-message", &c.First, parseFirst, same, "send this `TEXT`, or template, first on each connection").short("1"),
		file(group, "first-message-file", func(text string) (err error) { c.First, err = parseFirst(text); return err }, "send what the template in this `FILE` makes first on each connection"),
		count(group, "size", &c.Size, MaxMessage, "without a message, send lines of `BYTES`, each different (default 64)"),
		count(group, "ahead", &c.Ahead, MaxMessage-1, "send `BYTES` of the next message with each one, so that the server always holds a part (default 0)"),
		one(group, "seed", &c.Seed, quantity.Seed, func(n uint64) string { return strconv.FormatUint(n, 10) }, "make everything random from this `NUMBER` (default 0)"),
		{
			Group: group, Name: "http", Bare: "true", Help: "send HTTP/1.1 requests, the message or a GET of \"/\": --match http",
			set: func(text string) error {
				on, err := parseBool(text)
				if on {
					c.Match = matchHTTP
				}
				return err
			},
			texts: func() []string { return nil }, // it is Match's
		},
		{
			Group: group, Name: "ws", Bare: "/", Help: "upgrade each connection to a WebSocket at a `PATH`, given as --ws=/chat, and send each message as one of its own",
			set: func(path string) error {
				if !strings.HasPrefix(path, "/") {
					return quantity.Error("a path that begins with a slash, given as --ws=/chat")
				}
				c.webSocket().Path = path
				return nil
			},
			texts: func() []string {
				if c.WebSocket == nil {
					return nil
				}
				return []string{orSlash(c.WebSocket.Path)}
			},
		},
		part(group, "ws-binary", &c.WebSocket, func(ws *WebSocket) *bool { return &ws.Binary }, parseBool, onlyTrue, "send binary messages on a WebSocket (default: text)").bare("true"),
		{
			Group: group, Name: "header", Short: "H", List: true, Help: "add this `NAME: VALUE` to the request of a WebSocket (repeatable)",
			set: func(line string) error {
				name, value, found := strings.Cut(line, ":")
				if name = strings.TrimSpace(name); !found || name == "" {
					return quantity.Error("NAME: VALUE")
				}
				ws := c.webSocket()
				if ws.Header == nil {
					ws.Header = make(http.Header)
				}
				ws.Header.Add(name, strings.TrimSpace(value))
				return nil
			},
			texts: func() (lines []string) {
				if c.WebSocket == nil {
					return nil
				}
				for name, values := range c.WebSocket.Header {
					for _, value := range values {
						lines = append(lines, name+": "+value)
					}
				}
				slices.Sort(lines)
				return lines
			},
			reset: func() { c.webSocket().Header = nil },
		},
	}
}

func answerSettings(c *Config) []Setting {
	const group = "Answers"
	return []Setting{
		bytesOf(group, "answer", &c.Answer, func(text string) error { c.Answer = []byte(text); return nil }, "expect this `TEXT` in answer to each message (default: the message)"),
		base64Of("answer-base64", &c.Answer),
		one(group, "match", &c.Match, anyText, same, "delimit answers by a `RULE`: delimiter:TEXT, length:4be, bytes:N, marker:TEXT, frames, http or none (default: by their bytes)"),
		toggle(group, "unprompted", &c.Unprompted, "the answers come when the server likes, as heartbeats do, and are answered with the next message"),
		{
			Group: "tcpkali", Name: "latency-marker", Help: "an answer is what has this `TEXT` in it: --match marker:TEXT",
			set: func(text string) (err error) {
				if text, err = notEmpty(text); err == nil {
					c.Match = "marker:" + ruleText(text)
				}
				return err
			},
			texts: func() []string { return nil }, // it is Match's
		},
	}
}

func encryptionSettings(c *Config) []Setting {
	const group = "Encryption"
	return []Setting{
		{
			Group: group, Name: "tls", Bare: "true", Help: "encrypt with TLS; a connection is established when its handshake is over",
			set: func(text string) error {
				on, err := parseBool(text)
				switch {
				case !on:
					c.TLS = nil
				case c.TLS == nil:
					c.TLS = new(TLS)
				}
				return err
			},
			texts: func() []string {
				if c.TLS == nil {
					return nil
				}
				return []string{"true"}
			},
		},
		part(group, "tls-ca", &c.TLS, func(t *TLS) *string { return &t.CAFile }, anyText, same, "trust the certificates in this PEM `FILE` (default: those that the system trusts)"),
		part(group, "tls-insecure", &c.TLS, func(t *TLS) *bool { return &t.Insecure }, parseBool, onlyTrue, "take any certificate").bare("true"),
		part(group, "tls-server-name", &c.TLS, func(t *TLS) *string { return &t.ServerName }, anyText, same, "expect a certificate for this `NAME`, and ask for it (default: the host)"),
	}
}

func pubsubSettings(c *Config) []Setting {
	const group = "Publish/subscribe"
	number := func(name string, field func(*PubSub) *int, help string) Setting {
		return part(group, name, &c.PubSub, field, quantity.Positive, decimal, help)
	}
	return []Setting{
		part(group, "pubsub", &c.PubSub, func(p *PubSub) *string { return &p.Protocol }, anyText, same, "have the connections subscribe, by this `PROTOCOL`: redis, nats or ws (JSON as \"myriad hub\" has it, at /ws or the path of --ws); further ones publish"),
		number("topics", func(p *PubSub) *int { return &p.Topics }, "spread the subscribers over `N` topics (default 1)"),
		number("publishers", func(p *PubSub) *int { return &p.Publishers }, "publish on `N` connections, to all topics in turn; --pipeline is how many messages each has on their way that not all subscribers have yet (default 1)"),
		part("", "all-publishers", &c.PubSub, func(p *PubSub) *int { return &p.AllPublishers }, quantity.Positive, decimal, ""),
		part("", "publishers-from", &c.PubSub, func(p *PubSub) *int { return &p.PublishersFrom }, quantity.Positive, decimal, ""),
		part("", "since", &c.PubSub, func(p *PubSub) *time.Time { return &p.Since }, parseTime, formatTime, ""),
		number("slow", func(p *PubSub) *int { return &p.Slow }, "have `N` further subscribers that never read (default 0)"),
	}
}

func lineSettings(c *Config) []Setting {
	const group = "Lines"
	return []Setting{
		count(group, "check", &c.Check, MaxCheck, "verify all connections when they are established, and again at the end: each sends a line of its own, and the same must come back; at most `N` lines are in flight, given as --check=N (default 1000)").bare("1000"),
		one(group, "heartbeat", &c.Heartbeat, parseLine, same, "the `LINE` that the server sends as a heartbeat, answered at once; the newline at its end can be left out"),
		one(group, "heartbeat-answer", &c.HeartbeatAnswer, parseLine, same, "the `LINE` that answers it (default pong)"),
		one(group, "broadcast", &c.Broadcast, parseLine, same, "expect this `LINE` once on each connection"),
	}
}

func (s Setting) short(letter string) Setting {
	s.Short = letter
	return s
}

func (s Setting) bare(text string) Setting {
	s.Bare = text
	return s
}

func one[T comparable](group, name string, to *T, parse func(string) (T, error), format func(T) string, help string) Setting {
	return Setting{
		Group: group, Name: name, Help: help,
		set: func(text string) error {
			value, err := parse(text)
			if err == nil {
				*to = value
			}
			return err
		},
		texts: func() []string {
			if *to == *new(T) {
				return nil
			}
			return []string{format(*to)}
		},
	}
}

// part makes a setting of a field of TLS or of WebSocket, which are there from then on.
func part[P any, T comparable](group, name string, of **P, field func(*P) *T, parse func(string) (T, error), format func(T) string, help string) Setting {
	s := one(group, name, new(T), parse, format, help)
	s.set = func(text string) error {
		value, err := parse(text)
		switch {
		case err != nil || *of == nil && value == *new(T):
			return err
		case *of == nil:
			*of = new(P)
		}
		*field(*of) = value
		return nil
	}
	s.texts = func() []string {
		if *of == nil || *field(*of) == *new(T) {
			return nil
		}
		return []string{format(*field(*of))}
	}
	return s
}

// listOf makes a setting of a field that each text adds to, as parse says, given how many
// there are.
func listOf[T any](group, name string, to *[]T, parse func(text string, have int) ([]T, error), format func(T) string, help string) Setting {
	return Setting{
		Group: group, Name: name, Help: help, List: true,
		set: func(text string) error {
			more, err := parse(text, len(*to))
			*to = append(*to, more...)
			return err
		},
		texts: func() (texts []string) {
			for _, value := range *to {
				texts = append(texts, format(value))
			}
			return texts
		},
		reset: func() { *to = nil },
	}
}

func count(group, name string, to *int, most int, help string) Setting {
	return bounded(one(group, name, to, quantity.Positive, decimal, help), to, 1, most)
}

func duration(group, name string, to *time.Duration, help string) Setting {
	return bounded(one(group, name, to, quantity.Duration, time.Duration.String, help), to, 0, maxTime)
}

func period(group, name string, to *time.Duration, help string) Setting {
	return bounded(one(group, name, to, quantity.Period, time.Duration.String, help), to, 0, maxTime)
}

// bounded has a setting, unless it is 0, be from least to most.
func bounded[T int | int64 | time.Duration](s Setting, value *T, least, most T) Setting {
	s.check = func() error {
		if *value != 0 && (*value < least || *value > most) {
			return fmt.Errorf("%v; expected %v to %v", *value, least, most)
		}
		return nil
	}
	return s
}

func moreSources(text string, have int) ([]netip.Addr, error) {
	return ParseSources(text, MaxSources-have)
}

func toggle(group, name string, to *bool, help string) Setting {
	return one(group, name, to, parseBool, onlyTrue, help).bare("true")
}

// choice makes a setting of a field that two words stand for.
func choice(group, name string, to *bool, yes, no, help string) Setting {
	return one(group, name, to, func(word string) (bool, error) {
		if word != yes && word != no {
			return false, quantity.Error(min(yes, no) + " or " + max(yes, no))
		}
		return word == yes, nil
	}, func(bool) string { return yes }, help)
}

// rate makes a setting of the rate of an open loop, or of the goal of a search for one.
func rate(group, name string, c *Config, each bool, help string) Setting {
	return Setting{
		Group: group, Name: name, Help: help,
		set: func(text string) (err error) {
			c.Rate.Each = each
			c.Rate.PerSecond, c.Rate.To, c.Goal, err = parseRate(text)
			return err
		},
		texts: func() []string {
			switch {
			case c.Rate.Each != each:
				return nil
			case c.Goal.Under > 0:
				return []string{c.Goal.String()}
			case c.Rate.PerSecond != 0 && c.Rate.To != 0:
				return []string{decimalFloat(c.Rate.PerSecond) + ":" + decimalFloat(c.Rate.To)}
			case c.Rate.PerSecond != 0:
				return []string{decimalFloat(c.Rate.PerSecond)}
			}
			return nil
		},
	}
}

// bytesOf makes a setting of bytes that are written as text where they can be.
func bytesOf(group, name string, to *[]byte, set func(string) error, help string) Setting {
	return Setting{
		Group: group, Name: name, Help: help,
		set: func(text string) error {
			if _, err := notEmpty(text); err != nil {
				return err
			}
			return set(text)
		},
		texts: func() []string {
			if *to == nil || !asText(*to) {
				return nil
			}
			return []string{string(*to)}
		},
	}
}

// base64Of makes a setting, of JSON, of bytes that text can't be.
func base64Of(name string, to *[]byte) Setting {
	return Setting{
		Name: name,
		set: func(text string) (err error) {
			if *to, err = base64.StdEncoding.DecodeString(text); err != nil {
				return quantity.Error("bytes in base64")
			}
			return nil
		},
		texts: func() []string {
			if *to == nil || asText(*to) {
				return nil
			}
			return []string{base64.StdEncoding.EncodeToString(*to)}
		},
	}
}

// asText says whether bytes come out as they are where they are read as a message.
func asText(b []byte) bool { return utf8.Valid(b) && !isTemplate(string(b)) && len(b) > 0 }

// file makes a setting that is in a file, of at most MaxMessage bytes, so that the wrong
// file does no harm.
func file(group, name string, set func(text string) error, help string) Setting {
	return Setting{
		Group: group, Name: name, Help: help,
		set: func(path string) error {
			f, err := os.Open(path)
			if err != nil {
				return err
			}
			defer f.Close()
			text, err := io.ReadAll(io.LimitReader(f, MaxMessage+1))
			switch n := len(text); {
			case err != nil:
				return err
			case n == 0:
				return fmt.Errorf("the file has no bytes; expected 1 to %d", MaxMessage)
			case n > MaxMessage:
				return fmt.Errorf("the file has more; expected 1 to %d bytes", MaxMessage)
			}
			return set(string(text))
		},
		texts: func() []string { return nil }, // what is in it is another setting's
	}
}

// setMessage takes a text that is a template where it has a \{.
func (c *Config) setMessage(text string) error {
	if !isTemplate(text) {
		c.Message, c.Template = []byte(text), ""
		return nil
	}
	return c.setTemplate(text)
}

// setTemplate takes a template, which is one message where it has no expressions.
func (c *Config) setTemplate(text string) error {
	t, err := message.Parse(text)
	if err != nil {
		return err
	}
	c.Message, c.Template = nil, text
	if fixed, ok := t.Fixed(); ok {
		c.Message, c.Template = fixed, ""
	}
	return nil
}

// isTemplate says whether a text can have expressions.
func isTemplate(text string) bool { return strings.Contains(text, `\{`) }

// webSocket is how connections are upgraded, which they are from then on.
func (c *Config) webSocket() *WebSocket {
	if c.WebSocket == nil {
		c.WebSocket = new(WebSocket)
	}
	return c.WebSocket
}
