package lab

import (
	"slices"
	"time"

	"github.com/myriad-go/myriad/load"
)

// RunRecord is one run, raw: one subject under one workload in one round.
type RunRecord struct {
	Workload string `json:"workload"`
	Subject  string `json:"subject"`
	// Round counts from 1.
	Round   int           `json:"round"`
	Started time.Time     `json:"started"`
	Took    time.Duration `json:"took"`
	// Beating says that the server was told to send heartbeats.
	Beating bool `json:"beating,omitempty"`
	// Processes is how many processes the server was told to have.
	Processes int `json:"processes,omitempty"`
	// Command and Load are the command lines of the server and of the load
	// generator as they were started.
	Command []string `json:"command"`
	Load    []string `json:"load,omitempty"`
	// Error says why the run failed, "" when it did not. The figures of a
	// failed run are not part of any median.
	Error string `json:"error,omitempty"`
	// Skipped says why the run was not made, "" when it was. It has no
	// figures then, and did not fail.
	Skipped string `json:"skipped,omitempty"`
	// Marks are the rules that the run broke.
	Marks []Mark `json:"marks,omitempty"`
	// Throughput, Idle, Heartbeats or Parked is set, by the workload's kind,
	// unless the run failed; one that failed for wrong answers has it too.
	Throughput *ThroughputFigures `json:"throughput,omitempty"`
	Idle       *IdleFigures       `json:"idle,omitempty"`
	Heartbeats *HeartbeatFigures  `json:"heartbeats,omitempty"`
	Parked     *ParkedFigures     `json:"parked,omitempty"`
	// Result is what the load generator saw, nil when it did not get so far.
	Result *load.Result `json:"result,omitempty"`
	// Samples are in the order of time. There are none where /proc is not
	// available.
	Samples []Sample `json:"samples,omitempty"`
	// Attempt counts from 1: a run that something else on the machine has disturbed is
	// made again. Superseded says that it was: its figures are shown with its marks, and
	// are part of no median.
	Attempt    int  `json:"attempt,omitempty"`
	Superseded bool `json:"superseded,omitempty"`
	// Timeline is in the order of time.
	Timeline []Tick `json:"timeline,omitempty"`
	// Captured are the files with a trace or a profile of the server, in the directory
	// of the report.
	Captured []string `json:"captured,omitempty"`
	// Flood, Overload, Million or Soak is set, by the workload's kind, as Throughput is.
	Flood    *FloodFigures `json:"flood,omitempty"`
	Overload *OverloadRun  `json:"overload,omitempty"`
	Million  *MillionRun   `json:"million,omitempty"`
	Soak     *SoakFigures  `json:"soak,omitempty"`
	// Foreign is how many CPUs anything but the lab and what it had started kept busy
	// from the begin of the run to its end, 0 also where the system does not tell. Where
	// figures are of a window, they have their own.
	Foreign float64 `json:"foreign,omitempty"`
	// Stolen is how many of them the host of a virtual machine took.
	Stolen float64 `json:"stolen,omitempty"`
}

// ThroughputFigures are worked out of a run under a Throughput workload.
type ThroughputFigures struct {
	// TPS is answered messages a second.
	TPS float64 `json:"tps"`
	// P50 and P99 are the run's latencies.
	P50 time.Duration `json:"p50"`
	P99 time.Duration `json:"p99"`
	// InFlight is rate × mean latency (Little's law), Expected is
	// connections × pipeline.
	InFlight float64 `json:"in_flight"`
	Expected int     `json:"expected"`
	// LoadBusy is the part of its CPUs that the load generator used, 1
	// being all that it could have kept busy.
	LoadBusy float64 `json:"load_busy"`
	// Server is what was sampled of the server, nil where /proc is not
	// available.
	Server *ServerFigures `json:"server,omitempty"`
	// Bottleneck is "server", "load", "both" or "neither" by whose CPUs
	// were at least 95 % busy, and "unknown" when that cannot be told: not
	// sampled, or not pinned.
	Bottleneck string `json:"bottleneck"`
}

// ServerFigures are worked out of a server's samples in the window.
type ServerFigures struct {
	// UserCPU and SystemCPU are microseconds of processor time for each
	// answered message.
	UserCPU   float64 `json:"user_cpu"`
	SystemCPU float64 `json:"system_cpu"`
	// Busy is the part of its CPUs that the server used, 1 being all.
	Busy float64 `json:"busy"`
	// Foreign is how many CPUs anything but server, load and lab kept busy.
	Foreign float64 `json:"foreign"`
	// Connections is how many connections the server had open.
	Connections int `json:"connections"`
}

// CPU is the server's microseconds for each answered message.
func (f *ServerFigures) CPU() float64 { return f.UserCPU + f.SystemCPU }

// IdleFigures are worked out of a run under an Idle workload.
type IdleFigures struct {
	// DialRate is established connections a second.
	DialRate float64 `json:"dial_rate"`
	// Memory is what was sampled, nil where /proc is not available.
	Memory *MemoryFigures `json:"memory,omitempty"`
	// Full is set too, for a workload that asks for it.
	Full *FullFigures `json:"full,omitempty"`
}

