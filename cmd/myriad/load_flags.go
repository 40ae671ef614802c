package main

import (
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/load"
)

// loadFlags are the flags of load, and those of hold, which are some of them.
type loadFlags struct {
	// cfg holds what is a field of load.Config as it is.
	cfg load.Config

	sources        []string
	rate, each     ratePlan
	arrivals       string
	sine           sine
	messages       []string
	firsts         []string
	unescape       bool
	answer, marker string
	files          messageFiles
	ws             string
	request        string // that a target asks for as a URL, "" for none
	binary         bool
	headers        []string
	nagle, closing string

	held    heldFlags
	tls     clientFlags
	results resultFlags
}

// add gives the flags to the command load.
func (f *loadFlags) add(cmd *cobra.Command) {
	var g flagGroups
	cmd.Flags().SetNormalizeFunc(canonical)
	g.add("Connections", "", func(flags *pflag.FlagSet) { f.addConnections(flags, "c") })
	g.add("Traffic", "", f.addTraffic)
	g.add("Messages", "", f.addMessages)
	g.add("Answers", "", f.addAnswers)
	g.add("Encryption", "", f.tls.add)
	g.add("Results", "", f.addResults)
	g.add("tcpkali", tcpkaliText, f.addTcpkali)
	g.giveTo(cmd)
}

// addConnections adds what load and hold have in common.
func (f *loadFlags) addConnections(flags *pflag.FlagSet, short string) {
	cfg := &f.cfg
	flag(flags, &cfg.Connections, parseMore, "connections", short, "open `N` connections (default 100)")
	flag(flags, &cfg.ConnectRate, parseMore, "connect-rate", "", "start `N` connections a second (default as fast as they are taken)")
	flag(flags, &cfg.ConnectTimeout, parsePeriod, "connect-timeout", "", "give up those that are missing when none has succeeded or failed for this `TIME` (default 10s)")
	flag(flags, &cfg.Ramp, parseRamp, "ramp", "", "open them evenly over a `TIME`, or FROM:TO:TIME as 0:100k:60s (default: all from the start)")
	flags.StringArrayVar(&f.sources, "src", nil, "connect from this local `ADDRESS`, range A-B or network A/BITS (repeatable; default: chosen by itself)")
	flag(flags, &f.closing, oneOf("fin", "rst"), "close", "", "end with `fin|rst`: in order, or by a reset, which leaves nothing behind (default rst)")
	flag(flags, &cfg.Socket.SendBuffer, parseMore, "sndbuf", "", "set SO_SNDBUF to `BYTES` (default: the kernel's choice)")
	flag(flags, &cfg.Socket.ReceiveBuffer, parseMore, "rcvbuf", "", "set SO_RCVBUF to `BYTES` (default: the kernel's choice)")
	flags.StringVar(&cfg.Model, "model", "", "run on this I/O `MODEL` (default: the best that can run here)")
	flag(flags, &cfg.Loops, parseMore, "loops", "w", "run `N` loops, if the model has them (default 1)")
}

func (f *loadFlags) addTraffic(flags *pflag.FlagSet) {
	cfg := &f.cfg
	f.addDuration(flags, "measure for this `TIME` (default 10s)")
	flag(flags, &cfg.Messages, parseLong, "messages", "", "exchange `N` messages on each connection, instead of a duration")
	flag(flags, &f.rate, parseRatePlan, "rate", "", "open loop: send `N` messages a second in all, as 50k; 1k:100k goes from the one to the other; @10ms or @10ms,p99.9 searches the highest with which p99, or p99.9, stays below")
	flag(flags, &f.each, parseRatePlan, "message-rate", "r", "open loop: send `N` messages a second on each connection; otherwise as --rate")
	flag(flags, &f.arrivals, oneOf("constant", "poisson"), "arrivals", "", "times between the messages of a rate, `constant|poisson`: equal, or drawn from an exponential distribution (default constant)")
	flag(flags, &f.sine, parseSine, "sine", "", "have the rate go up and down by `SHARE:PERIOD`, as 0.5:10s")
	flags.BoolVar(&cfg.Flood, "flood", false, "send as fast as connections take it, without waiting for answers")
	flag(flags, &cfg.Pipeline, parseMore, "pipeline", "", "keep `N` messages in flight on each connection; with a rate, at most (default 1)")
	flag(flags, &cfg.Think, parseTime, "think", "", "wait this `TIME` between an answer and the next message (default 0s)")
	flags.BoolVar(&cfg.Early, "early", false, "begin on each connection when it is established (default: on all when all are)")
	flag(flags, &cfg.Lifetime, parsePeriod, "lifetime", "", "close each connection after this `TIME` and open another one (default: never)")
	flag(flags, &cfg.SendLimit, parseBandwidth, "send-limit", "", "send at most `BYTES` a second on each connection, as 1M (default: no limit)")
	flag(flags, &cfg.ReceiveLimit, parseBandwidth, "receive-limit", "", "take at most `BYTES` a second on each connection (default: no limit)")
	flag(flags, &f.nagle, oneOf("on", "off"), "nagle", "", "Nagle's algorithm, `on|off` (default off)")
	flag(flags, &cfg.Warmup, parseTime, "warmup", "", "run for this `TIME` before measuring (default 0s)")
	flag(flags, &cfg.HoldBefore, parseTime, "hold-before", "", "leave the connections alone for this `TIME` before the traffic (default 0s)")
	flag(flags, &cfg.HoldAfter, parseTime, "hold-after", "", "leave the connections alone for this `TIME` after the traffic (default 0s)")
	flag(flags, &cfg.Drain, parsePeriod, "drain", "", "give up the missing answers when none has come for this `TIME` (default 5s)")
}

