package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/proof"
	"github.com/spf13/cobra"
)

// apps are the example applications that serve can run.
var apps = []struct {
	name, does string
	handler    func(f appFlags) myriad.Handler
}{
	{"echo", "sends back every byte", func(appFlags) myriad.Handler { return echo{} }},
	{"lines", "sends back every line", func(appFlags) myriad.Handler { return lines(line) }},
	{"sha256", "answers every line with its SHA-256 in hexadecimal", func(appFlags) myriad.Handler { return lines(digest) }},
	{"sha", "answers every line with as much of that as it is long", func(appFlags) myriad.Handler { return lines(shortDigest) }},
	{"sink", "reads and throws away", func(appFlags) myriad.Handler { return myriad.Base{} }},
	{"http", "answers every HTTP/1.1 GET with a short text", func(appFlags) myriad.Handler { return &httpHello{} }},
	{"wait", "waits before it sends back a line (--wait): holds its loop", func(f appFlags) myriad.Handler { return lines(f.waitLine) }},
	{"pow", "answers every line with a proof of work (--bits): holds its loop", func(f appFlags) myriad.Handler { return lines(f.prove) }},
	{"work", "takes time and memory (--work-wait, --work-cpu, --work-bytes), then sends back a line, or busy: holds its loop", func(f appFlags) myriad.Handler { return myriad.Lines(newWork(f.work)) }},
	{"push", "sends a line that begins with ! to all connections, others back, and swallows pong", func(f appFlags) myriad.Handler { return lines(push{f.server}.message) }},
	{"stall", "sends back every line at a set capacity (--stall-capacity), and stalls now and then (--stall)", func(f appFlags) myriad.Handler { return myriad.Lines(newStaller(f.stall)) }},
}

func appNames() (names []string) {
	for _, a := range apps {
		names = append(names, a.name)
	}
	return names
}

func describeApps() string {
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
	work  workFlags
	stall *stallFlags // shared with the handler, because it begins later

	server *myriad.Server // that serves it
}

// add adds the flags to a command.
func (f *appFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "app", "echo", "application: "+strings.Join(appNames(), ", "))
	flags.DurationVar(&f.wait, "wait", 10*time.Millisecond, "how long the application wait waits for each line")
	flags.IntVar(&f.bits, "bits", 16, "how many leading zero bits the application pow finds for each line; each more doubles the work")
	f.work.add(cmd)
	f.stall = &stallFlags{}
	f.stall.add(cmd)
}

// The bounds of an application's flags.
const (
	maxWait = time.Minute
	maxBits = proof.MaxZeros
)

// handler checks the flags and makes the application's handler.
func (f *appFlags) handler(cmd *cobra.Command) (myriad.Handler, error) {
	for flag, app := range map[string]string{"wait": "wait", "bits": "pow", "work-wait": "work", "work-cpu": "work", "work-bytes": "work", "stall": "stall", "stall-every": "stall", "stall-capacity": "stall"} {
		if cmd.Flags().Changed(flag) && f.name != app {
			return nil, usagef("--%s is given for the application %q; expected it with --app %s only", flag, f.name, app)
		}
	}
	if f.wait < 0 || f.wait > maxWait {
		return nil, usagef("--wait is %v; expected 0s to %v", f.wait, maxWait)
	}
	if f.bits < 0 || f.bits > maxBits {
		return nil, usagef("--bits is %d; expected 0 to %d", f.bits, maxBits)
	}
	if err := f.work.check(); err != nil {
		return nil, err
	}
	if err := f.stall.check(); err != nil {
		return nil, err
	}
	for _, a := range apps {
		if a.name == f.name {
			return a.handler(*f), nil
		}
	}
	return nil, usagef("unknown application %q; expected one of %s", f.name, strings.Join(appNames(), ", "))
}

// sheds says whether the application has an answer for what no worker has time for.
func (f *appFlags) sheds() bool { return f.name == "work" }

// lines is a handler that gives answer every line.
func lines(answer myriad.MessageFunc) myriad.Handler { return myriad.Lines(answer) }

// A write fails only when the connection is closing, and then there is nothing
// left to do; so these handlers don't look at what it returns.

type echo struct{ myriad.Base }

func (echo) Received(c *myriad.Conn, in []byte) int {
	c.Write(in)
	return len(in)
}

func line(c *myriad.Conn, line []byte) {
	c.Write(line)
	c.WriteString("\n")
}

func digest(c *myriad.Conn, line []byte) { writeDigest(c, line, 2*sha256.Size) }

func shortDigest(c *myriad.Conn, line []byte) { writeDigest(c, line, min(len(line), 2*sha256.Size)) }

