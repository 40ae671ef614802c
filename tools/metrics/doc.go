// Package metrics exports the statistics of a tcp.Server, a pool and a hub to Prometheus. Package loadmetrics exports
// those of a load generator's run.
//
//	r := prometheus.NewRegistry()
//	r.MustRegister(metrics.NewServerCollector(&server, nil))
//	err := metrics.RegisterProcess(r)
//
// The metrics of a server cover all of tcp.Stats. Their names begin with myriad_. The names of a pool's metrics begin
// with myriad_pool_. A collector keeps no state between scrapes, so any number of Prometheus servers can use it at the
// same time. The only quotient among the metrics is myriad_memory_per_connection_bytes; queries compute all others:
//
//	utilization of the loops, 0 to 1:   rate(myriad_loop_busy_seconds_total[1m]) / myriad_loops
//	99th percentile of the loops' lag:  histogram_quantile(0.99, rate(myriad_loop_lag_seconds_bucket[1m]))
//	connections refused, by cause:      rate(myriad_connections_refused_total[1m])
//	share of the handler's slow calls:  rate(myriad_handler_slow_calls_total[1m]) / rate(myriad_messages_total[1m])
package metrics
