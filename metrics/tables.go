package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad"
)

// single is a metric with one value.
type single struct {
	name, help string
	kind       prometheus.ValueType
	value      func(*myriad.Stats) float64
}

// gauge is a single that tells what is now.
func gauge(name, help string, value func(*myriad.Stats) int64) single {
	return single{name, help, prometheus.GaugeValue, func(s *myriad.Stats) float64 { return float64(value(s)) }}
}

// counter is a single that only grows.
func counter(name, help string, value func(*myriad.Stats) int64) single {
	return single{name, help, prometheus.CounterValue, func(s *myriad.Stats) float64 { return float64(value(s)) }}
}

var singles = []single{
	gauge("loops", "Event loops, 0 for a model without them.",
		func(s *myriad.Stats) int64 { return int64(s.Loops) }),
	gauge("loops_on_workers", "Event loops whose handlers are called by workers now.",
		func(s *myriad.Stats) int64 { return s.OnWorkers }),
	gauge("worker_processes", "Worker processes that run now, 0 without Server.Processes.",
		func(s *myriad.Stats) int64 { return int64(s.Processes) }),
	counter("worker_restarts_total", "Worker processes that were started again.",
		func(s *myriad.Stats) int64 { return s.Restarts }),
	gauge("worker_goroutines", "Goroutines of all worker processes, 0 without Server.Processes; go_goroutines has those of this process.",
		func(s *myriad.Stats) int64 { return s.Goroutines }),
	counter("worker_gc_cycles_total", "Collections of garbage in all worker processes.",
		func(s *myriad.Stats) int64 { return s.GCs }),
	{"worker_gc_pause_seconds_total", "How long collections of garbage have stopped worker processes, all together.",
		prometheus.CounterValue, func(s *myriad.Stats) float64 { return s.GCPause.Seconds() }},
	gauge("draining", "1 when the server shuts down, or has; otherwise 0.",
		func(s *myriad.Stats) int64 { return flag(s.Draining) }),
	gauge("accepting_paused", "1 when nothing is accepted because an operator has paused that; otherwise 0.",
		func(s *myriad.Stats) int64 { return flag(s.AcceptingPaused) }),

	gauge("connections", "Connections that are open now.",
		func(s *myriad.Stats) int64 { return s.Open }),
	gauge("connections_max", "The most connections at a time: Limits.MaxConns.",
		func(s *myriad.Stats) int64 { return int64(s.MaxConns) }),
	counter("connections_accepted_total", "Connections that were opened.",
		func(s *myriad.Stats) int64 { return s.Accepted }),
	counter("connections_dialed_total", "Connections that the server has made.",
		func(s *myriad.Stats) int64 { return s.Dialed }),
	counter("accept_errors_total", "Failures to accept, such as for want of descriptors.",
		func(s *myriad.Stats) int64 { return s.AcceptErrors }),
	counter("accept_pauses_total", "How often Limits.AcceptRate has let connections wait.",
		func(s *myriad.Stats) int64 { return s.AcceptPauses }),

	counter("reads_total", "Receive calls that brought bytes.",
		func(s *myriad.Stats) int64 { return s.Reads }),
	counter("writes_total", "Send calls.",
		func(s *myriad.Stats) int64 { return s.Writes }),
	counter("received_bytes_total", "Bytes received, as they are on the wire.",
		func(s *myriad.Stats) int64 { return s.BytesIn }),
	counter("sent_bytes_total", "Bytes sent, as they are on the wire.",
		func(s *myriad.Stats) int64 { return s.BytesOut }),
	gauge("buffered_bytes", "Memory that the buffers of all connections hold now; see Limits.MaxBuffered.",
		func(s *myriad.Stats) int64 { return s.Buffered }),

	counter("messages_total", "Messages that Lines and Split have cut out.",
		func(s *myriad.Stats) int64 { return s.Messages }),
	counter("messages_dropped_total", "Messages that were not taken because their peer reads too slowly.",
		func(s *myriad.Stats) int64 { return s.Dropped }),
	counter("values_replaced_total", "Published values that newer ones have replaced before they were sent, for each connection.",
		func(s *myriad.Stats) int64 { return s.Replaced }),
	gauge("broadcasts_pending", "Messages to all that have not been given to all connections yet.",
		func(s *myriad.Stats) int64 { return s.Casting }),
	gauge("broadcasts_pending_bytes", "Bytes of the messages to all that have not been given to all connections yet.",
		func(s *myriad.Stats) int64 { return s.CastBytes }),
	{"broadcasts_pending_age_seconds", "For how long the oldest of the messages to all that have not been given to all connections yet has been under way.",
		prometheus.GaugeValue, func(s *myriad.Stats) float64 { return s.CastAge.Seconds() }},
	counter("broadcasts_total", "Messages to all.",
		func(s *myriad.Stats) int64 { return s.Broadcasts }),
	counter("heartbeats_total", "Heartbeats that were sent.",
		func(s *myriad.Stats) int64 { return s.Heartbeats }),

	counter("handler_panics_total", "Panics in the handler.",
		func(s *myriad.Stats) int64 { return s.Panics }),
	counter("handler_slow_calls_total", "Calls of the handler that took longer than Limits.HandlerTime.",
		func(s *myriad.Stats) int64 { return s.SlowHandlers }),
	counter("handler_moves_total", "How often the handlers of a loop were moved to workers, because they held it.",
		func(s *myriad.Stats) int64 { return s.Moved }),
	counter("handler_sheds_total", "How often a connection's input was shed, because no worker had time for it.",
		func(s *myriad.Stats) int64 { return s.Shed }),
	{"loop_busy_seconds_total", "Time that event loops have worked, all together; its rate divided by myriad_loops is their utilisation.",
		prometheus.CounterValue, func(s *myriad.Stats) float64 { return s.Busy.Seconds() }},
}

