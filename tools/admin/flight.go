package admin

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"runtime/trace"
	"sync"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// FlightConfig says when a Flight writes down what it keeps.
type FlightConfig struct {
	// Source is the server whose Stats().Lag is watched. It is required if Dir is set.
	Source Source
	// Dir is where dumps are written, 10 at the most, those of other processes and earlier
	// runs included; the oldest give way. It is made if it is not there. The default is "":
	// nothing is watched, and dumps are what WriteTo and /debug/flight give.
	Dir string
	// Lag is the bound: a turn of an event loop that took longer is a reason to dump. Lag
	// is counted in buckets, so it is rounded up to one's bound: a microsecond doubled so
	// often, 8.4 s at the most. The default is 100 ms, which becomes 131 ms.
	Lag time.Duration
	// Log gets the path of each dump, and what fails. The default is slog.Default().
	Log *slog.Logger
}

const (
	defaultLag          = 100 * time.Millisecond
	maxLag              = time.Microsecond << (tcp.Buckets - 2) // what the last bucket begins at
	flightCheckInterval = time.Second
	minDumpInterval     = time.Minute // one in so long
	maxDumps            = 10
	// The recorder keeps flightAge, as far as flightBytes allow.
	flightAge   = 10 * time.Second
	flightBytes = 10 << 20
)

// validateAndComplete fills in the defaults and says what is wrong.
func (c *FlightConfig) validateAndComplete() error {
	c.Log, c.Lag = cmp.Or(c.Log, slog.Default()), cmp.Or(c.Lag, defaultLag)
	switch {
	case c.Dir != "" && c.Source == nil:
		return errors.New("admin: FlightConfig.Source is nil; expected the *tcp.Server whose lag is watched, or no Dir")
	case c.Lag < 0 || c.Lag > maxLag:
		return fmt.Errorf("admin: FlightConfig.Lag is %v; expected 0 (the default, %v) to %v", c.Lag, defaultLag, maxLag)
	case c.Dir == "":
		return nil
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("admin: FlightConfig.Dir: %w", err)
	}
	return nil
}

// Flight is a flight recorder: Go's execution tracer runs all the time, and its
// last 10 s, or 10 MiB if that is less, are kept in memory
// (runtime/trace.FlightRecorder); while a dump is made it takes as much again. Once a
// second it looks at the server's lag, and when that has passed the bound it writes
// them to a file for go tool trace, at most one a minute. A turn is counted when it ends:
// what held a loop for longer may have begun before the dump does. Go allows one flight
// recorder in a process.
//
// It is not free: a server that echoed 64 bytes on 50 connections took 3.4 µs of
// CPU for each instead of 3.1 under epoll, 3.8 instead of 3.6 with goroutines
// (`myriad serve` with and without --flight-dir, beside `myriad load -c 50
// --duration 3s`, in turns, medians of five).
//
// A goroutine watches, if there is a Dir; it takes no lock but, while it makes a
// dump, the one that WriteTo and Stop share. Its methods are safe for concurrent
// use.
type Flight struct {
	stop    chan struct{} // closed by Stop
	running sync.WaitGroup

	mu       sync.Mutex // one dump at a time, and none after Stop
	recorder *trace.FlightRecorder
	stopped  bool
}

// StartFlight starts a flight recorder. Whoever starts it calls Stop.
func StartFlight(cfg FlightConfig) (*Flight, error) {
	if err := cfg.validateAndComplete(); err != nil {
		return nil, err
	}
	f := &Flight{stop: make(chan struct{}), recorder: trace.NewFlightRecorder(
		trace.FlightRecorderConfig{MinAge: flightAge, MaxBytes: flightBytes})}
	if err := f.recorder.Start(); err != nil {
		return nil, fmt.Errorf("admin: flight recorder: %w", err)
	}
	if cfg.Dir != "" {
		w := &lagWatcher{source: cfg.Source, firstBucket: firstBucketAbove(cfg.Lag), lastLag: cfg.Source.Stats().Lag,
			dir: cfg.Dir, dump: f, log: cfg.Log}
		f.running.Go(func() { w.checkEverySecond(f.stop) })
	}
	return f, nil
}

