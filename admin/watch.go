package admin

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/myriad-go/myriad"
)

// watch looks at a server's lag and dumps when it has passed the bound. It
// belongs to one goroutine.
type watch struct {
	source Source
	bound  int // the first bucket that counts
	files  dumps
	dump   io.WriterTo
	log    *slog.Logger

	last   myriad.Histogram // as it was at the last look
	dumped time.Time        // zero before the first
}

// bucketAbove is the first bucket that has nothing but what is longer than d.
func bucketAbove(d time.Duration) int {
	for i := 1; i < myriad.Buckets; i++ {
		if (myriad.Histogram{}).Bound(i-1) >= d {
			return i
		}
	}
	return myriad.Buckets - 1
}

// run looks once a second until stop is closed.
func (w *watch) run(stop <-chan struct{}) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return
		case now := <-ticker.C:
			w.look(now)
		}
	}
}

// look dumps if turns have passed the bound since the last look, and the last
// dump is old enough.
func (w *watch) look(now time.Time) {
	lag := w.source.Stats().Lag
	passed := passed(w.last, lag, w.bound)
	w.last = lag
	if passed == 0 || !w.dumped.IsZero() && now.Sub(w.dumped) < dumpAtMost {
		return
	}
	w.dumped = now // also if it fails: a full disk is not tried every second
	path, err := w.files.write(now, w.dump)
	if err != nil {
		w.log.Error("flight recorder: event loops lagged, and the dump failed", "error", err)
		return
	}
	w.log.Warn("flight recorder: event loops lagged; see go tool trace", "turns", passed,
		"longer_than", myriad.Histogram{}.Bound(w.bound-1), "dump", path)
}

// passed is how many turns have been added to the buckets from the bound on. A
// bucket can shrink, when a worker process was killed; that is nothing.
func passed(before, now myriad.Histogram, bound int) (n int64) {
	for i := bound; i < len(now.Buckets); i++ {
		n += max(now.Buckets[i]-before.Buckets[i], 0)
	}
	return n
}

// dumps are the files of dumps in a directory. Their names sort by time; those
// of all processes that write there count.
type dumps struct {
	dir  string
	keep int
}

const dumpNames = "myriad-flight-*.trace"

// write writes a dump and returns its path. First the oldest files make room,
// so that there are never more than keep.
func (d dumps) write(now time.Time, from io.WriterTo) (path string, err error) {
	if err := d.makeRoom(); err != nil {
		return "", err
	}
	name := fmt.Sprintf("myriad-flight-%s-%d.trace", now.UTC().Format("20060102T150405.000Z"), os.Getpid())
	path = filepath.Join(d.dir, name)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	_, err = from.WriteTo(file)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", errors.Join(err, os.Remove(path)) // half a dump is none
	}
	return path, nil
}

// makeRoom removes the oldest dumps until there are fewer than keep.
func (d dumps) makeRoom() error {
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	var names []string
	for _, e := range entries {
		if ok, _ := filepath.Match(dumpNames, e.Name()); ok && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for len(names) >= d.keep {
		if err := os.Remove(filepath.Join(d.dir, names[0])); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		names = names[1:]
	}
	return nil
}