// MemoryFigures are bytes for each connection.
type MemoryFigures struct {
	// Idle is the server's resident memory for each connection that has
	// never sent anything, Exchanged the same after one exchange.
	Idle      float64 `json:"idle"`
	Exchanged float64 `json:"exchanged"`
	// KernelIdle and KernelExchanged are the kernel's slab for each
	// connection, both ends of it together.
	KernelIdle      float64 `json:"kernel_idle"`
	KernelExchanged float64 `json:"kernel_exchanged"`
	// Connections is how many connections the server had open when the
	// first of these was sampled.
	Connections int `json:"connections"`
}

// sample returns the sample of a moment, or nil.
func (r *RunRecord) sample(m Moment) *Sample {
	for i := range r.Samples {
		if r.Samples[i].Moment == m {
			return &r.Samples[i]
		}
	}
	return nil
}

// judge works out the figures and the marks of a run that did not fail. With a wrong answer
// it has failed: its figures are of another server than the one that was asked for, whatever
// else the machine did.
func (r *RunRecord) judge(w Workload, pinning Pinning) {
	r.workOut(w, pinning)
	if r.Error == "" && slices.ContainsFunc(r.Marks, func(m Mark) bool { return m.Rule == RuleMismatch }) {
		r.Error = "the server answered wrongly"
		return
	}
	r.markNoise(w.Kind)
}

// workOut is judge, but for what else the machine did.
func (r *RunRecord) workOut(w Workload, pinning Pinning) {
	if k := kinds[w.Kind]; k.judge != nil {
		k.judge(r, w)
		return
	}
	if w.Kind == Parking {
		r.Parked = r.parkedFigures(w)
		return
	}
	if r.Result == nil {
		return
	}
	switch w.Kind {
	case Idle:
		r.Idle = r.idleFigures()
		if w.Full {
			r.Idle.Full = r.fullFigures()
		}
	case Heartbeats:
		r.Heartbeats = r.heartbeatFigures()
	default:
		r.Throughput = r.throughputFigures(w, pinning)
	}
	r.Marks = append(r.Marks, marks(r, w)...)
}

func (r *RunRecord) throughputFigures(w Workload, pinning Pinning) *ThroughputFigures {
	f := &ThroughputFigures{
		TPS:        r.Result.Rate(),
		P50:        r.Result.Latency.P50,
		P99:        r.Result.Latency.P99,
		InFlight:   r.Result.InFlight(),
		Expected:   w.InFlight(),
		LoadBusy:   r.Result.CPUShare(),
		Bottleneck: "unknown",
	}
	f.Server = r.serverFigures(pinning)
	if f.Server != nil && pinning.Pinned() {
		f.Bottleneck = bottleneck(f.Server.Busy, f.LoadBusy)
	}
	return f
}

func (r *RunRecord) serverFigures(pinning Pinning) *ServerFigures {
	return r.serverFiguresAt(r.Result.Rate(), pinning)
}

// serverFiguresAt are those of a server that answers so many messages a second. It
// works with rates, not with amounts: the samples are taken a moment after the
// window's begin and end, so the time between them differs from the window a little.
func (r *RunRecord) serverFiguresAt(rate float64, pinning Pinning) *ServerFigures {
	from, to := r.sample(Measuring), r.sample(Measured)
	if from == nil || to == nil {
		return nil
	}
	between := to.At.Sub(from.At)
	server := part(to.CPU()-from.CPU(), between)
	f := &ServerFigures{
		Busy:    server / float64(width(pinning.Server)),
		Foreign: r.foreignIn(from, to),
	}
	if rate > 0 {
		f.UserCPU = part(to.User-from.User, between) / rate * 1e6
		f.SystemCPU = part(to.System-from.System, between) / rate * 1e6
	}
	f.Connections = from.Accepted
	if ready := r.sample(Ready); ready != nil && from.Sockets > 0 {
		f.Connections = from.Sockets - ready.Sockets // the kernel did not tell the other
	}
	return f
}

func (r *RunRecord) idleFigures() *IdleFigures {
	f := &IdleFigures{}
	if r.Result.ConnectTime > 0 {
		f.DialRate = float64(r.Result.Connected) / r.Result.ConnectTime.Seconds()
	}
	base, held, exchanged := r.sample(Touched), r.sample(Held), r.sample(Exchanged)
	if base == nil || held == nil || exchanged == nil || r.Result.Connected == 0 {
		return f
	}
	n := float64(r.Result.Connected)
	f.Memory = &MemoryFigures{
		Idle:            float64(held.RSS-base.RSS) / n,
		Exchanged:       float64(exchanged.RSS-base.RSS) / n,
		KernelIdle:      float64(held.Slab-base.Slab) / n,
		KernelExchanged: float64(exchanged.Slab-base.Slab) / n,
		Connections:     held.holds() - base.holds(),
	}
	return f
}

// bottleneck names whose CPUs were at least 95 % busy.
func bottleneck(server, load float64) string {
	const full = 0.95
	switch {
	case server >= full && load >= full:
		return "both"
	case server >= full:
		return "server"
	case load >= full:
		return "load"
	default:
		return "neither"
	}
}

// part is d as a part of whole, 0 when there is no whole.
func part(d, whole time.Duration) float64 {
	if whole <= 0 {
		return 0
	}
	return float64(d) / float64(whole)
}
