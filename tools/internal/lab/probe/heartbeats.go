package probe

import (
	"time"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// heartbeatProbe computes figures of connections that only answer heartbeats.
var heartbeatProbe = Probe{
	Figures: []Figure{
		{Name: "beat-connections", Heading: "connections"},
		{Name: "beat-cpu", Heading: "CPU of one", Unit: page.Share, Better: Lower, CustomFormat: func(v float64) string { return formatTwoDecimals(v*100) + " %" }, Main: true},
		{Name: "beat-cpu-all", Heading: "CPU for all asked for", Unit: page.Share, Better: Lower, CustomFormat: func(v float64) string { return formatTwoDecimals(v*100) + " %" }},
		{Name: "beats", Heading: "heartbeats/s"},
		{Name: "beats-each", Heading: "heartbeats each", CustomFormat: formatTwoDecimals},
		{Name: "beat-cpu-each", Heading: "CPU µs/heartbeat", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "beat-cores", Heading: "cores for a million/s", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "beat-machine", Heading: "CPUs of the machine", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "beat-interval", Heading: "mean interval", Unit: page.Seconds},
		{Name: "beat-interval-min", Heading: "shortest", Unit: page.Seconds},
		{Name: "beat-interval-p99", Heading: "p99", Unit: page.Seconds},
		{Name: "beat-rss", Heading: "RSS bytes/conn", Unit: page.Bytes, Better: Lower},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		r := in.Run.LastLoadResult()
		p := in.Workload.FindPhase(scenario.Load)
		if p == nil || p.Heartbeat == 0 || r == nil || r.Connected == 0 {
			return
		}
		n := float64(r.Connected)
		set("beat-connections", n)
		set("beats", r.Rate())
		set("beats-each", float64(r.Answered)/n)
		if r.Latency.Count > 0 {
			set("beat-interval", r.Latency.Mean.Seconds())
			set("beat-interval-min", r.Latency.Min.Seconds())
			set("beat-interval-p99", r.Latency.P99.Seconds())
		}
		cpus, ok := in.serverCPUsInWindow()
		ready, end := in.Run.FindSample("ready"), in.Run.FindSample("measured")
		if !ok || ready == nil {
			return
		}
		set("beat-cpu", cpus)
		set("beat-rss", float64(end.Server.RSS-ready.Server.RSS)/n)
		from, to, _ := in.windowSamples()
		set("beat-machine", ratioOrZero(to.Busy-from.Busy, to.At.Sub(from.At)))
		if rate := r.Rate(); rate > 0 {
			set("beat-cpu-each", cpus/rate*1e6)
			set("beat-cores", cpus/rate*1e6)
			set("beat-cpu-all", cpus/rate*float64(max(in.Run.Connections, r.Connected))/time.Duration(p.Heartbeat).Seconds())
		}
	},
}
