package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

// replayMetrics are the metrics of a hub with replay; other hubs have none of them.
var replayMetrics = []collector.Metric[hub.Stats]{
	replayMetric("ready", "1 when the hub has what the stream has.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return int64(collector.BoolToInt(r.Ready)) }),
	replayMetric("seq", "Number of the newest message in the stream.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return int64(r.Seq) }),
	replayMetric("messages", "Messages that are kept now.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return r.Messages }),
	replayMetric("bytes", "Memory that they take.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return r.Bytes }),
	replayMetric("clients", "Clients that wait for what they have missed now, or are sent it.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return r.Waiting }),
	replayMetric("turns_total", "Clients that had to wait for their turn.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Replays }),
	replayMetric("messages_total", "Messages that were sent to clients that had missed them.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Replayed }),
	replayMetric("gaps_total", "How often clients were told that something is not kept any more.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Gaps }),
	replayMetric("refused_total", "Clients that were to try again, because too many waited, or they took too long.", prometheus.CounterValue,
		func(r *hub.ReplayStats) int64 { return r.Refused }),
	replayMetric("unissued_total", "Clients that came with an id that has not been issued.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Unissued }),
	replayMetric("stalled_total", "Turns that ended because the client did not read.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Stalled }),
}

func replayMetric(name, help string, kind prometheus.ValueType, of func(*hub.ReplayStats) int64) collector.Metric[hub.Stats] {
	return collector.Metric[hub.Stats]{Name: "replay_" + name, Help: help, Kind: kind, Labels: nil, Each: func(s *hub.Stats, emit func(float64, ...string)) {
		if s.Replay != nil {
			emit(float64(of(s.Replay)))
		}
	}}
}
