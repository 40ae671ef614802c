package probe

import (
	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
)

// floodProbe computes figures of clients that send without waiting for answers.
var floodProbe = Probe{
	Figures: []Figure{
		{Name: "flood-connections", Heading: "connections"},
		{Name: "sent", Heading: "sent MiB", Unit: page.Bytes, CustomFormat: formatMebibytes},
		{Name: "received", Heading: "received MiB", Unit: page.Bytes, Better: Higher, CustomFormat: formatMebibytes, Main: true},
		{Name: "per-connection", Heading: "kB/s each", Unit: page.Bytes, Better: Higher, CustomFormat: formatKilobytes},
		{Name: "down", Heading: "down Mbps", Better: Higher, CustomFormat: formatMegabits},
		{Name: "up", Heading: "up Mbps", CustomFormat: formatMegabits},
		{Name: "packets-down", Heading: "packets/s down"},
		{Name: "packets-up", Heading: "packets/s up"},
		{Name: "answers-per-packet", Heading: "answers/packet", CustomFormat: formatMeanWholeFrom1000},
		{Name: "system-share", Heading: "CPU in the kernel", Unit: page.Share},
		{Name: "flood-cpu", Heading: "CPU µs/answer", Better: Lower, CustomFormat: formatTwoDecimals},
		{Name: "unanswered", Heading: "unanswered", Better: Lower},
		{Name: "sent-minute", Heading: "MiB sent a minute", Unit: page.Bytes, CustomFormat: formatMebibytes, Hidden: true},
		{Name: "received-minute", Heading: "MiB received a minute", Unit: page.Bytes, Better: Higher, CustomFormat: formatMebibytes, Hidden: true},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		r := in.Run.LastLoadResult()
		if in.Workload.FindPhase(scenario.Flood) == nil || r == nil || r.Window <= 0 {
			return
		}
		window := r.Window.Seconds()
		sent, received := float64(r.BytesSent), float64(r.BytesReceived)
		set("flood-connections", float64(r.Connected))
		set("sent", sent)
		set("received", received)
		set("sent-minute", sent/window*60)
		set("received-minute", received/window*60)
		set("per-connection", (sent+received)/window/float64(max(r.Connected, 1)))
		set("down", 8*received/window)
		set("up", 8*sent/window)
		if lines := received / float64(len(app.Ping)) / window; lines > 0 {
			if cpus, ok := in.serverCPUsInWindow(); ok {
				set("flood-cpu", cpus/lines*1e6)
			}
		}
		if from, to, ok := in.windowSamples(); ok && from.Accepted > 0 && to.Accepted >= from.Accepted {
			between := to.At.Sub(from.At).Seconds()
			set("packets-up", float64(to.SegmentsIn-from.SegmentsIn)/between)
			set("packets-down", float64(to.SegmentsOut-from.SegmentsOut)/between)
		}
		if from, to, ok := in.windowSamples(); ok {
			// The kernel reports user and system time in steps, so a difference over a short window can be negative.
			set("system-share", max(ratioOrZero(to.Server.System-from.Server.System, to.Server.CPU()-from.Server.CPU()), 0))
			if segments := float64(to.SegmentsOut - from.SegmentsOut); segments > 0 {
				set("answers-per-packet", received/window*to.At.Sub(from.At).Seconds()/float64(len(app.Ping))/segments)
			}
		}
		in.setGCAndSchedulerFigures(set)
		if check := in.Run.FindPhase(scenario.Verify); check != nil && check.Result != nil {
			set("unanswered", float64(check.Result.Unanswered))
		}
	},
}
