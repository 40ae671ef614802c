package probe

import (
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

var publishProbe = Probe{
	Figures: []Figure{
		{Name: "deliveries", Heading: "deliveries/s", Better: Higher, Main: true},
		{Name: "publishes", Heading: "publishes/s", Better: Higher, CustomFormat: formatMeanWholeFrom1000},
		{Name: "delivery-p50", Heading: "p50", Unit: page.Seconds, Better: Lower},
		{Name: "delivery-p99", Heading: "p99", Unit: page.Seconds, Better: Lower},
		{Name: "delivery-max", Heading: "max", Unit: page.Seconds, Better: Lower},
		{Name: "delivery-cpu", Heading: "CPU µs/delivery", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "slow-ended", Heading: "slow ones ended"},
		{Name: "publish-peak", Heading: "most RSS MiB", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		p, r := in.Workload.FindPhase(scenario.Publish), in.Run.LastLoadResult()
		if p == nil || r == nil || r.Window <= 0 {
			return
		}
		set("deliveries", r.DeliveriesPerSecond())
		set("publishes", r.Rate())
		set("delivery-p50", r.Latency.P50.Seconds())
		set("delivery-p99", r.Latency.P99.Seconds())
		set("delivery-max", r.Latency.Max.Seconds())
		set("load-busy", r.GeneratorCPUUtilization())
		in.setServerCPUFigures("delivery-cpu", r.DeliveriesPerSecond(), set)
		if p.Slow > 0 {
			set("slow-ended", float64(r.SlowEnded))
		}
		most := int64(0)
		if _, end, ok := in.windowSamples(); ok {
			most = end.Server.RSS
		}
		for i := range in.Run.Timeline {
			most = max(most, in.Run.Timeline[i].Server.RSS)
		}
		if most > 0 {
			set("publish-peak", float64(most))
		}
	},
}