// flag is 1 for true.
func flag(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// family is a metric with a value for each value of a label.
type family struct {
	name, help, label string
	kind              prometheus.ValueType
	members           []member
}

type member struct {
	name  string
	value func(*myriad.Stats) int64
}

var families = []family{
	{"connections_in_state", "Open connections that are in a state: before their first message (greeting), not read from " +
		"because they owe too much (paused), or waiting for output to be taken or for the peer's end (closing).",
		"state", prometheus.GaugeValue, []member{
			{"greeting", func(s *myriad.Stats) int64 { return s.Greeting }},
			{"paused", func(s *myriad.Stats) int64 { return s.Paused }},
			{"closing", func(s *myriad.Stats) int64 { return s.Closing }},
		}},
	{"connections_refused_total", "Connections that were turned away before their handler heard of them.",
		"cause", prometheus.CounterValue, []member{
			{"full", func(s *myriad.Stats) int64 { return s.Refused.Full }},
			{"source", func(s *myriad.Stats) int64 { return s.Refused.Source }},
			{"denied", func(s *myriad.Stats) int64 { return s.Refused.Denied }},
			{"proxy", func(s *myriad.Stats) int64 { return s.Refused.Proxy }},
			{"handshake", func(s *myriad.Stats) int64 { return s.Refused.Handshake }},
			{"timeout", func(s *myriad.Stats) int64 { return s.Refused.Timeout }},
			{"other", func(s *myriad.Stats) int64 { return s.Refused.Other }},
		}},
	{"connections_closed_total", "Connections that have closed; refused ones are not among them.",
		"cause", prometheus.CounterValue, []member{
			{"peer", func(s *myriad.Stats) int64 { return s.Closed.Peer }},
			{"reset", func(s *myriad.Stats) int64 { return s.Closed.Reset }},
			{"handler", func(s *myriad.Stats) int64 { return s.Closed.Handler }},
			{"first_byte", func(s *myriad.Stats) int64 { return s.Closed.FirstByte }},
			{"message", func(s *myriad.Stats) int64 { return s.Closed.Message }},
			{"idle", func(s *myriad.Stats) int64 { return s.Closed.Idle }},
			{"write", func(s *myriad.Stats) int64 { return s.Closed.Write }},
			{"close", func(s *myriad.Stats) int64 { return s.Closed.Close }},
			{"heartbeat", func(s *myriad.Stats) int64 { return s.Closed.Heartbeat }},
			{"slow_consumer", func(s *myriad.Stats) int64 { return s.Closed.SlowConsumer }},
			{"budget", func(s *myriad.Stats) int64 { return s.Closed.Budget }},
			{"too_long", func(s *myriad.Stats) int64 { return s.Closed.TooLong }},
			{"tls", func(s *myriad.Stats) int64 { return s.Closed.TLS }},
			{"panic", func(s *myriad.Stats) int64 { return s.Closed.Panic }},
			{"shutdown", func(s *myriad.Stats) int64 { return s.Closed.Shutdown }},
			{"operator", func(s *myriad.Stats) int64 { return s.Closed.Operator }},
			{"other", func(s *myriad.Stats) int64 { return s.Closed.Other }},
		}},
}

var histograms = []struct {
	name, help string
	value      func(*myriad.Stats) myriad.Histogram
}{
	{"handler_duration_seconds", "How long calls of the handler take; one in 64 is timed.",
		func(s *myriad.Stats) myriad.Histogram { return s.HandlerTime }},
	{"loop_lag_seconds", "How long the turns of event loops take: a connection that becomes ready waits so long at the most.",
		func(s *myriad.Stats) myriad.Histogram { return s.Lag }},
}
