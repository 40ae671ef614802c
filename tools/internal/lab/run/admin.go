package run

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/load"
)

const (
	maxAdminReplyBytes = 1 << 20
	adminTimeout       = 5 * time.Second
	// firstGCRuns is the number of garbage collections before the first sample, laterGCRuns before each later one.
	firstGCRuns = 12 // nine were enough to return all startup memory; three are a margin
	laterGCRuns = 2
)

// adminClient reads a server's figures from its admin address. It opens a new connection for each request.
type adminClient struct {
	addr   string
	client *http.Client
}

func newAdminClient(addr string) (nilIfNoAddr *adminClient) {
	if addr == "" {
		return nil
	}
	return &adminClient{addr, &http.Client{Transport: &http.Transport{DialContext: dialWithoutTimeWait, DisableKeepAlives: true, DisableCompression: true}}}
}

// fetchAndParse sends a request for a path, and calls parse to read the response. parse can read up to
// maxAdminReplyBytes. fetchAndParse returns an error if the response does not have the status 200.
func (a *adminClient) fetchAndParse(ctx context.Context, path string, parse func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.addr+path, nil)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("admin address of the server: status is %s; expected 200", resp.Status)
	}
	return parse(io.LimitReader(resp.Body, maxAdminReplyBytes))
}

// forceServerGC makes the server collect garbage the given number of times. Errors are ignored.
func (a *adminClient) forceServerGC(ctx context.Context, times int) {
	for range times {
		_ = a.fetchAndParse(ctx, "/debug/pprof/heap?gc=1&debug=1", func(in io.Reader) error {
			_, err := io.Copy(io.Discard, in)
			return err
		})
	}
}

func (a *adminClient) readCounters(ctx context.Context) (c result.Counts, err error) {
	var stats tcp.Stats
	err = a.fetchAndParse(ctx, "/stats", func(in io.Reader) error { return json.NewDecoder(in).Decode(&stats) })
	if err == nil && stats.Model == "" {
		err = errors.New("the admin address reports no counters; expected those of a server that serves")
	}
	return result.Counts{
		Open: stats.Open, Accepted: stats.Accepted, Refused: stats.Refused.Total(),
		Messages: stats.Messages, Heartbeats: stats.Heartbeats, Unanswered: stats.Closed.Heartbeat,
		Dropped: stats.Dropped, Restarts: stats.Restarts,
	}, err
}

// pollCountersUntilOrTimeout reads the counters until accept returns true, timeout has passed or ctx ends. It returns
// the outcome of the last reading, whether or not accept returned true.
func (a *adminClient) pollCountersUntilOrTimeout(ctx context.Context, timeout time.Duration, accept func(*result.Counts) bool) (last result.Counts, lastErr error) {
	for end := time.Now().Add(timeout); ; {
		c, err := a.readCounters(ctx)
		if err == nil && accept(&c) || time.Now().After(end) {
			return c, err
		}
		if err := sleepContext(ctx, pollInterval); err != nil {
			return c, err
		}
	}
}

// readSummedMetrics reads the server's metrics. The result maps the name of each metric to the sum of the metric's
// values. If a metric has the label cause or le, the result also has an entry for each value of this label. The key of
// such an entry is, for example, closed{peer}.
func (a *adminClient) readSummedMetrics(ctx context.Context) (values map[string]float64, err error) {
	values = make(map[string]float64)
	err = a.fetchAndParse(ctx, "/metrics", func(in io.Reader) error {
		lines := bufio.NewScanner(in)
		for lines.Scan() {
			line := lines.Text()
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			name := line[:max(strings.IndexAny(line, "{ "), 0)]
			if err != nil || name == "" || name == "#" {
				continue
			}
			values[name] += v
			for _, label := range []string{`cause="`, `le="`} {
				if _, value, ok := strings.Cut(line, label); ok {
					value, _, _ = strings.Cut(value, `"`)
					values[name+"{"+value+"}"] += v
				}
			}
		}
		return lines.Err()
	})
	return values, err
}

func (a *adminClient) readRuntimeTotals(ctx context.Context) (nilOnError *result.Runtime) {
	v, err := a.readSummedMetrics(ctx)
	if err != nil {
		return nil
	}
	r := &result.Runtime{CPUSeconds: v["process_cpu_seconds_total"], GCSeconds: v["go_cpu_classes_gc_total_cpu_seconds_total"]}
	for key, count := range v {
		if bound, ok := strings.CutPrefix(key, "go_sched_latencies_seconds_bucket{"); ok {
			if seconds, err := strconv.ParseFloat(strings.TrimSuffix(bound, "}"), 64); err == nil && !math.IsInf(seconds, 1) {
				r.SchedulerWaits = append(r.SchedulerWaits, [2]float64{seconds, count})
			}
		}
	}
	slices.SortFunc(r.SchedulerWaits, func(a, b [2]float64) int { return cmp.Compare(a[0], b[0]) })
	return r
}

// readRuntimeUsageInto sets the fields of usage that describe the server's Go runtime. If the server has several
// processes, the figures are sums over these processes, and the memory figures are not set. If the metrics cannot be
// read, usage does not change.
func (a *adminClient) readRuntimeUsageInto(ctx context.Context, multiProcess bool, usage *load.Usage) {
	v, err := a.readSummedMetrics(ctx)
	if err != nil {
		return
	}
	usage.Turns = int64(v["myriad_loop_lag_seconds_count"])
	usage.Lag = time.Duration(v["myriad_loop_lag_seconds_sum"] * float64(time.Second))
	if multiProcess || v["myriad_worker_goroutines"] > 0 {
		usage.Goroutines, usage.GCs = int64(v["myriad_worker_goroutines"]), int64(v["myriad_worker_gc_cycles_total"])
		return
	}
	usage.Goroutines, usage.GCs = int64(v["go_goroutines"]), int64(v["go_gc_duration_seconds_count"])
	usage.StackInuse, usage.HeapInuse = int64(v["go_memstats_stack_inuse_bytes"]), int64(v["go_memstats_heap_inuse_bytes"])
	usage.Sys = int64(v["go_memstats_sys_bytes"])
}
