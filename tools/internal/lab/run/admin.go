package run

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/load"
)

// The bounds of asking a server what it says of itself.
const (
	maxAnswer    = 1 << 20 // bytes
	adminTimeout = 5 * time.Second
	// firstCollections is how often a server collects its garbage before the first sample,
	// from which on growth is counted: after nine times nothing more of what it took to
	// start went back, and after two there were still up to 500 KB, which the first
	// connections would have used and seemed to take nothing. laterCollections is the same
	// before each later one: the second takes back what the first answer took.
	firstCollections = 12
	laterCollections = 2
)

// admin is where a server shows its figures, as "myriad serve --admin" does. Each question
// has a connection of its own, which leaves nothing behind. A nil one asks nothing.
type admin struct {
	addr   string
	client *http.Client
}

func newAdmin(addr string) *admin {
	if addr == "" {
		return nil
	}
	return &admin{addr, &http.Client{Transport: &http.Transport{DialContext: dialTraceless, DisableKeepAlives: true, DisableCompression: true}}}
}

// get asks for a path and has the answer read.
func (a *admin) get(ctx context.Context, path string, read func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.addr+path, nil)
	if err != nil {
		return err
	}
	answer, err := a.client.Do(ask)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("what the server says of itself: status %s; expected 200", answer.Status)
	}
	return read(io.LimitReader(answer.Body, maxAnswer))
}

// collect has the server collect its garbage and give that back to the system so many times.
// One that can't is left alone.
func (a *admin) collect(ctx context.Context, times int) {
	for range times {
		_ = a.get(ctx, "/debug/pprof/heap?gc=1&debug=1", func(in io.Reader) error {
			_, err := io.Copy(io.Discard, in)
			return err
		})
	}
}

// counts are the server's counters.
func (a *admin) counts(ctx context.Context) (c result.Counts, err error) {
	var stats tcp.Stats
	err = a.get(ctx, "/stats", func(in io.Reader) error { return json.NewDecoder(in).Decode(&stats) })
	if err == nil && stats.Model == "" {
		err = errors.New("the server's counters are not there: it does not serve")
	}
	return result.Counts{
		Open: stats.Open, Accepted: stats.Accepted, Refused: stats.Refused.Total(),
		Messages: stats.Messages, Heartbeats: stats.Heartbeats, Unanswered: stats.Closed.Heartbeat,
		Dropped: stats.Dropped, Restarts: stats.Restarts,
	}, err
}

// await asks for the counters until they are as wanted, but not for longer than bound, and
// says what they were at last. A question without an answer is asked again too.
func (a *admin) await(ctx context.Context, bound time.Duration, wanted func(*result.Counts) bool) (result.Counts, error) {
	for end := time.Now().Add(bound); ; {
		c, err := a.counts(ctx)
		if err == nil && wanted(&c) || time.Now().After(end) {
			return c, err
		}
		if err := pause(ctx, poll); err != nil {
			return c, err
		}
	}
}

// metrics reads metrics by name; those with labels are summed up under their name, and under
// that with the label "cause", as in closed{peer}.
func (a *admin) metrics(ctx context.Context) (values map[string]float64, err error) {
	values = make(map[string]float64)
	err = a.get(ctx, "/metrics", func(in io.Reader) error {
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			line := lines.Text()
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			name := line[:max(strings.IndexAny(line, "{ "), 0)]
			if err != nil || name == "" || name == "#" {
				continue
			}
			values[name] += v
			if _, cause, ok := strings.Cut(line, `cause="`); ok {
				cause, _, _ = strings.Cut(cause, `"`)
				values[name+"{"+cause+"}"] += v
			}
		}
		return lines.Err()
	})
	return values, err
}

// usage adds what the server's Go runtime and event loops say of themselves to what it uses. Of
// workers, whose supervisor serves nobody, the memory of the runtimes is not known.
func (a *admin) usage(ctx context.Context, workers bool, to *load.Usage) {
	v, err := a.metrics(ctx)
	if err != nil {
		return
	}
	to.Turns = int64(v["myriad_loop_lag_seconds_count"])
	to.Lag = time.Duration(v["myriad_loop_lag_seconds_sum"] * float64(time.Second))
	if workers || v["myriad_worker_goroutines"] > 0 {
		to.Goroutines, to.GCs = int64(v["myriad_worker_goroutines"]), int64(v["myriad_worker_gc_cycles_total"])
		return
	}
	to.Goroutines, to.GCs = int64(v["go_goroutines"]), int64(v["go_gc_duration_seconds_count"])
	to.StackInuse, to.HeapInuse = int64(v["go_memstats_stack_inuse_bytes"]), int64(v["go_memstats_heap_inuse_bytes"])
	to.Sys = int64(v["go_memstats_sys_bytes"])
}
