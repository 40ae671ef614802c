package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/proof"
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
