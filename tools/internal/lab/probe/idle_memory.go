package probe

import (
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// Checkpoints at which memory is sampled.
const (
	Touched    = "touched"    // after a warm-up, without connections
	Subscribed = "subscribed" // after the last subscription
	Idle       = "idle"       // with idle connections
	Exchanged  = "exchanged"  // after one message on each connection
)

// memoryProbe computes the memory of idle connections.
var memoryProbe = Probe{
	Figures: []Figure{
		{Name: "bytes-idle", Heading: "bytes/conn idle", Unit: page.Bytes, Better: Lower, Main: true},
		{Name: "bytes-subscribed", Heading: "bytes/conn at once", Unit: page.Bytes, Better: Lower},
		{Name: "bytes-exchanged", Heading: "bytes/conn after one exchange", Unit: page.Bytes, Better: Lower},
		{Name: "anonymous-idle", Heading: "anonymous idle", Unit: page.Bytes, Better: Lower},
		{Name: "anonymous-exchanged", Heading: "anonymous after", Unit: page.Bytes, Better: Lower},
		{Name: "kernel-idle", Heading: "kernel slab bytes/conn, both ends", Unit: page.Bytes, Better: Lower},
		{Name: "dial-rate", Heading: "dial conn/s", Better: Higher},
		{Name: "rss-idle", Heading: "RSS MiB, idle", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes, Hidden: true},
		{Name: "rss", Heading: "RSS MiB", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
		{Name: "stack", Heading: "StackInuse", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
		{Name: "heap", Heading: "HeapInuse", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
		{Name: "sys-idle", Heading: "Sys MiB, idle", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes, Hidden: true},
		{Name: "sys", Heading: "Sys MiB", Unit: page.Bytes, Better: Lower, CustomFormat: formatMebibytes},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		r := in.Run.LastLoadResult()
		if r == nil || in.Workload.FindPhase(scenario.Hold) == nil || in.Workload.FindPhase(scenario.Broadcast) != nil {
			return
		}
		if r.ConnectTime > 0 {
			set("dial-rate", float64(r.Connected)/r.ConnectTime.Seconds())
		}
		base, idle, after := in.Run.FindSample(Touched), in.Run.FindSample(Idle), in.Run.FindSample(Exchanged)
		if base == nil || idle == nil || after == nil || r.Connected == 0 {
			return
		}
		each := func(name string, now *result.Sample, of func(*result.Sample) int64) {
			set(name, float64(of(now)-of(base))/float64(r.Connected))
		}
		// RSS, because PSS decreases when another process runs the same program.
		each("bytes-idle", idle, func(s *result.Sample) int64 { return s.Server.RSS })
		if at := in.Run.FindSample(Subscribed); at != nil {
			each("bytes-subscribed", at, func(s *result.Sample) int64 { return s.Server.RSS })
		}
		each("bytes-exchanged", after, func(s *result.Sample) int64 { return s.Server.RSS })
		each("anonymous-idle", idle, func(s *result.Sample) int64 { return s.Server.Anonymous })
		each("anonymous-exchanged", after, func(s *result.Sample) int64 { return s.Server.Anonymous })
		if min(idle.Slab, after.Slab) >= base.Slab { // otherwise other processes have freed memory
			each("kernel-idle", idle, func(s *result.Sample) int64 { return s.Slab })
		}
		setMeasuredServerMemoryFigures(set, "", "-idle", idle)
		setMeasuredServerMemoryFigures(set, "", "", after)
	},
}

func setMeasuredServerMemoryFigures(set func(string, float64), prefix, suffix string, s *result.Sample) {
	u := &s.Server
	for name, v := range map[string]int64{"rss": u.RSS, "pss": u.PSS, "stack": u.StackInuse, "heap": u.HeapInuse, "sys": u.Sys} {
		if _, ok := FindFigure(prefix + name + suffix); ok && v > 0 {
			set(prefix+name+suffix, float64(v))
		}
	}
}
