package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/proof"
)

// apps are the example applications that serve can run.
var apps = []struct {
	name, does string
	handler    func(f *appFlags, srv *tcp.Server) tcp.Handler
}{
	{"echo", "sends back every byte", func(*appFlags, *tcp.Server) tcp.Handler { return echo{} }},
	{"lines", "sends back every line", func(*appFlags, *tcp.Server) tcp.Handler { return newLineHandler(echoLine) }},
	{"sha", "answers every line with as many digits of its SHA-256 as it is long", func(*appFlags, *tcp.Server) tcp.Handler { return newLineHandler(writeLineDigest) }},
	{"sink", "reads and throws away", func(*appFlags, *tcp.Server) tcp.Handler { return tcp.Base{} }},
	{"http", "answers every HTTP/1.1 request with a short text", func(*appFlags, *tcp.Server) tcp.Handler { return newHelloHandler() }},
	{"wait", "waits before it sends back a line (--wait): holds its loop", func(f *appFlags, _ *tcp.Server) tcp.Handler { return f.newSlowLineHandler(f.echoLineAfterWait) }},
	{"pow", "answers every line with a proof of work (--bits): holds its loop", func(f *appFlags, _ *tcp.Server) tcp.Handler { return f.newSlowLineHandler(f.writeProofOfWork) }},
	{"push", "sends a line that begins with ! to all connections, others back, and swallows pong", func(_ *appFlags, srv *tcp.Server) tcp.Handler { return newLineHandler(broadcastEcho{srv}.handleLine) }},
	{"log", "logs a line to standard error (--log-format, --log-every), and sends it back", func(f *appFlags, _ *tcp.Server) tcp.Handler { return newLineHandler(f.newLoggingEcho()) }},
	{"ws", "sends a message of a WebSocket that begins with ! to all of this process, and to streams of events (/events), others back", func(*appFlags, *tcp.Server) tcp.Handler { return newWebPushHandler() }},
	{"stall", "sends back every line at a set capacity (--stall-capacity), and stalls now and then (--stall)", func(f *appFlags, _ *tcp.Server) tcp.Handler { return tcp.Lines(newStallHandler(f.stall)) }},
}

func appNames() (names []string) {
	for _, a := range apps {
		names = append(names, a.name)
	}
	return names
}

