package lab

import "github.com/myriad-go/myriad/internal/page"

// figures are all that there are. A name is never given to another: reports and
// scenarios of users have them.
var figures = []Figure{
	tps, p50, p99, meanLatency, inFlight, expectedInFlight, serverCPU, serverBusy, loadBusy,
	bytesIdle, bytesExchanged, kernelIdle, kernelExchanged, dialRate,
	rssHeld, rssExchanged, pssExchanged, stackExchanged, heapExchanged, sysHeld, sysExchanged,
	fullProcesses, fullIdleRSS, fullIdleAnonymous, fullExchangedRSS, fullExchangedAnonymous,
	fullIdleKernel, fullExchangedKernel, fullExchangedMachine,
	parkedStackInuse, parkedSys, parkedRSS, parkedPSS, parkedStack, parkedAnonymous,
	beatConns, beatCPU, beatRate, beatsEach, cpuPerBeat, beatRSS,

	floodSent, floodReceived, floodEach, floodDown, floodUp, packetsDown, packetsUp, floodUnanswered, floodConnections, floodCPU,
	{"sent-minute", "MiB sent a minute", page.Bytes, Neither, mebibytes, of(floodOf, func(f *FloodFigures) float64 { return f.minute(f.Sent) })},
	{"received-minute", "MiB received a minute", page.Bytes, Higher, mebibytes, of(floodOf, func(f *FloodFigures) float64 { return f.minute(f.Received) })},

	offered, finished, rejected, expired, shed, goodput, ofCapacity, offeredTimes, jobP999,
	peakMemory, peakGoroutines, peakWorkers, coresUsed,

	{"held", "connections held", page.Number, Higher, nil, known(of(heldOf, func(m *MillionRun) float64 { return float64(m.held()) }))},
	{"held-server", "server bytes/conn", page.Bytes, Lower, nil, ofHolding((*MillionRun).userBytes)},
	{"held-load", "generator bytes/conn", page.Bytes, Neither, nil, ofHolding((*MillionRun).loadBytes)},
	{"held-kernel", "kernel bytes/conn, both ends", page.Bytes, Lower, nil, ofHolding((*MillionRun).kernelBytes)},
	{"held-machine", "machine bytes/conn", page.Bytes, Lower, nil, ofHolding((*MillionRun).freeBytes)},
	{"held-connects", "conn/s", page.Number, Higher, nil, ofPhase(phaseConnect)},
	{"held-echoes", "echoes/s", page.Number, Higher, nil, ofPhase(phaseCheck)},

	{"answers", "answers", page.Number, Higher, nil, of(soakOf, func(f *SoakFigures) float64 { return float64(f.Answers) })},
	{"errors", "errors", page.Number, Lower, nil, of(soakOf, func(f *SoakFigures) float64 { return float64(f.Errors) })},
}

