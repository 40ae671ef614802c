package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tools/internal/collector"
)

var replayMetrics = []collector.Metric[hub.Stats]{
	newReplayMetric("ready", "1 if the hub has all messages of the stream.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return int64(collector.BoolToInt(r.Ready)) }),
	newReplayMetric("seq", "Number of the newest message in the stream.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return int64(r.Seq) }),
	newReplayMetric("messages", "Kept messages.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return r.Messages }),
	newReplayMetric("bytes", "Memory of kept messages.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return r.Bytes }),
	newReplayMetric("clients", "Clients that wait for or receive missed messages.", prometheus.GaugeValue, func(r *hub.ReplayStats) int64 { return r.Waiting }),
	newReplayMetric("turns_total", "Clients that had to wait for a replay.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Replays }),
	newReplayMetric("messages_total", "Missed messages sent to clients.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Replayed }),
	newReplayMetric("gaps_total", "Gaps reported to clients because messages were no longer kept.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Gaps }),
	newReplayMetric("refused_total", "Clients told to retry because too many waited or they took too long.", prometheus.CounterValue,
		func(r *hub.ReplayStats) int64 { return r.Refused }),
	newReplayMetric("unissued_total", "Clients with an id that was never issued.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Unissued }),
	newReplayMetric("stalled_total", "Replays ended because the client did not read.", prometheus.CounterValue, func(r *hub.ReplayStats) int64 { return r.Stalled }),
}

func newReplayMetric(nameSuffix, help string, kind prometheus.ValueType, of func(*hub.ReplayStats) int64) collector.Metric[hub.Stats] {
	return collector.Metric[hub.Stats]{Name: "replay_" + nameSuffix, Help: help, Kind: kind, Labels: nil, Each: func(s *hub.Stats, emit func(float64, ...string)) {
		if s.Replay != nil {
			emit(float64(of(s.Replay)))
		}
	}}
}
