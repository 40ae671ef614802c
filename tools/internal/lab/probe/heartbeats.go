package probe

import (
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// heartbeatProbe computes figures of connections that only answer heartbeats. If a server holds fewer connections than
// requested, the figure beat-cpu-all extrapolates the CPU time to the requested number.
var heartbeatProbe = Probe{
	Figures: []Figure{
		{Name: "beat-connections", Heading: "connections"},
		{Name: "beat-cpu", Heading: "CPU of one", Unit: page.Share, Better: Lower, CustomFormat: func(v float64) string { return formatTwoDecimals(v*100) + " %" }, Main: true},
		{Name: "beat-cpu-all", Heading: "CPU for all asked for", Unit: page.Share, Better: Lower, CustomFormat: func(v float64) string { return formatTwoDecimals(v*100) + " %" }},
		{Name: "beats", Heading: "heartbeats/s"},
		{Name: "beats-each", Heading: "heartbeats each", CustomFormat: formatTwoDecimals},
		{Name: "beat-cpu-each", Heading: "CPU µs/heartbeat", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "beat-rss", Heading: "RSS bytes/conn", Unit: page.Bytes, Better: Lower},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		r := in.Run.LastLoadResult()
		if p := in.Workload.FindPhase(scenario.Load); p == nil || p.Heartbeat == 0 || r == nil || r.Connected == 0 {
			return
		}
		n := float64(r.Connected)
		set("beat-connections", n)
		set("beats", r.Rate())
		set("beats-each", float64(r.Answered)/n)
		cpus, ok := in.serverCPUsInWindow()
		ready, end := in.Run.FindSample("ready"), in.Run.FindSample("measured")
		if !ok || ready == nil {
			return
		}
		set("beat-cpu", cpus)
		set("beat-cpu-all", cpus/n*float64(max(in.Run.Connections, r.Connected)))
		set("beat-rss", float64(end.Server.RSS-ready.Server.RSS)/n)
		if rate := r.Rate(); rate > 0 {
			set("beat-cpu-each", cpus/rate*1e6)
		}
	},
}
