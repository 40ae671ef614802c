package probe

import (
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// goroutineProbe computes the memory of goroutines that wait on a channel.
var goroutineProbe = Probe{
	Figures: []Figure{
		{Name: "parked-stack", Heading: "StackInuse MiB", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes, Main: true},
		{Name: "parked-sys", Heading: "Sys MiB", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
		{Name: "parked-rss", Heading: "RSS MiB", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
		{Name: "parked-pss", Heading: "PSS MiB", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
		{Name: "goroutine-stack", Heading: "stack bytes each", Unit: page.Bytes, Better: Lower},
		{Name: "goroutine-anonymous", Heading: "anonymous bytes each", Unit: page.Bytes, Better: Lower},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		before, after := in.Run.FindSample("ready"), in.Run.FindSample("parked")
		if in.Workload.FindPhase(scenario.Park) == nil || before == nil || after == nil {
			return
		}
		n := float64(in.Workload.Connections)
		set("goroutine-stack", float64(after.Server.StackInuse-before.Server.StackInuse)/n)
		if after.Server.Anonymous > 0 {
			set("goroutine-anonymous", float64(after.Server.Anonymous-before.Server.Anonymous)/n)
		}
		setMeasuredServerMemoryFigures(set, "parked-", "", after)
	},
}
