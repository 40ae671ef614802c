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
// distinguish several servers in one process. Registration of the collector fails if source is nil, or if the name of a
// label is invalid or reserved. The reserved names are model, state, cause and le. The collector is safe for concurrent
// use and calls Stats once per scrape.
//
// The metric myriad_memory_per_connection_bytes is the Go memory of the whole process, divided by the number of open
// connections. Go memory consists of heap spans in use (HeapInuse of runtime.MemStats) and goroutine stacks
// (StackInuse). The kernel's memory for sockets is not included. The metric approximates the cost of a connection only
// if there are many connections. It is omitted if no connection is open, and for a server with worker processes.
func NewServerCollector(source Source, labels prometheus.Labels) prometheus.Collector {
	if source == nil {
		return collector.NewFailingCollector[stats](errors.New("metrics: the source is nil; expected a *tcp.Server"))
	}
	return collector.NewCollector(collector.Namespace, labels, "le", source.Stats, serverMetrics, serverHistograms)
}

type stats = tcp.Stats

var serverMetrics = []collector.Metric[stats]{
	collector.Gauge("loops", "Event loops, 0 for a model without them.", func(s *stats) int { return s.Loops }),
	collector.Gauge("loops_on_workers", "Event loops whose handlers are called by workers now.", func(s *stats) int64 { return s.OnWorkers }),
	collector.Gauge("worker_processes", "Worker processes that run now, 0 without Server.Processes.", func(s *stats) int { return s.Processes }),
	collector.Counter("worker_restarts_total", "Worker processes that were started again.", func(s *stats) int64 { return s.Restarts }),
	collector.Gauge("worker_goroutines", "Goroutines of all worker processes, 0 without Server.Processes; go_goroutines has those of this process.",
		func(s *stats) int64 { return s.Goroutines }),
	collector.Counter("worker_gc_cycles_total", "Collections of garbage in all worker processes.", func(s *stats) int64 { return s.GCs }),
	collector.Counter("worker_gc_pause_seconds_total", "How long collections of garbage have stopped worker processes, all together.",
		func(s *stats) float64 { return s.GCPause.Seconds() }),
	collector.Gauge("draining", "1 when the server shuts down, or has; otherwise 0.", func(s *stats) int { return collector.BoolToInt(s.Draining) }),
	collector.Gauge("accepting_paused", "1 when nothing is accepted because an operator has paused that; otherwise 0.",
		func(s *stats) int { return collector.BoolToInt(s.AcceptingPaused) }),

	collector.Gauge("connections", "Connections that are open now.", func(s *stats) int64 { return s.Open }),
	collector.Gauge("connections_max", "The most connections at a time: Limits.MaxConns.", func(s *stats) int { return s.MaxConns }),
	collector.Counter("connections_accepted_total", "Connections that were opened.", func(s *stats) int64 { return s.Accepted }),
	collector.Counter("connections_dialed_total", "Connections that the server has made.", func(s *stats) int64 { return s.Dialed }),
	collector.Counter("connections_handed_over_total", "Connections that another process goes on with.", func(s *stats) int64 { return s.HandedOver }),
	collector.Counter("connections_taken_over_total", "Connections that have come from another process.", func(s *stats) int64 { return s.TakenOver }),
	collector.Counter("accept_errors_total", "Failures to accept, such as for want of descriptors.", func(s *stats) int64 { return s.AcceptErrors }),
	collector.Counter("accept_pauses_total", "How often Limits.AcceptRate has let connections wait.", func(s *stats) int64 { return s.AcceptPauses }),

	collector.Counter("reads_total", "Receive calls that brought bytes.", func(s *stats) int64 { return s.Reads }),
	collector.Counter("writes_total", "Send calls.", func(s *stats) int64 { return s.Writes }),
	collector.Counter("received_bytes_total", "Bytes received, as they are on the wire.", func(s *stats) int64 { return s.BytesIn }),
	collector.Counter("sent_bytes_total", "Bytes sent, as they are on the wire.", func(s *stats) int64 { return s.BytesOut }),
	collector.Gauge("buffered_bytes", "Memory that the buffers of all connections hold now; see Limits.MaxBuffered.", func(s *stats) int64 { return s.Buffered }),

	collector.Counter("messages_total", "Messages that Lines and Split have cut out.", func(s *stats) int64 { return s.Messages }),
	collector.Counter("messages_dropped_total", "Messages that were not taken because their peer reads too slowly.", func(s *stats) int64 { return s.Dropped }),
	collector.Counter("values_replaced_total", "Published values that newer ones have replaced before they were sent, for each connection.",
		func(s *stats) int64 { return s.Replaced }),
	collector.Gauge("broadcasts_pending", "Messages to all that have not been given to all connections yet.", func(s *stats) int64 { return s.Casting }),
	collector.Gauge("broadcasts_pending_bytes", "Bytes of the messages to all that have not been given to all connections yet.",
		func(s *stats) int64 { return s.CastBytes }),
	collector.Gauge("broadcasts_pending_age_seconds", "For how long the oldest of the messages to all that have not been given to all connections yet has been under way.",
		func(s *stats) float64 { return s.CastAge.Seconds() }),
	collector.Counter("broadcasts_total", "Messages to all.", func(s *stats) int64 { return s.Broadcasts }),
	collector.Counter("heartbeats_total", "Heartbeats that were sent.", func(s *stats) int64 { return s.Heartbeats }),

	collector.Counter("handler_panics_total", "Panics in the handler.", func(s *stats) int64 { return s.Panics }),
	collector.Counter("handler_slow_calls_total", "Calls of the handler that took longer than Limits.HandlerTime.",
		func(s *stats) int64 { return s.SlowHandlers }),
	collector.Counter("handler_moves_total", "How often the handlers of a loop were moved to workers, because they held it.",
		func(s *stats) int64 { return s.Moved }),
	collector.Counter("handler_sheds_total", "How often a connection's input was shed, because no worker had time for it.",
		func(s *stats) int64 { return s.Shed }),
	collector.Counter("loop_busy_seconds_total", "Time that event loops have worked, all together; its rate divided by myriad_loops is their utilisation.",
		func(s *stats) float64 { return s.Busy.Seconds() }),

	collector.NewMetricByLabel("connections_in_state", "Open connections that are in a state: before their first message (greeting), not read from "+
		"because they owe too much (paused), or waiting for output to be taken or for the peer's end (closing).",
		prometheus.GaugeValue, "state", func(s *stats) map[string]int64 {
			return map[string]int64{"greeting": s.Greeting, "paused": s.Paused, "closing": s.Closing}
		}),
	collector.NewMetricByLabel("tls_handshakes_total", "TLS handshakes, by what processes the records afterwards: the compact implementation, or crypto/tls "+
		"because of the version, the cipher_suite, fips mode, the session_cache of a client, or Server.DisableCompactTLS (disabled).",
		prometheus.CounterValue, "records", func(s *stats) map[string]int64 {
			t := &s.TLS
			return map[string]int64{
				"compact": t.Compact, "version": t.Version, "cipher_suite": t.CipherSuite, "fips": t.FIPS, "session_cache": t.SessionCache, "disabled": t.Disabled,
			}
		}),
	collector.NewMetricByLabel("connections_refused_total", "Connections that were refused before their handler was called.",
		prometheus.CounterValue, "cause", func(s *stats) map[string]int64 {
			r := &s.Refused
			return map[string]int64{
				"full": r.Full, "source": r.Source, "denied": r.Denied, "proxy": r.Proxy,
				"handshake": r.Handshake, "timeout": r.Timeout, "other": r.Other,
			}
		}),
	collector.NewMetricByLabel("connections_closed_total", "Connections that have closed; refused ones are not among them.",
		prometheus.CounterValue, "cause", func(s *stats) map[string]int64 {
			c := &s.Closed
			return map[string]int64{
				"peer": c.Peer, "reset": c.Reset, "handler": c.Handler, "first_byte": c.FirstByte, "message": c.Message,
				"idle": c.Idle, "write": c.Write, "close": c.Close, "heartbeat": c.Heartbeat, "slow_consumer": c.SlowConsumer,
				"budget": c.Budget, "too_long": c.TooLong, "tls": c.TLS, "panic": c.Panic, "shutdown": c.Shutdown,
				"operator": c.Operator, "other": c.Other,
			}
		}),

	{Name: "server_info", Help: "Always 1; the label model is the I/O model that serves, empty before the start.", Kind: prometheus.GaugeValue, Labels: []string{"model"},
		Each: func(s *stats, emit func(float64, ...string)) { emit(1, s.Model) }},
	{Name: "memory_per_connection_bytes", Help: "Heap in use and stacks of this process, divided by the open connections.", Kind: prometheus.GaugeValue, Labels: nil,
		Each: func(s *stats, emit func(float64, ...string)) {
			if s.Open > 0 && s.Processes == 0 {
				emit(float64(goHeapAndStackBytes()) / float64(s.Open))
			}
		}},
}

