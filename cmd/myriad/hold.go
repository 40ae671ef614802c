package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/load"
)

const holdExamples = `  myriad hold -n 1000000 127.0.0.1:9000
  myriad hold -n 1000000 --check --heartbeat ping --broadcast 'server ends at noon' -T 2m 127.0.0.1:9000
  myriad hold --ramp 0:200k:2m --src 10.0.0.10-10.0.0.20 --duration 10m 10.0.0.7:9000`

func newHold() *cobra.Command {
	var f loadFlags
	cmd := &cobra.Command{
		Use:   "hold [flags] HOST:PORT|unix:PATH...",
		Short: "Open connections to a TCP server and hold them, idle",
		Long: `Open connections to a TCP server and hold them, idle.

It says how long it took to open the connections, and what memory a connection
takes here and, where the server is a process of this machine, there. They are
held until Ctrl-C or for --duration; both are a good end. At SIGUSR1, on Linux, no
more are opened, and it goes on with those that there are.

Nothing is sent, but with --check, to a server that echoes lines, and with
--heartbeat. Where lines are looked at, with these two and --broadcast, every
other line that comes is a fault. It exits with 1 if nothing could be connected,
if connections were lost, if a line was wrong, is missing or came twice.`,
		Example: holdExamples,
		Args:    cobra.ArbitraryArgs, // looked at by complete
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.complete(cmd.InOrStdin(), args); err != nil {
				return err
			}
			f.warn(cmd)
			f.cfg.Duration = cmp.Or(f.cfg.Duration, maxHeld)
			return f.hold(cmd)
		},
	}
	f.cfg.Hold = true
	f.add(cmd, "Connections", "Lines", "Encryption", "Results")
	return cmd
}

// maxHeld is how long hold holds connections that nobody lets go: the most that
// load.Config allows.
const maxHeld = 30 * 24 * time.Hour

// hold holds the connections and says what they take.
func (f *loadFlags) hold(cmd *cobra.Command) error {
	f.spare()
	t, err := f.results.open(cmd)
	if err != nil {
		return err
	}
	held := &heldConns{began: time.Now()}
	t.observers = append(t.observers, held.observe)
	if t.text && t.live == nil {
		held.out = t.stdout // at once; otherwise behind the live view
	}
	f.cfg.Observe = t.observe
	var stop func()
	f.cfg.Enough, stop = enoughAtSignal()
	defer stop()
	result, err := load.Run(cmd.Context(), f.cfg)
	var heldErr error
	if t.text && result != nil {
		heldErr = held.write(t.stdout)
	}
	outErr := cmp.Or(heldErr, t.finish(result))
	if result == nil {
		return cmp.Or(err, outErr)
	}
	if err != nil && cmd.Context().Err() == nil {
		err = fmt.Errorf("the run ended early: %w", err)
	} else {
		err = nil // Ctrl-C is how it ends
	}
	return cmp.Or(outErr, err, result.Err())
}

// heldConns follows connections that are held.
type heldConns struct {
	out    io.Writer // where to say at once how many there are, nil for nowhere
	began  time.Time
	opened string // says how many there are and how long it took
	plan   load.Plan
	last   *load.Interval // the latest in which they were held
}

func (h *heldConns) observe(e load.Event) {
	switch {
	case e.Plan != nil:
		h.plan = *e.Plan
	case e.Phase == load.Connected:
		h.opened = fmt.Sprintf("held: %d connections after %v\n", e.Snapshot.Open, time.Since(h.began).Round(time.Millisecond))
		if h.out != nil {
			fmt.Fprint(h.out, h.opened)
		}
	case e.Phase == load.Progress && e.Interval != nil && e.Interval.Open > 0 && isHeld(e.Interval.Stage):
		h.last = e.Interval
	}
}

// isHeld says whether all connections are open in a stage.
func isHeld(stage string) bool { return stage == "hold" || stage == "window" }

// write writes what memory both sides had for a connection, and before that what
// has not been said yet.
func (h *heldConns) write(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if h.out == nil {
		fmt.Fprint(t, h.opened)
	}
	if h.last != nil {
		h.writeMemory(t, "generator", &h.last.Generator, h.plan.Generator)
		h.writeMemory(t, "server", h.last.Server, h.plan.Server)
	}
	return t.Flush()
}

// writeMemory says what a process has more than before the first connection.
func (h *heldConns) writeMemory(w io.Writer, side string, u, before *load.Usage) {
	if each := u.PerConnection(before, h.last.Open); each > 0 {
		fmt.Fprintf(w, "%s\t%d bytes of user memory a connection; resident %.1f MiB in all, %.1f MiB before\n", side, each, mebibytes(u), mebibytes(before))
	}
}

func mebibytes(u *load.Usage) float64 { return float64(u.Resident) / (1 << 20) }
