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

var apps = []struct {
	name, does string
	handler    func(f *appFlags, srv *tcp.Server) tcp.Handler
}{
	{"echo", "echoes every byte", func(*appFlags, *tcp.Server) tcp.Handler { return echo{} }},
	{"lines", "echoes every line", func(*appFlags, *tcp.Server) tcp.Handler { return newLineHandler(echoLine) }},
	{"sha", "answers every line with its SHA-256 in hexadecimal, cut to the line's length", func(*appFlags, *tcp.Server) tcp.Handler { return newLineHandler(writeDigestCutToLineLength) }},
	{"sink", "discards all input", func(*appFlags, *tcp.Server) tcp.Handler { return tcp.Base{} }},
	{"http", "answers every HTTP/1.1 request with a short text", func(*appFlags, *tcp.Server) tcp.Handler { return newHelloHandler() }},
	{"web", "answers the HTTP/1.1 requests of the scenario web: /, /pipeline, /baseline11, /json/N, /64k, /upload, /static/ (--files), /wait, /compute; --quick runs the short ones on the event loops", func(f *appFlags, _ *tcp.Server) tcp.Handler {
		return f.newWebHandler()
	}},
	{"wait", "echoes lines after --wait; blocks its loop", func(f *appFlags, _ *tcp.Server) tcp.Handler {
		return f.newOptionallySheddingHandler(f.echoLineAfterWait)
	}},
	{"pow", "answers every line with a proof of work (--bits); blocks its loop", func(f *appFlags, _ *tcp.Server) tcp.Handler {
		return f.newOptionallySheddingHandler(f.writeProofOfWork)
	}},
	{"push", "broadcasts lines that begin with !, ignores pong and echoes other lines", func(_ *appFlags, srv *tcp.Server) tcp.Handler {
		return newLineHandler(broadcastEcho{srv}.broadcastOrEchoLine)
	}},
	{"log", "echoes lines and logs them to standard error (--log-format, --log-every)", func(f *appFlags, _ *tcp.Server) tcp.Handler { return newLineHandler(f.newEchoLoggingEveryNth()) }},
	{"ws", "broadcasts WebSocket messages that begin with ! to all sockets and event streams (/events) of this process, and echoes others", func(*appFlags, *tcp.Server) tcp.Handler { return newWebBroadcastEchoHandler() }},
	{"stall", "echoes lines at a fixed capacity (--stall-capacity) with periodic stalls (--stall)", func(f *appFlags, _ *tcp.Server) tcp.Handler { return tcp.Lines(newFixedCapacityHandler(f.stall)) }},
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

type appFlags struct {
	name  string
	wait  time.Duration
	bits  int
	shed  bool
	stall stallFlags
	quick bool
	files string

	logFormat string
	logEvery  int64
	stderr    io.Writer
}

// appsByFlag maps each flag to the applications that use the flag.
var appsByFlag = map[string][]string{
	"wait": {"wait"}, "bits": {"pow"}, "shed": {"wait", "pow"},
	"stall": {"stall"}, "stall-every": {"stall"}, "stall-capacity": {"stall"},
	"quick": {"web"}, "files": {"web"},
	"log-format": {"log"}, "log-every": {"log"},
}

func (f *appFlags) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "app", "echo", "application: "+strings.Join(appNames(), ", "))
	flags.DurationVar(&f.wait, "wait", 10*time.Millisecond, "delay of the application wait for each line")
	flags.IntVar(&f.bits, "bits", 16, "leading zero bits that the application pow finds for each line; each bit doubles the work")
	flags.BoolVar(&f.shed, "shed", false, "let the applications wait and pow answer \"busy\" to lines that are shed under overload")
	flags.StringVar(&f.logFormat, "log-format", "text", "format of the records of the application log: text or json")
	flags.Int64Var(&f.logEvery, "log-every", 1, "log every `N`th line of the application log, counted over all connections")
	flags.BoolVar(&f.quick, "quick", false, "run the short handlers of web on the event loops (default: all on a pool)")
	flags.StringVar(&f.files, "files", ".", "serve the files in this `DIR` at /static/ of web")
	f.stall.addFlags(flags)
}

const (
	maxWait = time.Minute
	maxBits = proof.MaxZeros
)

func (f *appFlags) validateAndNewHandler(cmd *cobra.Command, srv *tcp.Server) (tcp.Handler, error) {
	for flag, names := range appsByFlag {
		if cmd.Flags().Changed(flag) && !slices.Contains(names, f.name) {
			return nil, usagef("--%s is given with --app %s; expected --app %s", flag, f.name, strings.Join(names, " or "))
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
		if err := f.stall.validateAndSetEpochToNow(cmd, srv); err != nil {
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

func newLineHandler(onLine tcp.MessageFunc) tcp.Handler { return tcp.Lines(onLine) }

// newOptionallySheddingHandler returns a handler that calls onLine for each line. If --shed is given, the handler
// answers "busy" to lines that are shed under overload.
func (f *appFlags) newOptionallySheddingHandler(onLine tcp.MessageFunc) tcp.Handler {
	if f.shed {
		return tcp.Lines(busyReplier{onLine})
	}
	return newLineHandler(onLine)
}

// busyReplier is a line handler that calls MessageFunc for each line. If a line is shed under overload, it answers
// "busy" without calling MessageFunc.
type busyReplier struct{ tcp.MessageFunc }

func (busyReplier) Shed(c *tcp.Conn, _ []byte, _ error) { c.WriteString("busy\n") }

// Write errors are ignored, because a write fails only if the connection is closing.

type echo struct{ tcp.Base }

func (echo) Received(c *tcp.Conn, in []byte) int {
	c.Write(in)
	return len(in)
}

func echoLine(c *tcp.Conn, line []byte) {
	c.Write(line)
	c.WriteString("\n")
}

func (f *appFlags) newEchoLoggingEveryNth() tcp.MessageFunc {
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

// writeDigestCutToLineLength writes the SHA-256 of a line in hexadecimal, cut to the length of the line.
func writeDigestCutToLineLength(c *tcp.Conn, line []byte) {
	sum := sha256.Sum256(line)
	var text [2*sha256.Size + 1]byte
	hex.Encode(text[:], sum[:])
	digits := min(len(line), 2*sha256.Size)
	text[digits] = '\n'
	c.WriteString(string(text[:digits+1])) // Write would make text escape to the heap
}

func (f *appFlags) echoLineAfterWait(c *tcp.Conn, text []byte) {
	time.Sleep(f.wait)
	echoLine(c, text)
}

func (f *appFlags) writeProofOfWork(c *tcp.Conn, line []byte) {
	c.Write(proof.AppendLineWithProof(nil, line, f.bits))
}

const heartbeatReply = "pong"

// broadcastEcho broadcasts lines that begin with "!", and echoes other lines except replies to heartbeats.
type broadcastEcho struct{ server *tcp.Server }

func (p broadcastEcho) broadcastOrEchoLine(c *tcp.Conn, text []byte) {
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
