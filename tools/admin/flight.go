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

type FlightConfig struct {
	// Source is the server whose event loops are monitored for lag. It is required if Dir is set.
	Source Source
	// Dir is the directory for automatic dumps. It is created if necessary. At most 10 dumps, including those of other
	// processes, are kept there. The default, "", disables automatic dumps. WriteTo and /debug/flight work without Dir.
	Dir string
	// Lag is the duration above which a loop iteration triggers a dump. It is rounded up to a power of two of
	// microseconds. The default is 100 ms, which is rounded up to 131 ms. The maximum is 8.4 s.
	Lag time.Duration
	// Log receives errors and the path of each dump. The default is slog.Default().
	Log *slog.Logger
}

const (
	defaultLag          = 100 * time.Millisecond
	maxLag              = time.Microsecond << (tcp.Buckets - 2) // lower bound of the last bucket
	flightCheckInterval = time.Second
	minDumpInterval     = time.Minute // minimum time between two dumps
	maxDumps            = 10
	// The recorder keeps the trace of the last flightAge, but at most flightBytes.
	flightAge   = 10 * time.Second
	flightBytes = 10 << 20
)

func (c *FlightConfig) fillAndCheckThenCreateDir() error {
	c.Log, c.Lag = cmp.Or(c.Log, slog.Default()), cmp.Or(c.Lag, defaultLag)
	switch {
	case c.Dir != "" && c.Source == nil:
		return errors.New("admin: FlightConfig.Source is nil; expected a *tcp.Server to watch, or an empty Dir")
	case c.Lag < 0 || c.Lag > maxLag:
		return fmt.Errorf("admin: FlightConfig.Lag is %v; expected at most %v, or 0 for the default of %v", c.Lag, maxLag, defaultLag)
	case c.Dir == "":
		return nil
	}
	if err := os.MkdirAll(c.Dir, 0o700); err != nil {
		return fmt.Errorf("admin: FlightConfig.Dir: %w", err)
	}
	return nil
}

// Flight is a flight recorder: it keeps the last seconds of Go's execution trace in memory. The trace covers 10 s, but
// has at most 10 MiB (see runtime/trace.FlightRecorder). Writing a dump needs the same amount of memory in addition. Go
// allows one flight recorder per process.
//
// If FlightConfig.Dir is set, a goroutine checks the server's lag once a second. If the lag has exceeded
// FlightConfig.Lag, Flight writes a dump for go tool trace, at most one per minute. Lag is measured at the end of a
// loop iteration, so the beginning of a long iteration may be missing in the trace.
//
// The recorder costs CPU time. A benchmark echoed 64 bytes on 50 connections. With epoll, the time per message rose
// from 3.1 to 3.4 µs. With goroutines, it rose from 3.6 to 3.8 µs.
//
// All methods are safe for concurrent use. WriteTo and Stop wait while another dump is made.
type Flight struct {
	stop    chan struct{} // closed by Stop
	running sync.WaitGroup

	mu       sync.Mutex // held during a dump; guards stopped
	recorder *trace.FlightRecorder
	stopped  bool
}

// StartFlight starts a flight recorder, which must be stopped with Stop. It fails if one is already running.
func StartFlight(cfg FlightConfig) (*Flight, error) {
	if err := cfg.fillAndCheckThenCreateDir(); err != nil {
		return nil, err
	}
	f := &Flight{stop: make(chan struct{}), recorder: trace.NewFlightRecorder(
		trace.FlightRecorderConfig{MinAge: flightAge, MaxBytes: flightBytes})}
	if err := f.recorder.Start(); err != nil {
		return nil, fmt.Errorf("admin: flight recorder: %w", err)
	}
	if cfg.Dir != "" {
		w := &lagWatcher{source: cfg.Source, firstBucket: firstBucketFrom(cfg.Lag), lastLag: cfg.Source.Stats().Lag,
			dir: cfg.Dir, dump: f, log: cfg.Log}
		f.running.Go(func() { w.dumpIfLaggedEverySecond(f.stop) })
	}
	return f, nil
}

