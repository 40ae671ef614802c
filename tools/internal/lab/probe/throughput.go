package probe

import (
	"runtime"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

func (in RunInput) setServerCPUFigures(perMessageFigure string, messagesPerSecond float64, set func(string, float64)) {
	cpus, ok := in.serverCPUsInWindow()
	if !ok {
		return
	}
	width := len(in.Pinning.Server)
	if width == 0 {
		width = runtime.NumCPU()
	}
	set("server-busy", cpus/float64(width))
	if messagesPerSecond > 0 {
		// This divides rates, not amounts, because the samples are taken shortly after the beginning and the end of the
		// window.
		set(perMessageFigure, cpus/messagesPerSecond*1e6)
	}
}

var throughputProbe = Probe{
	Figures: []Figure{
		{Name: "tps", Heading: "TPS", Better: Higher, Main: true},
		{Name: "p50", Heading: "p50", Unit: page.Seconds, Better: Lower},
		{Name: "p99", Heading: "p99", Unit: page.Seconds, Better: Lower},
		{Name: "p99.9", Heading: "p99.9", Unit: page.Seconds, Better: Lower},
		{Name: "mean", Heading: "mean latency", Unit: page.Seconds, Better: Lower, Hidden: true},
		{Name: "cpu", Heading: "CPU µs/msg", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "in-flight", Heading: "in flight", CustomFormat: formatMeanWholeFrom1000},
		{Name: "expected", Heading: "expected"},
		{Name: "server-busy", Heading: "server CPU", Unit: page.Share},
		{Name: "load-busy", Heading: "load CPU", Unit: page.Share},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		r := in.Run.LastLoadResult()
		if p := in.Workload.FindPhase(scenario.Load); p == nil || p.Heartbeat > 0 || r == nil {
			return
		}
		set("tps", r.Rate())
		set("p50", r.Latency.P50.Seconds())
		set("p99", r.Latency.P99.Seconds())
		set("p99.9", r.Latency.P999.Seconds())
		set("mean", r.Latency.Mean.Seconds())
		if r.Schedule == nil {
			set("in-flight", r.InFlight())
			set("expected", float64(in.Workload.Connections*max(in.Workload.Pipeline, 1)))
		}
		set("load-busy", r.GeneratorCPUUtilization())
		in.setServerCPUFigures("cpu", r.Rate(), set)
		in.setGCAndSchedulerFigures(set)
	},
}
