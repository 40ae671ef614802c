package lab

import "time"

// reading reads a figure off a run, and says false where the run has none.
type reading func(*RunRecord) (float64, bool)

// of reads a value off a part of a run, where the run has that part.
func of[T any](part func(*RunRecord) *T, value func(*T) float64) reading {
	return func(r *RunRecord) (float64, bool) {
		p := part(r)
		if p == nil {
			return 0, false
		}
		return value(p), true
	}
}

// known is a reading of which 0 means that it is not known.
func known(read reading) reading {
	return func(r *RunRecord) (float64, bool) {
		v, ok := read(r)
		return v, ok && v != 0
	}
}

// notShrunk is a reading of memory of which less than 0 means that others gave some back
// meanwhile: it is not known then.
func notShrunk(read reading) reading {
	return func(r *RunRecord) (float64, bool) {
		v, ok := read(r)
		return v, ok && v >= 0
	}
}

// The parts of a run.
func throughputOf(r *RunRecord) *ThroughputFigures { return r.Throughput }
func floodOf(r *RunRecord) *FloodFigures           { return r.Flood }
func idleOf(r *RunRecord) *IdleFigures             { return r.Idle }
func parkedOf(r *RunRecord) *ParkedFigures         { return r.Parked }
func beatsOf(r *RunRecord) *HeartbeatFigures       { return r.Heartbeats }
func heldOf(r *RunRecord) *MillionRun              { return r.Million }
func soakOf(r *RunRecord) *SoakFigures             { return r.Soak }

func serverOf(r *RunRecord) *ServerFigures {
	switch {
	case r.Throughput != nil:
		return r.Throughput.Server
	case r.Flood != nil:
		return r.Flood.Server
	}
	return nil
}

func memoryOf(r *RunRecord) *MemoryFigures {
	if r.Idle == nil {
		return nil
	}
	return r.Idle.Memory
}

func fullOf(r *RunRecord) *FullFigures {
	if r.Idle == nil {
		return nil
	}
	return r.Idle.Full
}

func beatServerOf(r *RunRecord) *HeartbeatServer {
	if r.Heartbeats == nil {
		return nil
	}
	return r.Heartbeats.Server
}

// overloaded is a run that has a result.
func overloadOf(r *RunRecord) *OverloadRun {
	if r.Overload == nil || r.Overload.Result == nil {
		return nil
	}
	return r.Overload
}

// The latencies, in seconds, are of messages or of jobs, whichever the run has.
var (
	readP50  = either(func(f *ThroughputFigures) time.Duration { return f.P50 }, runP50)
	readMean = either((*ThroughputFigures).mean, func(o *OverloadRun) float64 { return ran(o.Result.Mean) })
)

var messageP99 = either(func(f *ThroughputFigures) time.Duration { return f.P99 }, runP99)

func readP99(r *RunRecord) (float64, bool) {
	if r.Soak != nil {
		return r.Soak.P99, true
	}
	return messageP99(r)
}

// either reads seconds off a throughput run, or off one under overload, where it is in
// nanoseconds.
func either(message func(*ThroughputFigures) time.Duration, job func(*OverloadRun) float64) reading {
	return func(r *RunRecord) (float64, bool) {
		if f := r.Throughput; f != nil {
			return message(f).Seconds(), true
		}
		v, ok := of(overloadOf, job)(r)
		return v / float64(time.Second), ok
	}
}

// mean is the mean latency, which is what InFlight was worked out from.
func (f *ThroughputFigures) mean() time.Duration {
	if f.TPS <= 0 {
		return 0
	}
	return time.Duration(f.InFlight / f.TPS * float64(time.Second))
}

// minute is so many bytes as they would be in a minute.
func (f *FloodFigures) minute(bytes int64) float64 {
	if f.Window <= 0 {
		return 0
	}
	return float64(bytes) / f.Window * 60
}

// ofSample reads what was sampled at a moment; 0 is not known.
func ofSample(m Moment, read func(*Sample) int64) reading {
	return known(of(func(r *RunRecord) *Sample { return r.sample(m) }, func(s *Sample) float64 { return float64(read(s)) }))
}

// ofGo reads what Go said at a moment.
func ofGo(m Moment, read func(*GoMemory) int64) reading {
	return known(of(func(r *RunRecord) *GoMemory { return r.goMemory(m) }, func(g *GoMemory) float64 { return float64(read(g)) }))
}

func stackInuse(m *GoMemory) int64 { return m.StackInuse }
func heapInuse(m *GoMemory) int64  { return m.HeapInuse }
func goSys(m *GoMemory) int64      { return m.Sys }
func rss(s *Sample) int64          { return s.RSS }
func pss(s *Sample) int64          { return s.PSS }

// readCPUPerBeat is the server's CPU time for each heartbeat, in microseconds, all that
// it did included; a server that sends none has no such figure.
func readCPUPerBeat(r *RunRecord) (float64, bool) {
	s := beatServerOf(r)
	if s == nil || r.Heartbeats.Beats == 0 {
		return 0, false
	}
	return s.CPU() / r.Heartbeats.Beats * 1e6, true
}

// ofHolding reads what each connection takes that is held.
func ofHolding(read func(*MillionRun) (float64, bool)) reading {
	return func(r *RunRecord) (float64, bool) {
		if r.Million == nil {
			return 0, false
		}
		return read(r.Million)
	}
}

// ofPhase reads what happened a second in a phase of a run that holds connections.
func ofPhase(name string) reading {
	return known(of(func(r *RunRecord) *MillionPhase {
		if r.Million == nil {
			return nil
		}
		return r.Million.phase(name)
	}, func(p *MillionPhase) float64 { return p.Rate }))
}
