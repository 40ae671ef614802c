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
	maxAdminReplyBytes = 1 << 20 // in bytes
	adminTimeout       = 5 * time.Second
	// firstGCRuns is the number of garbage collections before the first sample, from which growth is measured. After
	// two, up to 500 KB of startup memory remained, which the first connections would have reused. After nine, all of
	// it was returned. Each later sample follows laterGCRuns collections, of which the second frees what the first
	// request used.
	firstGCRuns = 12
	laterGCRuns = 2
)

// adminClient reads a server's figures from the server's admin address. It opens a new connection for each request, and
// leaves no connection in TIME_WAIT.
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

// fetchAndParse requests a path and passes the response body to parse. It passes at most maxAdminReplyBytes.
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
		return fmt.Errorf("admin address of the server: status %s; expected 200", resp.Status)
	}
	return parse(io.LimitReader(resp.Body, maxAdminReplyBytes))
}

// forceServerGC makes the server run several garbage collections and return memory to the system. times is the number
// of collections. Errors are ignored.
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
		err = errors.New("the server's counters are missing: it does not serve")
	}
	return result.Counts{
		Open: stats.Open, Accepted: stats.Accepted, Refused: stats.Refused.Total(),
		Messages: stats.Messages, Heartbeats: stats.Heartbeats, Unanswered: stats.Closed.Heartbeat,
		Dropped: stats.Dropped, Restarts: stats.Restarts,
	}, err
}

// pollCountersUntilOrTimeout reads the counters repeatedly until accept returns true, timeout has passed or ctx ends.
// It returns the result of the last request.
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

// readMetrics returns the values of all metrics by name. For a metric with labels, the value is the sum over all
// labels. readMetrics also returns a sum for each value of a label "cause" or "le", with a key such as closed{peer}.
func (a *adminClient) readMetrics(ctx context.Context) (values map[string]float64, err error) {
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

// readRuntimeTotals returns totals of the server's Go runtime, or nil if the request fails.
func (a *adminClient) readRuntimeTotals(ctx context.Context) (nilOnError *result.Runtime) {
	v, err := a.readMetrics(ctx)
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

// readRuntimeUsageInto reads figures of the server's Go runtime and event loops into usage. It omits memory figures if
// the server has worker processes. If the request fails, usage stays unchanged.
func (a *adminClient) readRuntimeUsageInto(ctx context.Context, multiProcess bool, usage *load.Usage) {
	v, err := a.readMetrics(ctx)
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
