package metrics

import (
	"errors"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

// HubSource provides the statistics of a hub: a *hub.Hub.
type HubSource interface {
	// Stats is called once a scrape, from any goroutine.
	Stats() hub.Stats
}

// NewHubCollector exports the statistics of a hub. labels, if any, are added to each metric, to
// distinguish several hubs of one process. Registration fails if source is nil, or if a label's
// name is invalid or reserved: kind, cause, le and node. The collector is safe for concurrent use
// and calls Stats once per scrape. Losses of slow subscribers are exported by the server's
// collector. A hub in a cluster has additional metrics, some with the label node.
func NewHubCollector(source HubSource, labels prometheus.Labels) prometheus.Collector {
	if source == nil {
		return collector.NewInvalid[hub.Stats](errors.New("metrics: the source is nil; expected a *hub.Hub"))
	}
	return collector.New(collector.Namespace+"hub_", labels, "le", source.Stats, slices.Concat(hubMetrics, clusterMetrics, replayMetrics), nil)
}

var hubMetrics = []collector.Metric[hub.Stats]{
	collector.LabelledMetric("topics", "Topics, and patterns, that have subscribers now.", prometheus.GaugeValue, "kind",
		func(s *hub.Stats) map[string]int64 { return map[string]int64{"topic": s.Topics, "pattern": s.Patterns} }),
	collector.Gauge("subscriptions", "Subscriptions of all clients, to patterns too, now.", func(s *hub.Stats) int64 { return s.Subscriptions }),
	collector.Gauge("pattern_work", "Most work that a publish may have with patterns now, in units of some 10 ns.", func(s *hub.Stats) int64 { return s.PatternWork }),
	collector.Counter("published_total", "Messages that were published.", func(s *hub.Stats) int64 { return s.Published }),
	collector.Counter("delivered_total", "Messages that were on their way to a subscriber, for each of these.", func(s *hub.Stats) int64 { return s.Delivered }),
	collector.Counter("dropped_total", "Messages for which there was no room on their way to a subscriber, for each of these.",
		func(s *hub.Stats) int64 { return s.Dropped }),
	collector.Counter("lost_total", "Messages of those delivered that waited for subscribers that were closed because they read too slowly, by their mean size.",
		func(s *hub.Stats) int64 { return s.Lost }),
	collector.Counter("lost_bytes_total", "Bytes of these.", func(s *hub.Stats) int64 { return s.LostBytes }),
	collector.LabelledMetric("refused_total", "What clients were refused.", prometheus.CounterValue, "cause", func(s *hub.Stats) map[string]int64 {
		r := &s.Refused
		return map[string]int64{
			"credentials": r.Credentials, "denied": r.Denied, "logins": r.Logins, "name": r.Names, "message": r.Messages, "rate": r.Rate,
			"subscriptions": r.Subscriptions, "subscribers": r.Subscribers, "topics": r.Topics, "patterns": r.Patterns, "unkept": r.Unkept,
		}
	}),
	collector.Gauge("last_values", "Topics whose newest message is kept now.", func(s *hub.Stats) int64 { return s.LastValues }),
	collector.Gauge("last_values_bytes", "The memory that they take, in bytes.", func(s *hub.Stats) int64 { return s.LastValueBytes }),
	collector.Counter("last_values_evicted_total", "Newest messages that were given up because of a limit.", func(s *hub.Stats) int64 { return s.Evicted }),
}
