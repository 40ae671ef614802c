package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

var clusterMetrics = []collector.Metric[hub.Stats]{
	newClusterMetric("connected", "1 while there is a connection to NATS.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return int64(collector.BoolToInt(c.Connected)) }),
	newClusterMetric("disconnects_total", "Lost connections to NATS.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Disconnects }),
	newClusterMetric("subjects", "Subscribed NATS subjects.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return c.Subjects }),
	newClusterMetric("all_subjects", "1 while this node receives the messages of all topics, because of their number or last values.", prometheus.GaugeValue,
		func(c *hub.ClusterStats) int64 { return int64(collector.BoolToInt(c.SubscribedToAll)) }),
	newClusterMetric("sent_total", "Messages sent to other nodes.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Sent }),
	newClusterMetric("waiting", "Messages waiting to be sent to other nodes.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return c.Waiting }),
	newClusterMetric("waiting_bytes", "Memory of waiting messages.", prometheus.GaugeValue, func(c *hub.ClusterStats) int64 { return c.WaitingBytes }),
	newClusterMetric("unsent_total", "Messages not sent to other nodes because too many were waiting.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Unsent }),
	newClusterMetric("received_total", "Messages received from other nodes.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Received }),
	newClusterMetric("duplicates_total", "Duplicate messages of other nodes, through another subscription.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Duplicates }),
	newClusterMetric("lost_total", "Missing messages of other nodes.", prometheus.CounterValue, func(c *hub.ClusterStats) int64 { return c.Lost }),
	newMetricPerNode("node_up", "1 for a node with a heartbeat in the last seconds.", prometheus.GaugeValue, func(n *hub.NodeStats) int64 { return int64(collector.BoolToInt(n.Present)) }),
	newMetricPerNode("node_subscriptions", "Subscriptions reported by another node.", prometheus.GaugeValue, func(n *hub.NodeStats) int64 { return n.Subscriptions }),
	newMetricPerNode("node_received_total", "Messages received from another node.", prometheus.CounterValue, func(n *hub.NodeStats) int64 { return n.Received }),
	newMetricPerNode("node_lost_total", "Missing messages of another node.", prometheus.CounterValue, func(n *hub.NodeStats) int64 { return n.Lost }),
}

func newClusterMetric(name, help string, kind prometheus.ValueType, of func(*hub.ClusterStats) int64) collector.Metric[hub.Stats] {
	return collector.Metric[hub.Stats]{Name: "cluster_" + name, Help: help, Kind: kind, Labels: nil, Each: func(s *hub.Stats, emit func(float64, ...string)) {
		if s.Cluster != nil {
			emit(float64(of(s.Cluster)))
		}
	}}
}

func newMetricPerNode(name, help string, kind prometheus.ValueType, of func(*hub.NodeStats) int64) collector.Metric[hub.Stats] {
	return collector.Metric[hub.Stats]{Name: "cluster_" + name, Help: help, Kind: kind, Labels: []string{"node"}, Each: func(s *hub.Stats, emit func(float64, ...string)) {
		if s.Cluster == nil {
			return
		}
		for i := range s.Cluster.Nodes {
			emit(float64(of(&s.Cluster.Nodes[i])), s.Cluster.Nodes[i].Name)
		}
	}}
}