var serverHistograms = []collector.Distribution[stats]{
	{Name: "handler_duration_seconds", Help: "How long calls of the handler take; one in 64 is timed.",
		Of: func(s *stats, d *prometheus.Desc) prometheus.Metric {
			return newServerHistogramMetric(d, &s.HandlerTime)
		}},
	{Name: "loop_lag_seconds", Help: "How long the turns of event loops take: a connection that becomes ready waits so long at the most.",
		Of: func(s *stats, d *prometheus.Desc) prometheus.Metric { return newServerHistogramMetric(d, &s.Lag) }},
}

func newServerHistogramMetric(d *prometheus.Desc, h *tcp.Histogram) prometheus.Metric {
	return collector.NewHistogramMetric(d, h.Count, h.Sum, h.Buckets[:], h.Bound)
}

// goHeapAndStackBytes returns the size of the heap in use and of goroutine stacks. Unlike runtime.ReadMemStats, it does
// not stop the world.
func goHeapAndStackBytes() (sum uint64) {
	samples := []metrics.Sample{
		{Name: "/memory/classes/heap/objects:bytes"},
		{Name: "/memory/classes/heap/unused:bytes"},
		{Name: "/memory/classes/heap/stacks:bytes"},
	}
	metrics.Read(samples)
	for _, s := range samples {
		if s.Value.Kind() == metrics.KindUint64 {
			sum += s.Value.Uint64()
		}
	}
	return sum
}