// Stop stops the recorder and waits until a dump in progress has ended. Further calls have no effect.
func (f *Flight) Stop() {
	f.mu.Lock()
	first := !f.stopped
	f.stopped = true
	f.mu.Unlock()
	if first {
		close(f.stop)
		f.recorder.Stop() // no longer in use: dumps check stopped under the lock
	}
	f.running.Wait()
}

// WriteTo writes the recorded trace to w, for go tool trace. It copies the trace before it writes, so w may be slow.
// After Stop, WriteTo fails.
func (f *Flight) WriteTo(w io.Writer) (int64, error) {
	b, err := f.copyRecordedTrace()
	if err != nil {
		return 0, err
	}
	return b.WriteTo(w)
}

func (f *Flight) copyRecordedTrace() (*bytes.Buffer, error) {
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

func (f *Flight) serveTraceDownload(w http.ResponseWriter, _ *http.Request) {
	b, err := f.copyRecordedTrace()
	if err != nil {
		replyText(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	setAttachmentHeader(w, "flight")
	_, _ = b.WriteTo(w) // the peer may have disconnected
}

// lagWatcher writes a dump when the server's lag exceeds a limit. It is not safe for concurrent use.
type lagWatcher struct {
	source      Source
	firstBucket int // first bucket above the limit
	dir         string
	dump        io.WriterTo
	log         *slog.Logger

	lastLag  tcp.Histogram // lag at the last check
	lastDump time.Time     // zero before the first dump
}

func firstBucketFrom(d time.Duration) int {
	for i := 1; i < tcp.Buckets; i++ {
		if (tcp.Histogram{}).Bound(i-1) >= d {
			return i
		}
	}
	return tcp.Buckets - 1
}

func (w *lagWatcher) dumpIfLaggedEverySecond(stop <-chan struct{}) {
	ticker := time.NewTicker(flightCheckInterval)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			w.dumpTraceIfLagged(now)
		}
	}
}

// dumpTraceIfLagged writes a dump if a loop iteration has exceeded the limit since the last call. It writes no dump
// within minDumpInterval of the previous one. It logs errors.
func (w *lagWatcher) dumpTraceIfLagged(now time.Time) {
	lag := w.source.Stats().Lag
	passed := countNewInBuckets(w.lastLag, lag, w.firstBucket)
	w.lastLag = lag
	if passed == 0 || !w.lastDump.IsZero() && now.Sub(w.lastDump) < minDumpInterval {
		return
	}
	w.lastDump = now // also after a failure, so that a full disk is not tried every second
	path, err := removeExcessAndWriteDump(w.dir, now, w.dump)
	if err != nil {
		w.log.Error("flight recorder: cannot write the dump after event loop lag", "error", err)
		return
	}
	w.log.Warn("flight recorder: event loops lagged; see go tool trace", "turns", passed,
		"longer_than", tcp.Histogram{}.Bound(w.firstBucket-1), "dump", path)
}

func countNewInBuckets(before, now tcp.Histogram, firstBucket int) (n int64) {
	for i := firstBucket; i < len(now.Buckets); i++ {
		// A bucket shrinks when a worker process is killed.
		n += max(now.Buckets[i]-before.Buckets[i], 0)
	}
	return n
}

const dumpPattern = "myriad-flight-*.trace"

// removeExcessAndWriteDump writes a dump to dir. Before that, it removes the oldest dumps, so that dir contains at most
// maxDumps dumps afterwards.
func removeExcessAndWriteDump(dir string, now time.Time, recorder io.WriterTo) (path string, err error) {
	old, err := fs.Glob(os.DirFS(dir), dumpPattern) // sorted
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
		return "", errors.Join(err, os.Remove(path)) // removes a partial dump
	}
	return path, nil
}