func formatAppList() string {
	var b strings.Builder
	for _, a := range apps {
		fmt.Fprintf(&b, "  %-8s %s\n", a.name, a.does)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// appFlags say which application to run, and how.
type appFlags struct {
	name  string
	wait  time.Duration
	bits  int
	shed  bool
	stall stallFlags

	logFormat string
	logEvery  int64
	stderr    io.Writer
}

// appsByFlag has the applications that a flag is for.
var appsByFlag = map[string][]string{
	"wait": {"wait"}, "bits": {"pow"}, "shed": {"wait", "pow"},
	"stall": {"stall"}, "stall-every": {"stall"}, "stall-capacity": {"stall"},
	"log-format": {"log"}, "log-every": {"log"},
}

// addFlags adds the flags to a command.
func (f *appFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "app", "echo", "application: "+strings.Join(appNames(), ", "))
	flags.DurationVar(&f.wait, "wait", 10*time.Millisecond, "how long the application wait waits for each line")
	flags.IntVar(&f.bits, "bits", 16, "how many leading zero bits the application pow finds for each line; each more doubles the work")
	flags.BoolVar(&f.shed, "shed", false, "have wait and pow answer busy to a line that no worker has time for")
	flags.StringVar(&f.logFormat, "log-format", "text", "how the application log writes its records, with log/slog: text or json")
	flags.Int64Var(&f.logEvery, "log-every", 1, "the application log writes a record of every `N`th line, of all connections together")
	f.stall.addFlags(flags)
}

// The bounds of an application's flags.
const (
	maxWait = time.Minute
	maxBits = proof.MaxZeros
)

// newHandler checks the flags and makes the application's handler for a server.
func (f *appFlags) newHandler(cmd *cobra.Command, srv *tcp.Server) (tcp.Handler, error) {
	for flag, names := range appsByFlag {
		if cmd.Flags().Changed(flag) && !slices.Contains(names, f.name) {
			return nil, usagef("--%s is given for the application %q; expected it with --app %s only", flag, f.name, strings.Join(names, " or "))
		}
	}
	if f.wait < 0 || f.wait > maxWait {
		return nil, usagef("--wait is %v; expected 0s to %v", f.wait, maxWait)
	}
	if f.bits < 0 || f.bits > maxBits {
		return nil, usagef("--bits is %d; expected 0 to %d", f.bits, maxBits)
	}
	if f.logFormat != "text" && f.logFormat != "json" {
		return nil, usagef("--log-format is %q; expected text or json", f.logFormat)
	}
	if f.logEvery < 1 {
		return nil, usagef("--log-every is %d; expected 1 or more", f.logEvery)
	}
	f.stderr = cmd.ErrOrStderr()
	if f.name == "stall" {
		if err := f.stall.validateAndSetEpoch(cmd, srv); err != nil {
			return nil, err
		}
	}
	for _, a := range apps {
		if a.name == f.name {
			return a.handler(f, srv), nil
		}
	}
	return nil, usagef("unknown application %q; expected one of %s", f.name, strings.Join(appNames(), ", "))
}

// newLineHandler is a handler that gives answer every line.
func newLineHandler(onLine tcp.MessageFunc) tcp.Handler { return tcp.Lines(onLine) }

// newSlowLineHandler is such a handler for an application that holds its loop, on purpose: it stands for
// one that waits for something else, such as a database, or that computes. With --shed it
// can say that it is busy.
func (f *appFlags) newSlowLineHandler(onLine tcp.MessageFunc) tcp.Handler {
	if f.shed {
		return tcp.Lines(busyReplier{onLine})
	}
	return newLineHandler(onLine)
}

// busyReplier answers a line that no worker has time for.
type busyReplier struct{ tcp.MessageFunc }

func (busyReplier) Shed(c *tcp.Conn, _ []byte, _ error) { c.WriteString("busy\n") }

// A write fails only when the connection is closing, and then there is nothing
// left to do; so these handlers don't look at what it returns.

type echo struct{ tcp.Base }

func (echo) Received(c *tcp.Conn, in []byte) int {
	c.Write(in)
	return len(in)
}

func echoLine(c *tcp.Conn, line []byte) {
	c.Write(line)
	c.WriteString("\n")
}

// newLoggingEcho logs lines, as many servers do, and sends them back.
func (f *appFlags) newLoggingEcho() tcp.MessageFunc {
	var records slog.Handler = slog.NewTextHandler(f.stderr, nil)
	if f.logFormat == "json" {
		records = slog.NewJSONHandler(f.stderr, nil)
	}
	log, every, seen := slog.New(records), f.logEvery, new(atomic.Int64)
	return func(c *tcp.Conn, text []byte) {
		if seen.Add(1)%every == 0 {
			log.Info("line", "from", c.RemoteAddr().String(), "bytes", len(text))
		}
		echoLine(c, text)
	}
}

// writeLineDigest writes as many digits of a line's SHA-256 as the line is long.
func writeLineDigest(c *tcp.Conn, line []byte) {
	sum := sha256.Sum256(line)
	var text [2*sha256.Size + 1]byte
	hex.Encode(text[:], sum[:])
	digits := min(len(line), 2*sha256.Size)
	text[digits] = '\n'
	c.WriteString(string(text[:digits+1])) // Write would have text on the heap
}

// echoLineAfterWait waits, then sends the line back.
func (f *appFlags) echoLineAfterWait(c *tcp.Conn, text []byte) {
	time.Sleep(f.wait)
	echoLine(c, text)
}

// writeProofOfWork answers a line with itself and its proof of work.
func (f *appFlags) writeProofOfWork(c *tcp.Conn, line []byte) {
	c.Write(proof.AppendProofLine(nil, line, f.bits))
}

// heartbeatReply is the line by which a client answers a heartbeat. It is no message
// of the application's.
const heartbeatReply = "pong"

// broadcastEcho is an application that sends a line to all: one that begins with "!" goes
// without it to every connection of the server, the sender's too. Other lines are sent
// back, but for answers to heartbeats.
type broadcastEcho struct{ server *tcp.Server }

// handleLine takes a line. What can't be sent to all is answered with the reason.
func (p broadcastEcho) handleLine(c *tcp.Conn, text []byte) {
	news, toAll := bytes.CutPrefix(text, []byte("!"))
	switch {
	case toAll:
		if _, err := p.server.Broadcast(tcp.Broadcast{All: true, Message: append(bytes.Clone(news), '\n')}); err != nil {
			fmt.Fprintf(c, "error: %v\n", err)
		}
	case string(text) == heartbeatReply:
	default:
		echoLine(c, text)
	}
}
