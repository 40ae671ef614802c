package admin

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

func startFlight(t *testing.T, cfg FlightConfig) *Flight {
	t.Helper()
	f, err := StartFlight(cfg)
	testkit.RequireNoError(t, err)
	t.Cleanup(f.Stop)
	return f
}

func isTrace(b []byte) bool { return bytes.HasPrefix(b, []byte("go 1.")) }

func TestFlightDumps(t *testing.T) {
	f := startFlight(t, FlightConfig{})
	h := Handler(Config{Source: newFakeSource(tcp.Stats{}), Flight: f})
	w := request(h, "GET", "/debug/flight")
	if w.Code != 200 || !isTrace(w.Body.Bytes()) || !strings.Contains(w.Header().Get("Content-Disposition"), "flight-") {
		t.Errorf("got %d, %.20q; want a trace, as a file", w.Code, w.Body.Bytes())
	}
	var b bytes.Buffer
	if n, err := f.WriteTo(&b); err != nil || n != int64(b.Len()) || !isTrace(b.Bytes()) {
		t.Errorf("got %d, %v, %.20q; want a trace", n, err, b.Bytes())
	}
	if _, err := StartFlight(FlightConfig{}); err == nil {
		t.Error("a second one was started; want Go's error")
	}
	f.Stop()
	f.Stop() // once more is nothing
	requestAndExpect(t, h, "GET", "/debug/flight", 503, "has stopped")
	if _, err := f.WriteTo(io.Discard); err == nil {
		t.Error("it dumps after Stop")
	}
	startFlight(t, FlightConfig{}) // there is room for another again
}

func TestFlightRefuses(t *testing.T) {
	src := newFakeSource(tcp.Stats{})
	file := filepath.Join(t.TempDir(), "file")
	testkit.RequireNoError(t, os.WriteFile(file, nil, 0o600))
	for name, cfg := range map[string]FlightConfig{
		"Source":             {Dir: t.TempDir()},
		"Lag is -1ns":        {Lag: -1},
		"Lag is 8.4s":        {Lag: 8400 * time.Millisecond},
		"Dir: mkdir " + file: {Source: src, Dir: file},
	} {
		f, err := StartFlight(cfg)
		if err == nil {
			f.Stop()
		}
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: got %v; want an error that says so", name, err)
		}
	}
	startFlight(t, FlightConfig{}).Stop() // none of them runs
}

// fakeDump is a recorder's dump.
type fakeDump struct {
	n   int
	err error
}

func (d *fakeDump) WriteTo(w io.Writer) (int64, error) {
	d.n++
	if d.err != nil {
		return 0, d.err
	}
	n, err := io.WriteString(w, "dump")
	return int64(n), err
}

// TestWatch lets the clock run.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newFakeSource(tcp.Stats{})
		setLag := func(bucket int, n int64) {
			s := src.Stats()
			s.Lag.Buckets[bucket] = n
			src.stats.Store(&s)
		}
		setLag(20, 5) // before its time
		var d fakeDump
		var log testkit.Buffer
		w := &lagWatcher{source: src, firstBucket: 18, lastLag: src.Stats().Lag, dir: t.TempDir(), dump: &d,
			log: slog.New(slog.NewTextHandler(&log, nil))}
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(ended)
			w.dumpIfLaggedEverySecond(stop)
		}()
		time.Sleep(time.Millisecond)
		for _, c := range []struct {
			what   string
			lag    map[int]int64 // counts by bucket
			wait   time.Duration
			failed bool
			dumps  int
		}{
			{"what was before the start", nil, 10 * time.Second, false, 0},
			{"below the bound", map[int]int64{17: 100}, 2 * time.Second, false, 0},
			{"above the bound", map[int]int64{18: 1}, time.Second, false, 1},
			{"within a minute", map[int]int64{18: 2}, 59 * time.Second, false, 1},
			{"that was too early, and is over", nil, 10 * time.Second, false, 1},
			{"after a minute", map[int]int64{24: 1}, 2 * time.Minute, false, 2},
			{"counts that shrink, as a worker process was killed", map[int]int64{24: 0}, time.Second, false, 2},
			{"growth after that", map[int]int64{24: 50}, 2 * time.Minute, false, 3},
			{"a failure, with one that shrinks by more than the other grows", map[int]int64{24: 10, 19: 1}, time.Second, true, 4},
		} {
			if c.failed {
				d.err = errors.New("disk is full")
			}
			for bucket, n := range c.lag {
				setLag(bucket, n)
			}
			time.Sleep(c.wait)
			synctest.Wait()
			if d.n != c.dumps {
				t.Errorf("%s: %d dumps, want %d", c.what, d.n, c.dumps)
			}
		}
		if text := log.String(); strings.Count(text, "longer_than=131.072ms") != 3 || !strings.Contains(text, "disk is full") {
			t.Errorf("logged %q; want three dumps and a failure", text)
		}
		close(stop)
		<-ended
	})
}

func TestDumpsAreBounded(t *testing.T) {
	dir := t.TempDir()
	mine := filepath.Join(dir, "mine.trace")
	testkit.RequireNoError(t, os.WriteFile(mine, nil, 0o600))
	var paths []string
	now := time.Unix(1e9, 0)
	for range maxDumps + 2 {
		path, err := removeExcessAndWriteDump(dir, now, &fakeDump{})
		testkit.RequireNoError(t, err)
		paths = append(paths, path)
		now = now.Add(time.Millisecond)
	}
	files, err := filepath.Glob(filepath.Join(dir, dumpPattern))
	if err != nil || strings.Join(files, " ") != strings.Join(paths[2:], " ") {
		t.Errorf("kept %q, %v; want the last ten of %q", files, err, paths)
	}
	if _, err := os.Stat(mine); err != nil {
		t.Errorf("a file that is no dump was touched: %v", err)
	}
	if _, err := removeExcessAndWriteDump(dir, now.Add(-time.Millisecond), &fakeDump{}); err == nil {
		t.Error("a dump was written over another")
	}
	failing := &fakeDump{err: io.ErrUnexpectedEOF}
	path, err := removeExcessAndWriteDump(dir, now, failing)
	files, _ = filepath.Glob(filepath.Join(dir, dumpPattern))
	if !errors.Is(err, io.ErrUnexpectedEOF) || path != "" || len(files) >= maxDumps {
		t.Errorf("a dump that failed: %q, %v, files %q; want nothing left of it", path, err, files)
	}
}

// TestRealServer has a server dump a trace when a loop lags.
func TestRealServer(t *testing.T) {
	const slow = 20 * time.Millisecond
	server := &tcp.Server{
		Model: tcp.Models()[len(tcp.Models())-1], // Auto would not let its loop lag
		Handler: tcp.Lines(tcp.MessageFunc(func(c *tcp.Conn, msg []byte) {
			time.Sleep(slow)
			c.Write(append(msg, '\n'))
		})),
	}
	dir := t.TempDir()
	startFlight(t, FlightConfig{Source: server, Dir: dir, Lag: time.Millisecond})
	addr, _ := testserver.Start(t, server)
	testkit.Dial(t, addr).ExchangeLine("slow", "slow")
	if server.Stats().Loops > 0 {
		testkit.WaitForFunc(t, func() bool {
			files, _ := filepath.Glob(filepath.Join(dir, dumpPattern))
			return len(files) > 0
		}, func() string { return fmt.Sprintf("no dump after a turn of %v; lag is %v", slow, server.Stats().Lag) })
	}
}
