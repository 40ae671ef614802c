package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

// clusterMetrics are the metrics of a hub in a cluster; a single hub has none of them.
var clusterMetrics = []collector.Metric[hub.Stats]{
	clusterMetric("connected", "1 while there is a connection to NATS.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return int64(collector.BoolToInt(c.Connected)) }),
	clusterMetric("disconnects_total", "Connections to NATS that have been lost.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Disconnects }),
	clusterMetric("subjects", "Subjects of NATS that are subscribed to now.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return c.Subjects }),
	clusterMetric("all_subjects", "1 while the messages of all topics come here, because there are very many, or last values.", prometheus.GaugeValue,
		func(c *hub.ClusterStats) int64 { return int64(collector.BoolToInt(c.All)) }),
	clusterMetric("sent_total", "Messages that were passed on to other nodes.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Sent }),
	clusterMetric("waiting", "Messages that wait to be passed on now.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return c.Waiting }),
	clusterMetric("waiting_bytes", "Memory that they take.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return c.WaitingBytes }),
	clusterMetric("unsent_total", "Messages that were not passed on, because too many waited.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Unsent }),
	clusterMetric("received_total", "Messages of other nodes.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Received }),
	clusterMetric("duplicates_total", "Messages of other nodes that came once more, by another subscription.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Duplicates }),
	clusterMetric("lost_total", "Messages of other nodes that should have come and did not.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Lost }),
	nodeMetric("node_up", "1 for a node that has been heard of in the last seconds.", prometheus.GaugeValue, func(n *hub.NodeStats) int64 { return int64(collector.BoolToInt(n.Here)) }),
	nodeMetric("node_subscriptions", "Subscriptions that another node has said to have.", prometheus.GaugeValue, func(n *hub.NodeStats) int64 { return n.Subscriptions }),
	nodeMetric("node_received_total", "Messages of another node.", prometheus.CounterValue, func(n *hub.NodeStats) int64 { return n.Received }),
	nodeMetric("node_lost_total", "Messages of another node that should have come and did not.", prometheus.CounterValue, func(n *hub.NodeStats) int64 { return n.Lost }),
}

func clusterMetric(name, help string, kind prometheus.ValueType, of func(*hub.ClusterStats) int64) collector.Metric[hub.Stats] {
	return collector.Metric[hub.Stats]{Name: "cluster_" + name, Help: help, Kind: kind, Labels: nil, Each: func(s *hub.Stats, emit func(float64, ...string)) {
		if s.Cluster != nil {
			emit(float64(of(s.Cluster)))
		}
	}}
}

func nodeMetric(name, help string, kind prometheus.ValueType, of func(*hub.NodeStats) int64) collector.Metric[hub.Stats] {
	return collector.Metric[hub.Stats]{Name: "cluster_" + name, Help: help, Kind: kind, Labels: []string{"node"}, Each: func(s *hub.Stats, emit func(float64, ...string)) {
		if s.Cluster == nil {
			return
		}
		for i := range s.Cluster.Nodes {
			emit(float64(of(&s.Cluster.Nodes[i])), s.Cluster.Nodes[i].Name)
		}
	}}
}