// writeDigest writes that many digits of a line's SHA-256.
func writeDigest(c *myriad.Conn, line []byte, digits int) {
	sum := sha256.Sum256(line)
	var text [2*sha256.Size + 1]byte
	hex.Encode(text[:], sum[:])
	text[digits] = '\n'
	c.Write(text[:digits+1])
}

// These applications hold their loop, on purpose: they stand for a handler that
// waits for something else, such as a database, and for one that computes.

// waitLine waits, then sends the line back.
func (f appFlags) waitLine(c *myriad.Conn, text []byte) {
	time.Sleep(f.wait)
	line(c, text)
}

// prove answers a line with itself and its proof of work.
func (f appFlags) prove(c *myriad.Conn, line []byte) {
	c.Write(proof.Append(nil, line, f.bits))
}

// heartbeatAnswer is the line by which a client answers a heartbeat. It is no message
// of the application's.
const heartbeatAnswer = "pong"

// push is an application that sends a line to all: one that begins with "!" goes
// without it to every connection of the server, the sender's too. Other lines are sent
// back, but for answers to heartbeats.
type push struct{ server *myriad.Server }

// message takes a line. What can't be sent to all is answered with the reason.
func (p push) message(c *myriad.Conn, text []byte) {
	news, toAll := bytes.CutPrefix(text, []byte("!"))
	switch {
	case toAll:
		if err := p.server.Broadcast(append(bytes.Clone(news), '\n')); err != nil {
			fmt.Fprintf(c, "error: %v\n", err)
		}
	case string(text) == heartbeatAnswer:
	default:
		line(c, text)
	}
}

// workFlags say what the application work does for each line.
type workFlags struct {
	wait, cpu time.Duration
	bytes     int
}

// add adds the flags to a command.
func (f *workFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.DurationVar(&f.wait, "work-wait", 20*time.Millisecond, "how long the application work waits for each line")
	flags.DurationVar(&f.cpu, "work-cpu", 0, "how long it computes for each line, on a CPU that it has to itself")
	flags.IntVar(&f.bytes, "work-bytes", 0, "how many bytes of memory it takes for each line meanwhile")
}

// The bounds of these flags, with maxWait for the times.
const maxWorkBytes = 1 << 30

// check checks the flags.
func (f *workFlags) check() error {
	for _, d := range []struct {
		flag string
		is   time.Duration
	}{{"work-wait", f.wait}, {"work-cpu", f.cpu}} {
		if d.is < 0 || d.is > maxWait {
			return usagef("--%s is %v; expected 0s to %v", d.flag, d.is, maxWait)
		}
	}
	if f.bytes < 0 || f.bytes > maxWorkBytes {
		return usagef("--work-bytes is %d; expected 0 to %d", f.bytes, maxWorkBytes)
	}
	return nil
}

// work is an application that does what a request takes: it takes memory, waits and
// computes for each line, and then sends it back. For a line that no worker has time
// for it sends "busy".
type work struct {
	workFlags
	rounds int // of computing, for each line
}

func newWork(f workFlags) *work { return &work{f, int(f.cpu.Seconds() * pace(f.cpu))} }

func (*work) Opened(*myriad.Conn) {}

func (w *work) Message(c *myriad.Conn, text []byte) {
	memory := make([]byte, w.bytes)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = byte(i) // or the system gives none
	}
	if w.wait > 0 {
		time.Sleep(w.wait)
	}
	spun := compute(w.rounds)
	if len(memory) > 0 {
		memory[0] = byte(spun)
	}
	runtime.KeepAlive(memory)
	line(c, text)
}

func (*work) Closed(*myriad.Conn, error) {}

func (*work) Shed(c *myriad.Conn, _ []byte, _ error) { c.WriteString("busy\n") }

// compute computes for so many rounds, each of which needs the last. It is not
// inlined, because the compiler would drop what nobody looks at.
//
//go:noinline
func compute(rounds int) uint64 {
	x := uint64(rounds) | 1
	for range rounds {
		x ^= x << 13 // Marsaglia's xorshift64
		x ^= x >> 7
		x ^= x << 17
	}
	return x
}

// pace is how many rounds a CPU computes in a second: the best of some tries, because
// in the others the CPU had something else to do. It is not measured for no time.
func pace(d time.Duration) float64 {
	if d == 0 {
		return 0
	}
	const rounds, tries = 2_000_000, 7
	best := time.Duration(math.MaxInt64)
	for range tries {
		start := time.Now()
		sink := compute(rounds)
		best = min(best, time.Since(start))
		runtime.KeepAlive(sink)
	}
	return rounds / max(best, 1).Seconds()
}
