package main

import (
	"math"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad"
)

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
