package main

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"

	"github.com/myriad-go/myriad/tune"
	"github.com/myriad-go/myriad/tune/internal/cgroup"
)

// child, in the environment, makes this program one of the processes that are
// measured; its value is the work as JSON.
const child = "MYRIAD_TUNE_MEASURE"

// run runs a process, in the group if there is one. It begins its work when its
// standard input ends, which is when it has been moved there.
func run(w work, group *cgroup.Group) (r result, err error) {
	text, err := json.Marshal(w)
	if err != nil {
		return r, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), child+"="+string(text), "GOGC=", "GOMEMLIMIT=") // empty is as not there
	cmd.Stderr = os.Stderr
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return r, err
	}
	if err := cmd.Start(); err != nil {
		return r, err
	}
	var moved error
	if group != nil {
		moved = group.Add(cmd.Process.Pid)
	}
	in.Close()
	told := json.NewDecoder(out).Decode(&r)
	ended := cmd.Wait()
	r.Grouped = group != nil
	switch {
	case moved != nil:
		return r, moved
	case ended != nil && cmd.ProcessState.ExitCode() == -1: // by a signal: the kernel's, for want of memory
		r.Killed = true
		return r, nil
	}
	return r, errors.Join(told, ended)
}

// behave is the process that is measured.
func behave(text string) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	var w work
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		fail(err)
	}
	if err := w.set(); err != nil {
		fail(err)
	}
	w.allocate()
	var r result
	var err error
	if r.Peak, r.CPU, err = usage(); err != nil {
		fail(err)
	}
	r.Cycles, r.GC = cost()
	if err := json.NewEncoder(os.Stdout).Encode(r); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "measure:", err)
	os.Exit(1)
}

// set sets the limit, through package tune where there is a cgroup to find, and
// GOGC.
func (w *work) set() error {
	switch {
	case !w.Limited:
		debug.SetGCPercent(w.Options.GOGC)
		return nil
	case !w.Grouped:
		debug.SetMemoryLimit(int64(w.Bound) << 20 / 100 * 90)
		debug.SetGCPercent(w.Options.GOGC)
		return nil
	}
	s, err := tune.Memory(w.Options)
	if err == nil && (!s.SetLimit || s.MemoryLimit == math.MaxInt64 || s.Bound != int64(w.Bound)<<20) {
		err = fmt.Errorf("expected the limit of the cgroup, %d MiB; got %v", w.Bound, s)
	}
	return err
}

// piece is memory as servers have it, such as a connection with its buffer: 512
// bytes in two objects.
type piece struct {
	buffer *[448]byte
	rest   [56]byte
}

func newPiece() *piece { return &piece{buffer: new([448]byte)} }

// allocate holds the live memory, in pieces that are shared out to a goroutine
// for each CPU, and makes garbage, with some work on each. One piece in sixteen takes the
// place of a live one, as with connections that come and go.
func (w *work) allocate() {
	const perMiB = (1 << 20) / 512
	var wg sync.WaitGroup
	goroutines := runtime.GOMAXPROCS(0)
	for range goroutines {
		wg.Go(func() {
			live := make([]*piece, w.Live*perMiB/goroutines)
			for i := range live {
				live[i] = newPiece()
			}
			for i := range w.Garbage * perMiB / goroutines {
				p := newPiece()
				sum := sha256.Sum256(p.buffer[:])
				copy(p.rest[:], sum[:])
				if i%16 == 0 {
					live[rand.IntN(len(live))] = p
				}
			}
			runtime.KeepAlive(live)
		})
	}
	wg.Wait()
}

// cost is what the runtime has counted: cycles of the garbage collector, and the
// share of the CPU time it had, what was idle left out, that it took.
func cost() (cycles uint64, share float64) {
	samples := []metrics.Sample{
		{Name: "/gc/cycles/total:gc-cycles"},
		{Name: "/cpu/classes/gc/total:cpu-seconds"},
		{Name: "/cpu/classes/total:cpu-seconds"},
		{Name: "/cpu/classes/idle:cpu-seconds"},
	}
	runtime.GC() // the figures are of the last cycle's end
	metrics.Read(samples)
	return samples[0].Value.Uint64() - 1, samples[1].Value.Float64() / (samples[2].Value.Float64() - samples[3].Value.Float64())
}