func (f *loadFlags) addDuration(flags *pflag.FlagSet, help string) {
	flag(flags, &f.cfg.Duration, parsePeriod, "duration", "T", help)
}

func (f *loadFlags) addMessages(flags *pflag.FlagSet) {
	cfg := &f.cfg
	flags.StringArrayVarP(&f.messages, "message", "m", nil, "send this `TEXT`, as it is, or a template if it has a \\{…}; for a server of lines it ends in a newline, as $'ping\\n' in most shells")
	flags.StringVarP(&f.files.message, "message-file", "f", "", "send what is in this `FILE`, as it is")
	flags.StringVar(&f.files.template, "template-file", "", "send what the template in this `FILE` makes")
	flags.StringArrayVarP(&f.firsts, "first-message", "1", nil, "send this `TEXT`, or template, first on each connection")
	flags.StringVar(&f.files.first, "first-message-file", "", "send what the template in this `FILE` makes first on each connection")
	flags.BoolVarP(&f.unescape, "unescape-message-args", "e", false, "read \\n, \\r, \\t, \\\\, \\xHH and such in texts of messages and answers")
	flag(flags, &cfg.Size, parseMore, "size", "", "without a message, send lines of `BYTES`, each different (default 64)")
	flag(flags, &cfg.Seed, parseSeed, "seed", "", "make everything random from this `NUMBER` (default 0)")
	flags.BoolVar(&cfg.HTTP, "http", false, "send HTTP/1.1 requests: the message, or a GET of \"/\"")
	flag(flags, &f.ws, parsePath, "ws", "", "upgrade each connection to a WebSocket at a `PATH`, given as --ws=/chat, and send each message as one of its own")
	flags.Lookup("ws").NoOptDefVal = "/"
	flags.BoolVar(&f.binary, "ws-binary", false, "send binary messages (default: text)")
	flags.StringArrayVarP(&f.headers, "header", "H", nil, "add this `NAME: VALUE` to the request of a WebSocket (repeatable)")
}

func (f *loadFlags) addAnswers(flags *pflag.FlagSet) {
	flags.StringVar(&f.answer, "answer", "", "expect this `TEXT` in answer to each message (default: the message)")
	flags.StringVar(&f.cfg.Match, "match", "", "tell answers apart by a `RULE`: delimiter:TEXT, length:4be, bytes:N, marker:TEXT, frames, http or none (default: by their bytes)")
	flags.BoolVar(&f.cfg.Unprompted, "unprompted", false, "the answers come when the server likes, as heartbeats do, and are answered with the next message")
}

func (f *loadFlags) addResults(flags *pflag.FlagSet) {
	f.results.add(flags)
	flag(flags, &f.cfg.ProgressEvery, parsePeriod, "interval", "", "tell of the run every `TIME` (default 1s)")
}

func (f *loadFlags) addTcpkali(flags *pflag.FlagSet) {
	flags.StringVar(&f.marker, "latency-marker", "", "an answer is what has this `TEXT` in it: --match marker:TEXT")
	flag(flags, &f.results.percents, parsePercents, "latency-percentiles", "", "print these percentiles of the latency too, a `LIST` as 95,99,99.5")
	addForeign(flags)
}

// maxHeld is how long hold holds connections that nobody lets go: the most that
// load.Config allows.
const maxHeld = 30 * 24 * time.Hour
