package metrics

import (
	"errors"
	"runtime/metrics"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

// Source provides the statistics of a server. A *tcp.Server is a Source.
type Source interface {
	// Stats is called once per scrape, on any goroutine.
	Stats() tcp.Stats
}

// NewServerCollector returns a collector of a server's statistics. The optional labels are added to each metric, to
// distinguish several servers in one process. The collector is safe for concurrent use and calls Stats once per scrape.
//
// Registering the collector fails if source is nil, or if a label name is invalid or reserved. The reserved names are
// model, state, cause, action, records and le.
//
// The metric myriad_memory_per_connection_bytes is the Go memory of the whole process, divided by the number of open
// connections. Go memory consists of heap spans in use (HeapInuse of runtime.MemStats) and goroutine stacks
// (StackInuse). The kernel's memory for sockets is not included. The metric approximates the cost of a connection if
// there are many connections. It is omitted if no connection is open, and for a server with worker processes.
func NewServerCollector(source Source, labels prometheus.Labels) prometheus.Collector {
	if source == nil {
		return collector.NewFailingCollector[stats](errors.New("metrics: the source is nil; expected a *tcp.Server"))
	}
	return collector.NewCollector(collector.Namespace, labels, "le", source.Stats, serverMetrics, serverHistograms)
}

type stats = tcp.Stats

var serverMetrics = []collector.Metric[stats]{
	collector.Gauge("loops", "Event loops. 0 if the I/O model has none.", func(s *stats) int { return s.Loops }),
	collector.Gauge("loops_on_workers", "Event loops whose handlers run on workers.", func(s *stats) int64 { return s.OnWorkers }),
	collector.Gauge("worker_processes", "Running worker processes. 0 without Server.Processes.", func(s *stats) int { return s.Processes }),
	collector.Counter("worker_restarts_total", "Restarts of worker processes.", func(s *stats) int64 { return s.Restarts }),
	collector.Gauge("worker_goroutines", "Goroutines of all worker processes. 0 without Server.Processes; go_goroutines counts those of this process.",
		func(s *stats) int64 { return s.Goroutines }),
	collector.Counter("worker_gc_cycles_total", "Garbage collection cycles of all worker processes.", func(s *stats) int64 { return s.GCs }),
	collector.Counter("worker_gc_pause_seconds_total", "Total garbage collection pauses of all worker processes.",
		func(s *stats) float64 { return s.GCPause.Seconds() }),
	collector.Gauge("draining", "1 when the server shuts down, or has; otherwise 0.", func(s *stats) int { return collector.BoolToInt(s.Draining) }),
	collector.Gauge("accepting_paused", "1 when nothing is accepted because an operator has paused that; otherwise 0.",
		func(s *stats) int { return collector.BoolToInt(s.AcceptingPaused) }),

	collector.Gauge("connections", "Open connections.", func(s *stats) int64 { return s.Open }),
	collector.Gauge("connections_max", "Maximum number of open connections: Limits.MaxConns.", func(s *stats) int { return s.MaxConns }),
	collector.Counter("connections_accepted_total", "Accepted connections, without refused ones.", func(s *stats) int64 { return s.Accepted }),
	collector.Counter("connections_dialed_total", "Connections that the server has dialed.", func(s *stats) int64 { return s.Dialed }),
	collector.Counter("connections_handed_over_total", "Connections handed over to another process.", func(s *stats) int64 { return s.HandedOver }),
	collector.Counter("connections_taken_over_total", "Connections taken over from another process.", func(s *stats) int64 { return s.TakenOver }),
	collector.Counter("accept_errors_total", "Failed accept calls, for example because no descriptors are left.", func(s *stats) int64 { return s.AcceptErrors }),
	collector.Counter("accept_pauses_total", "Pauses of accepting because of Limits.AcceptRate.", func(s *stats) int64 { return s.AcceptPauses }),
	collector.Counter("reads_limited_total", "Pauses of reading from a connection because of Limits.ReadRate or Limits.MessageRate.", func(s *stats) int64 { return s.ReadLimited }),

	collector.Counter("reads_total", "Receive calls that returned data.", func(s *stats) int64 { return s.Reads }),
	collector.Counter("writes_total", "Send calls.", func(s *stats) int64 { return s.Writes }),
	collector.Counter("received_bytes_total", "Bytes received, including TLS.", func(s *stats) int64 { return s.BytesIn }),
	collector.Counter("sent_bytes_total", "Bytes sent, including TLS.", func(s *stats) int64 { return s.BytesOut }),
	collector.Gauge("buffered_bytes", "Memory of the buffers of all connections; see Limits.MaxBuffered.", func(s *stats) int64 { return s.Buffered }),

	collector.Counter("messages_total", "Messages received by tcp.Lines and tcp.Split.", func(s *stats) int64 { return s.Messages }),
	collector.Counter("messages_dropped_total", "Messages dropped because the peer reads too slowly.", func(s *stats) int64 { return s.Dropped }),
	collector.Counter("values_replaced_total", "Values replaced by newer ones before they were sent, counted per connection.",
		func(s *stats) int64 { return s.Replaced }),
	collector.Gauge("broadcasts_pending", "Broadcasts to all connections that are in progress.", func(s *stats) int64 { return s.ActiveBroadcasts }),
	collector.Gauge("broadcasts_pending_bytes", "Bytes of the broadcasts to all connections that are in progress.",
		func(s *stats) int64 { return s.ActiveBroadcastBytes }),
	collector.Gauge("broadcasts_pending_age_seconds", "Age of the oldest broadcast to all connections that is in progress.",
		func(s *stats) float64 { return s.OldestBroadcastAge.Seconds() }),
	collector.Counter("broadcasts_total", "Broadcasts to all connections.", func(s *stats) int64 { return s.Broadcasts }),
	collector.Counter("heartbeats_total", "Heartbeats sent.", func(s *stats) int64 { return s.Heartbeats }),

	collector.Counter("handler_panics_total", "Panics of the handler.", func(s *stats) int64 { return s.Panics }),
	collector.Counter("handler_slow_calls_total", "Handler calls that took longer than Limits.HandlerTime.",
		func(s *stats) int64 { return s.SlowHandlers }),
	collector.Counter("handler_moves_total", "Moves of an event loop's handlers to workers because they blocked the loop.",
		func(s *stats) int64 { return s.Moved }),
	collector.Counter("loops_continued_total", "Event loops continued on another goroutine because an HTTP handler blocked them.",
		func(s *stats) int64 { return s.LoopsMovedToThread }),
	collector.Counter("handler_sheds_total", "Inputs shed because no worker was available in time.",
		func(s *stats) int64 { return s.Shed }),
	collector.Counter("loop_busy_seconds_total", "Busy time of all event loops. Its rate divided by myriad_loops is their utilization.",
		func(s *stats) float64 { return s.Busy.Seconds() }),

	collector.NewMetricByLabel("connections_in_state", "Open connections by state: before the first message (greeting), reading paused because too much output is unsent "+
		"(paused), or closing once output is sent or the peer has closed (closing).",
		prometheus.GaugeValue, "state", func(s *stats) map[string]int64 {
			return map[string]int64{"greeting": s.Handshaking, "paused": s.Paused, "closing": s.Closing}
		}),
	collector.NewMetricByLabel("tls_handshakes_total", "TLS handshakes, by what processes records afterwards: the compact implementation (compact), or crypto/tls because of the "+
		"version, the cipher_suite, FIPS mode (fips), a client's session_cache, or Server.DisableCompactTLS (disabled).",
		prometheus.CounterValue, "records", func(s *stats) map[string]int64 {
			t := &s.TLS
			return map[string]int64{
				"compact": t.Compact, "version": t.Version, "cipher_suite": t.CipherSuite, "fips": t.FIPS, "session_cache": t.SessionCache, "disabled": t.Disabled,
			}
		}),
	collector.NewMetricByLabel("connections_refused_total", "Connections refused before the handler was called, by reason.",
		prometheus.CounterValue, "cause", func(s *stats) map[string]int64 {
			r := &s.Refused
			return map[string]int64{
				"full": r.Full, "source": r.Source, "denied": r.Denied, "proxy": r.Proxy,
				"handshake": r.Handshake, "timeout": r.Timeout, "overload": r.Overload, "other": r.Other,
			}
		}),
	collector.NewMetricByLabel("overload_action_active", "Processes in which the overload manager takes an action now; see Server.Overload.",
		prometheus.GaugeValue, "action", func(s *stats) map[string]int64 {
			o := &s.Overload
			return map[string]int64{
				"shorten_idle": o.ShortenIdle, "pause_largest": o.PauseLargest, "end_keep_alive": o.EndKeepAlive, "pause_accepts": o.PauseAccepts,
				"refuse_connections": o.RefuseConns, "shed_requests": o.ShedRequests, "close_slowest": o.CloseSlowest,
			}
		}),
	collector.NewMetricByLabel("requests_shed_total", "Requests shed by the overload manager, by reason: they waited for a worker (queue_delay), the event loops lagged (lag), or "+
		"the memory was nearly exhausted (memory).",
		prometheus.CounterValue, "cause", func(s *stats) map[string]int64 {
			o := &s.Overload
			return map[string]int64{"queue_delay": o.ShedQueueDelay, "lag": o.ShedLag, "memory": o.ShedMemory}
		}),
	collector.NewMetricByLabel("connections_closed_total", "Closed connections by reason, without refused ones.",
		prometheus.CounterValue, "cause", func(s *stats) map[string]int64 {
			c := &s.Closed
			return map[string]int64{
				"peer": c.Peer, "reset": c.Reset, "handler": c.Handler, "first_byte": c.FirstByte, "message": c.Message,
				"idle": c.Idle, "write": c.Write, "close": c.Close, "heartbeat": c.Heartbeat, "slow_consumer": c.SlowConsumer,
				"budget": c.Budget, "too_long": c.TooLong, "tls": c.TLS, "panic": c.Panic, "shutdown": c.Shutdown,
				"operator": c.Operator, "other": c.Other,
			}
		}),

	{Name: "server_info", Help: "Always 1. The label model is the I/O model, empty before the server starts.", Kind: prometheus.GaugeValue, Labels: []string{"model"},
		Each: func(s *stats, emit func(float64, ...string)) { emit(1, s.Model) }},
	{Name: "memory_per_connection_bytes", Help: "Heap in use and stacks of this process, divided by the number of open connections.", Kind: prometheus.GaugeValue, Labels: nil,
		Each: func(s *stats, emit func(float64, ...string)) {
			if s.Open > 0 && s.Processes == 0 {
				emit(float64(goHeapAndStackBytes()) / float64(s.Open))
			}
		}},
}

var serverHistograms = []collector.Distribution[stats]{
	{Name: "handler_duration_seconds", Help: "Duration of handler calls, of which one in 64 is timed.",
		Of: func(s *stats, d *prometheus.Desc) prometheus.Metric {
			return newServerHistogramMetric(d, &s.HandlerTime)
		}},
	{Name: "loop_lag_seconds", Help: "Duration of event loop iterations: the maximum wait of a connection that becomes ready.",
		Of: func(s *stats, d *prometheus.Desc) prometheus.Metric { return newServerHistogramMetric(d, &s.Lag) }},
}

func newServerHistogramMetric(d *prometheus.Desc, h *tcp.Histogram) prometheus.Metric {
	return collector.NewHistogramMetric(d, h.Count, h.Sum, h.Buckets[:], h.Bound)
}

// goHeapAndStackBytes returns the size in bytes of the heap in use and of goroutine stacks.
func goHeapAndStackBytes() (sum uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
	}
	// Unlike runtime.ReadMemStats, this does not stop the program.
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}
