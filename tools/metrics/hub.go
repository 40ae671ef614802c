package metrics

import (
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

// HubSource provides the statistics of a hub. A *hub.Hub is a HubSource.
type HubSource interface {
	// Stats is called once per scrape, on any goroutine.
	Stats() hub.Stats
}

// NewHubCollector returns a collector of a hub's statistics. The optional labels are added to each metric, to
// distinguish several hubs in one process. The collector is safe for concurrent use and calls Stats once per scrape.
//
// Registering the collector fails if source is nil, or if a label name is invalid or reserved. The reserved names are
// kind, cause, le and node.
func NewHubCollector(source HubSource, labels prometheus.Labels) prometheus.Collector {
	if source == nil {
		return collector.NewFailingCollector[hub.Stats](errors.New("metrics: the source is nil; expected a *hub.Hub"))
	}
	return collector.NewCollector(collector.Namespace+"hub_", labels, "le", source.Stats, slices.Concat(hubMetrics, clusterMetrics, replayMetrics), nil)
}

var hubMetrics = []collector.Metric[hub.Stats]{
	collector.NewMetricByLabel("topics", "Topics and patterns with subscribers.", prometheus.GaugeValue, "kind",
		func(s *hub.Stats) map[string]int64 { return map[string]int64{"topic": s.Topics, "pattern": s.Patterns} }),
	collector.Gauge("subscriptions", "Subscriptions of all clients, including patterns.", func(s *hub.Stats) int64 { return s.Subscriptions }),
	collector.Gauge("pattern_work", "Maximum work of matching one message against all patterns, in units of about 10 ns.", func(s *hub.Stats) int64 { return s.PatternWork }),
	collector.Counter("published_total", "Published messages.", func(s *hub.Stats) int64 { return s.Published }),
	collector.Counter("delivered_total", "Messages queued for delivery, counted per subscriber.", func(s *hub.Stats) int64 { return s.Delivered }),
	collector.Counter("dropped_total", "Messages dropped because a subscriber's queue was full, counted per subscriber.",
		func(s *hub.Stats) int64 { return s.Dropped }),
	collector.Counter("lost_total", "Delivered messages that were pending when a slow subscriber was closed, estimated by their mean size.",
		func(s *hub.Stats) int64 { return s.Lost }),
	collector.Counter("lost_bytes_total", "Bytes of lost messages.", func(s *hub.Stats) int64 { return s.LostBytes }),
	collector.NewMetricByLabel("refused_total", "Rejected requests of clients.", prometheus.CounterValue, "cause", func(s *hub.Stats) map[string]int64 {
		r := &s.Refused
		return map[string]int64{
			"credentials": r.Credentials, "denied": r.Denied, "logins": r.Logins, "name": r.Names, "message": r.Messages, "rate": r.Rate,
			"subscriptions": r.Subscriptions, "subscribers": r.Subscribers, "topics": r.Topics, "patterns": r.Patterns, "unkept": r.NotStored,
		}
	}),
	collector.Gauge("last_values", "Topics whose newest message is kept.", func(s *hub.Stats) int64 { return s.LastValues }),
	collector.Gauge("last_values_bytes", "Memory of the kept newest messages in bytes.", func(s *hub.Stats) int64 { return s.LastValueBytes }),
	collector.Counter("last_values_evicted_total", "Newest messages evicted because of a limit.", func(s *hub.Stats) int64 { return s.Evicted }),
}