// The figures that tables of this package have.
var (
	tps              = Figure{"tps", "TPS", page.Number, Higher, nil, of(throughputOf, func(f *ThroughputFigures) float64 { return f.TPS })}
	inFlight         = Figure{"in-flight", "in flight", page.Number, Neither, messages, of(throughputOf, func(f *ThroughputFigures) float64 { return f.InFlight })}
	expectedInFlight = Figure{"expected", "expected", page.Number, Neither, nil, of(throughputOf, func(f *ThroughputFigures) float64 { return float64(f.Expected) })}
	loadBusy         = Figure{"load-busy", "load CPU", page.Share, Neither, nil, of(throughputOf, func(f *ThroughputFigures) float64 { return f.LoadBusy })}
	p50              = Figure{"p50", "p50", page.Seconds, Lower, nil, readP50}
	p99              = Figure{"p99", "p99", page.Seconds, Lower, nil, readP99}
	meanLatency      = Figure{"mean", "mean latency", page.Seconds, Lower, nil, readMean}
	serverCPU        = Figure{"cpu", "CPU µs/msg", page.Number, Lower, twoDecimals, of(serverOf, (*ServerFigures).CPU)}
	serverBusy       = Figure{"server-busy", "server CPU", page.Share, Neither, nil, of(serverOf, func(f *ServerFigures) float64 { return f.Busy })}

	bytesIdle       = Figure{"bytes-idle", "bytes/conn idle", page.Bytes, Lower, nil, of(memoryOf, func(f *MemoryFigures) float64 { return f.Idle })}
	bytesExchanged  = Figure{"bytes-exchanged", "bytes/conn after one exchange", page.Bytes, Lower, nil, of(memoryOf, func(f *MemoryFigures) float64 { return f.Exchanged })}
	kernelIdle      = Figure{"kernel-idle", "kernel slab bytes/conn, both ends", page.Bytes, Lower, nil, notShrunk(of(memoryOf, func(f *MemoryFigures) float64 { return f.KernelIdle }))}
	kernelExchanged = Figure{"kernel-exchanged", "kernel slab after one exchange", page.Bytes, Lower, nil, notShrunk(of(memoryOf, func(f *MemoryFigures) float64 { return f.KernelExchanged }))}
	dialRate        = Figure{"dial-rate", "dial conn/s", page.Number, Higher, nil, of(idleOf, func(f *IdleFigures) float64 { return f.DialRate })}

	rssHeld        = Figure{"rss-idle", "RSS MiB, idle", page.Bytes, Lower, mebibytes, ofSample(Held, rss)}
	rssExchanged   = Figure{"rss", "RSS MiB", page.Bytes, Lower, mebibytes, ofSample(Exchanged, rss)}
	pssExchanged   = Figure{"pss", "PSS MiB", page.Bytes, Lower, mebibytes, ofSample(Exchanged, pss)}
	stackExchanged = Figure{"stack", "StackInuse", page.Bytes, Lower, mebibytes, ofGo(Exchanged, stackInuse)}
	heapExchanged  = Figure{"heap", "HeapInuse", page.Bytes, Lower, mebibytes, ofGo(Exchanged, heapInuse)}
	sysHeld        = Figure{"sys-idle", "Sys MiB, idle", page.Bytes, Lower, mebibytes, ofGo(Held, goSys)}
	sysExchanged   = Figure{"sys", "Sys MiB", page.Bytes, Lower, mebibytes, ofGo(Exchanged, goSys)}

	fullProcesses          = Figure{"processes", "processes", page.Number, Neither, nil, of(fullOf, func(f *FullFigures) float64 { return float64(f.Processes) })}
	fullIdleRSS            = Figure{"full-rss-idle", "idle: RSS", page.Bytes, Lower, nil, of(fullOf, func(f *FullFigures) float64 { return f.Idle.RSS })}
	fullIdleAnonymous      = Figure{"full-anonymous-idle", "anonymous", page.Bytes, Lower, nil, of(fullOf, func(f *FullFigures) float64 { return f.Idle.Anonymous })}
	fullExchangedRSS       = Figure{"full-rss", "exchanged: RSS", page.Bytes, Lower, nil, of(fullOf, func(f *FullFigures) float64 { return f.Exchanged.RSS })}
	fullExchangedAnonymous = Figure{"full-anonymous", "anonymous", page.Bytes, Lower, nil, of(fullOf, func(f *FullFigures) float64 { return f.Exchanged.Anonymous })}
	fullIdleKernel         = Figure{"full-kernel-idle", "all idle", page.Bytes, Lower, nil, notShrunk(of(fullOf, func(f *FullFigures) float64 { return f.Idle.Kernel }))}
	fullExchangedKernel    = Figure{"full-kernel", "all exchanged", page.Bytes, Lower, nil, notShrunk(of(fullOf, func(f *FullFigures) float64 { return f.Exchanged.Kernel }))}
	fullExchangedMachine   = Figure{"full-machine", "machine", page.Bytes, Lower, nil, of(fullOf, func(f *FullFigures) float64 { return f.Exchanged.Machine })}

	floodSent        = Figure{"sent", "sent MiB", page.Bytes, Neither, mebibytes, of(floodOf, func(f *FloodFigures) float64 { return float64(f.Sent) })}
	floodReceived    = Figure{"received", "received MiB", page.Bytes, Higher, mebibytes, of(floodOf, func(f *FloodFigures) float64 { return float64(f.Received) })}
	floodEach        = Figure{"per-connection", "kB/s each", page.Bytes, Higher, kilobytes, of(floodOf, func(f *FloodFigures) float64 { return f.PerConnection })}
	floodDown        = Figure{"down", "down Mbps", page.Number, Higher, megabits, of(floodOf, func(f *FloodFigures) float64 { return f.Down })}
	floodUp          = Figure{"up", "up Mbps", page.Number, Neither, megabits, of(floodOf, func(f *FloodFigures) float64 { return f.Up })}
	packetsDown      = Figure{"packets-down", "packets/s down", page.Number, Neither, nil, known(of(floodOf, func(f *FloodFigures) float64 { return f.PacketsDown }))}
	packetsUp        = Figure{"packets-up", "packets/s up", page.Number, Neither, nil, known(of(floodOf, func(f *FloodFigures) float64 { return f.PacketsUp }))}
	floodUnanswered  = Figure{"unanswered", "unanswered", page.Number, Lower, nil, of(floodOf, func(f *FloodFigures) float64 { return float64(f.Unanswered) })}
	floodConnections = Figure{"flood-connections", "connections", page.Number, Neither, nil, func(r *RunRecord) (float64, bool) {
		if r.Flood == nil || r.Result == nil {
			return 0, false
		}
		return float64(r.Result.Connected), true
	}}
	floodCPU = Figure{"flood-cpu", "CPU µs/answer", page.Number, Lower, twoDecimals, func(r *RunRecord) (float64, bool) {
		if r.Flood == nil || r.Flood.Server == nil || r.Flood.Lines == 0 {
			return 0, false
		}
		return r.Flood.Server.CPU(), true
	}}

	parkedStackInuse = Figure{"parked-stack", "StackInuse MiB", page.Bytes, Lower, mebibytes, ofGo(Parked, stackInuse)}
	parkedSys        = Figure{"parked-sys", "Sys MiB", page.Bytes, Lower, mebibytes, ofGo(Parked, goSys)}
	parkedRSS        = Figure{"parked-rss", "RSS MiB", page.Bytes, Lower, mebibytes, ofSample(Parked, rss)}
	parkedPSS        = Figure{"parked-pss", "PSS MiB", page.Bytes, Lower, mebibytes, ofSample(Parked, pss)}
	parkedStack      = Figure{"goroutine-stack", "stack bytes each", page.Bytes, Lower, nil, of(parkedOf, func(f *ParkedFigures) float64 { return f.Stack })}
	parkedAnonymous  = Figure{"goroutine-anonymous", "anonymous bytes each", page.Bytes, Lower, nil, known(of(parkedOf, func(f *ParkedFigures) float64 { return f.Anonymous }))}

	beatConns  = Figure{"beat-connections", "connections", page.Number, Neither, nil, of(beatsOf, func(f *HeartbeatFigures) float64 { return float64(f.Connections) })}
	beatRate   = Figure{"beats", "heartbeats/s", page.Number, Neither, nil, of(beatsOf, func(f *HeartbeatFigures) float64 { return f.Beats })}
	beatsEach  = Figure{"beats-each", "heartbeats each", page.Number, Neither, twoDecimals, of(beatsOf, func(f *HeartbeatFigures) float64 { return f.Each })}
	beatCPU    = Figure{"beat-cpu", "CPU of one", page.Share, Lower, finePercent, of(beatServerOf, (*HeartbeatServer).CPU)}
	beatRSS    = Figure{"beat-rss", "RSS bytes/conn", page.Bytes, Lower, nil, of(beatServerOf, func(s *HeartbeatServer) float64 { return s.RSS })}
	cpuPerBeat = Figure{"beat-cpu-each", "CPU µs/heartbeat", page.Number, Lower, twoDecimals, readCPUPerBeat}
)
