package metrics_test

import (
	"log"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/metrics"
)

// The metrics of a server and of its process, for Prometheus.
func Example() {
	srv := &tcp.Server{Addr: ":9000", Handler: tcp.Base{}}
	registry := prometheus.NewRegistry()
	registry.MustRegister(metrics.NewServerCollector(srv, prometheus.Labels{"server": "chat"}))
	if err := metrics.RegisterProcess(registry); err != nil {
		log.Fatal(err)
	}
	http.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
}