// Stop ends it and waits for a dump that is under way. Further calls do nothing.
func (f *Flight) Stop() {
	f.mu.Lock()
	first := !f.stopped
	f.stopped = true
	f.mu.Unlock()
	if first {
		close(f.stop)
		f.recorder.Stop() // nobody uses it any more: a dump looks at stopped, under the lock
	}
	f.running.Wait()
}

// WriteTo writes what was recorded last, for go tool trace. It is taken in one
// piece before the first byte is written, so w may be slow. After Stop it fails.
func (f *Flight) WriteTo(w io.Writer) (int64, error) {
	b, err := f.takeDump()
	if err != nil {
		return 0, err
	}
	return b.WriteTo(w)
}

func (f *Flight) takeDump() (*bytes.Buffer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return nil, errors.New("admin: the flight recorder has stopped")
	}
	b := new(bytes.Buffer)
	if _, err := f.recorder.WriteTo(b); err != nil {
		return nil, fmt.Errorf("admin: flight recorder: %w", err)
	}
	return b, nil
}

// serveDump serves a dump for go tool trace.
func (f *Flight) serveDump(w http.ResponseWriter, _ *http.Request) {
	b, err := f.takeDump()
	if err != nil {
		writeText(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	setAttachmentHeader(w, "flight")
	_, _ = b.WriteTo(w) // the peer may have gone
}

// lagWatcher looks at a server's lag and dumps when it has passed the bound. It
// belongs to one goroutine.
type lagWatcher struct {
	source      Source
	firstBucket int // the first bucket that counts
	dir         string
	dump        io.WriterTo
	log         *slog.Logger

	lastLag  tcp.Histogram // as it was at the last look
	lastDump time.Time     // zero before the first
}

// firstBucketAbove is the first bucket that has nothing but what is longer than d.
func firstBucketAbove(d time.Duration) int {
	for i := 1; i < tcp.Buckets; i++ {
		if (tcp.Histogram{}).Bound(i-1) >= d {
			return i
		}
	}
	return tcp.Buckets - 1
}

// checkEverySecond looks once a second until stop is closed.
func (w *lagWatcher) checkEverySecond(stop <-chan struct{}) {
	ticker := time.NewTicker(flightCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			w.dumpIfLagged(now)
		}
	}
}

// dumpIfLagged dumps if turns have passed the bound since the last look, and the last
// dump is old enough.
func (w *lagWatcher) dumpIfLagged(now time.Time) {
	lag := w.source.Stats().Lag
	passed := countLongTurns(w.lastLag, lag, w.firstBucket)
	w.lastLag = lag
	if passed == 0 || !w.lastDump.IsZero() && now.Sub(w.lastDump) < minDumpInterval {
		return
	}
	w.lastDump = now // also if it fails: a full disk is not tried every second
	path, err := writeDumpFile(w.dir, now, w.dump)
	if err != nil {
		w.log.Error("flight recorder: event loops lagged, and the dump failed", "error", err)
		return
	}
	w.log.Warn("flight recorder: event loops lagged; see go tool trace", "turns", passed,
		"longer_than", tcp.Histogram{}.Bound(w.firstBucket-1), "dump", path)
}

// countLongTurns is how many turns have been added to the buckets from the bound on. A
// bucket can shrink, when a worker process was killed; that is nothing.
func countLongTurns(before, now tcp.Histogram, firstBucket int) (n int64) {
	for i := firstBucket; i < len(now.Buckets); i++ {
		n += max(now.Buckets[i]-before.Buckets[i], 0)
	}
	return n
}

// dumpPattern matches the files of dumps. Their names sort by time.
const dumpPattern = "myriad-flight-*.trace"

// writeDumpFile writes a dump and returns its path. First the oldest files make room, so that
// there are never more than maxDumps.
func writeDumpFile(dir string, now time.Time, recorder io.WriterTo) (path string, err error) {
	old, err := fs.Glob(os.DirFS(dir), dumpPattern) // in order
	if err != nil {
		return "", err
	}
	for len(old) >= maxDumps {
		if err := os.Remove(filepath.Join(dir, old[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
		old = old[1:]
	}
	path = filepath.Join(dir, fmt.Sprintf("myriad-flight-%s-%d.trace", now.UTC().Format("20060102T150405.000Z"), os.Getpid()))
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = recorder.WriteTo(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(path)) // half a dump is none
	}
	return path, nil
}
