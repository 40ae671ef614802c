// Package metrics exports the statistics of a tcp.Server, a pool and a hub to Prometheus.
// Package loadmetrics does so for a run of the load generator.
//
//	r := prometheus.NewRegistry()
//	r.MustRegister(metrics.NewServerCollector(&server, nil))
//	err := metrics.RegisterProcess(r)
//
// NewPoolCollector exports a pool, such as that of Server.Workers. The names of its metrics
// begin with myriad_pool_.
//
// Everything of tcp.Stats is there, under names that begin with myriad_. The
// collector of a server keeps nothing between two scrapes, so that any number of Prometheus
// servers can scrape it at a time. What is a quotient is left to the query, with
// one exception, myriad_memory_per_connection_bytes:
//
//	utilisation of the loops, 0 to 1:   rate(myriad_loop_busy_seconds_total[1m]) / myriad_loops
//	99th percentile of the loops' lag:  histogram_quantile(0.99, rate(myriad_loop_lag_seconds_bucket[1m]))
//	connections refused, by cause:      rate(myriad_connections_refused_total[1m])
//	share of the handler's slow calls:  rate(myriad_handler_slow_calls_total[1m]) / rate(myriad_messages_total[1m])
package metrics
