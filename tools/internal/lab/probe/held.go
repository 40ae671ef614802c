package probe

import (
	"time"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tools/internal/lab/app"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/load"
)

// The constants from Connected to Closed are the names of the phases of a run with long-open connections, in order.
// Each of them is also the name of the checkpoint at the end of the phase. The checkpoint Before is before the first
// connection. The checkpoint Left is after the exit of the server.
const (
	Before      = "before"
	Connected   = "connect"
	Verified    = "verify"
	Alone       = "hold"
	Broadcast   = "broadcast"
	Heartbeats  = "heartbeats"
	VerifyAgain = "verify again"
	Closed      = "close"
	Left        = "left"
)

// Tolerances for resources that a run leaves behind. Kernel caches and other processes also take some resources.
const (
	maxLeftKernelShare = 0.05
	maxLeftKernelBytes = 64 << 20
	maxLeftFiles       = 200
	// maxForeignCPUs limits the average number of CPUs that other processes use. If they use more, a run does not
	// report the resources that it left behind.
	maxForeignCPUs = 0.10
)

// heldProbe computes figures of runs with long-open connections.
var heldProbe = Probe{
	Figures: []Figure{
		{Name: "held", Heading: "connections held", Better: Higher, Main: true},
		{Name: "held-server", Heading: "server bytes/conn", Unit: page.Bytes, Better: Lower},
		{Name: "held-load", Heading: "generator bytes/conn", Unit: page.Bytes},
		{Name: "held-kernel", Heading: "kernel bytes/conn, both ends", Unit: page.Bytes, Better: Lower},
		{Name: "held-connects", Heading: "conn/s", Better: Higher},
		{Name: "held-echoes", Heading: "echoes/s", Better: Higher},
		{Name: "held-missing", Heading: "connections missing", Better: Lower, Hidden: true},
		{Name: "verify-missing", Heading: "answers missing or wrong", Better: Lower, Hidden: true},
		{Name: "heartbeats-lost", Heading: "heartbeats lost", Better: Lower, Hidden: true},
		{Name: "heartbeats-missing", Heading: "heartbeats missing", Better: Lower, Hidden: true},
		{Name: "broadcast-missing", Heading: "broadcasts missing or twice", Better: Lower, Hidden: true},
		{Name: "unclean", Heading: "connections left, refused, restarts", Better: Lower, Hidden: true},
		{Name: "left", Heading: "sockets, files and MiB left", Better: Lower, Hidden: true},
	},
	Measure: func(in RunInput, set func(string, float64)) {
		if in.Workload.FindPhase(scenario.Broadcast) != nil && in.Run.FindSample(Before) != nil {
			heldConnsRun{in, in.Run.LastLoadResult()}.setHeldConnFigures(set)
		}
	},
}

type heldConnsRun struct {
	RunInput
	result *load.Result
}

func (h heldConnsRun) setHeldConnFigures(set func(string, float64)) {
	r, before := h.Run, h.Run.FindSample(Before)
	if s := r.FindSample(Connected); s != nil && s.Counts != nil {
		open := s.Counts.Open
		set("held", float64(open))
		set("held-missing", float64(h.Workload.Connections)-float64(open))
	}
	if s := r.FindSample(Alone); s != nil && s.Counts != nil && s.Counts.Open > 0 {
		each := func(name string, of func(*result.Sample) int64) {
			set(name, float64(of(s)-of(before))/float64(s.Counts.Open))
		}
		each("held-server", func(s *result.Sample) int64 { return s.Server.Anonymous })
		each("held-load", func(s *result.Sample) int64 { return s.Load.Anonymous })
		each("held-kernel", (*result.Sample).KernelMemory)
	}
	if p := r.FindPhase(Connected); p != nil {
		set("held-connects", p.Rate)
	}
	if p := r.FindPhase(Verified); p != nil {
		set("held-echoes", p.Rate)
	}
	if h.result != nil {
		set("verify-missing", h.countFailedVerifications())
		h.setHeartbeatFigures(set)
		if p, open := r.FindPhase(Heartbeats), h.openConnsAfterConnect(); p != nil && p.Rate > 0 {
			set("beat-connections", float64(open))
			set("beats", p.Rate)
			set("beat-cpu-each", p.ServerCPU/p.Rate*1e6)
			set("beat-cpu-all", p.ServerCPU/p.Rate*float64(h.Workload.Connections)/h.Workload.HeartbeatInterval().Seconds())
		}
		if b := h.result.Broadcast; b != nil && r.Broadcaster != nil {
			missing := max(h.openConnsAfterConnect()-b.Heard, b.Heard-h.openConnsAfterConnect()) + b.Again
			if end := r.FindSample(Closed); end != nil && end.Counts != nil {
				missing += end.Counts.Dropped - before.Counts.Dropped
			}
			if r.Broadcaster.Error != "" {
				missing++
			}
			set("broadcast-missing", float64(missing))
		}
	}
	end, left := r.FindSample(Closed), r.FindSample(Left)
	if end == nil || left == nil || end.Counts == nil {
		return
	}
	set("unclean", float64(end.Counts.Open+end.Counts.Restarts+end.Counts.Refused-before.Counts.Refused))
	excess := ResourceLeakScore(r, left)
	if excess == 0 || h.foreignCPUs(before, end) <= maxForeignCPUs {
		set("left", excess)
	}
}

func (h heldConnsRun) openConnsAfterConnect() int64 {
	if s := h.Run.FindSample(Connected); s != nil && s.Counts != nil {
		return s.Counts.Open
	}
	return 0
}

func (h heldConnsRun) countFailedVerifications() float64 {
	n := sumCountsByCause(h.result.Lost) + h.result.Unexpected
	for _, c := range h.result.Verifications {
		n += h.openConnsAfterConnect() - c.Checked + c.Wrong
	}
	return float64(n + int64(2-len(h.result.Verifications))*h.openConnsAfterConnect())
}

func sumSentVerificationLines(result *load.Result) (n int64) {
	for _, c := range result.Verifications {
		n += c.Asked
	}
	return n
}

// CountHeartbeatsAndAnswers returns the number of heartbeats that the server has sent since the checkpoint Before, and
// the number of answers to heartbeats that it has received. now contains the server's current counters. The server
// counts verification lines in the same way as answers to heartbeats, so the caller must pass the number of
// verification lines. Heartbeats on the broadcaster's connection do not count.
func CountHeartbeatsAndAnswers(r *result.Run, now *result.Counts, verificationLines int64) (sent, answered int64) {
	before := r.FindSample(Before).Counts
	sent, answered = now.Heartbeats-before.Heartbeats, now.Messages-before.Messages-verificationLines
	if b := r.Broadcaster; b != nil {
		sent -= b.Heartbeats
		answered -= b.Messages
	}
	return sent, answered
}

func (h heldConnsRun) setHeartbeatFigures(set func(string, float64)) {
	again, closed := h.Run.FindSample(VerifyAgain), h.Run.FindSample(Closed)
	if again == nil || again.Counts == nil {
		return
	}
	lines, got := sumSentVerificationLines(h.result), h.result.Heartbeats
	sent, answered := CountHeartbeatsAndAnswers(h.Run, again.Counts, lines)
	every, hold := h.Workload.HeartbeatInterval(), time.Duration(0)
	for _, p := range h.Workload.Phases {
		if p.Heartbeat > 0 {
			hold = p.For.Std()
		}
	}
	set("heartbeats-missing", float64(max(h.openConnsAfterConnect()*int64(hold/max(every, 1))-sent, 0)))
	if closed == nil || closed.Counts == nil {
		return
	}
	atEnd, answeredAtEnd := CountHeartbeatsAndAnswers(h.Run, closed.Counts, lines)
	givenUp := closed.Counts.Unanswered - h.Run.FindSample(Before).Counts.Unanswered
	if h.Workload.App == app.WebSocket { // pongs are not counted; clients without pongs are closed
		answered, answeredAtEnd = sent, atEnd
	}
	h.Run.Logf("heartbeats: %d sent, %d answered, by the server's count; %d connections were given up; the generator got %d, of %d in all", sent, answered, givenUp, got, atEnd)
	took := time.Duration(0)
	if p := h.Run.FindPhase(VerifyAgain); p != nil {
		took = p.Took
	}
	switch {
	case sent <= 0 || givenUp > 0 || got < sent || got > atEnd:
		set("heartbeats-lost", float64(max(givenUp, sent-got, got-atEnd, 1)))
	case sent == answered, atEnd == answeredAtEnd && atEnd == got:
		set("heartbeats-lost", 0)
	case took <= every: // no heartbeat was in flight
		set("heartbeats-lost", float64(max(sent-answered, answered-sent)))
	case atEnd == got:
		set("heartbeats-lost", 0)
	}
}

// ResourceLeakScore compares the machine's resources with those at the checkpoint Before, and returns by how
// much their growth exceeds the permitted growth. The result is a sum of numbers with different units: excess sockets,
// excess open files, and excess kernel memory in MiB.
func ResourceLeakScore(r *result.Run, now *result.Sample) float64 {
	before := r.FindSample(Before)
	var most int64
	for i := range r.Samples {
		if s := &r.Samples[i]; s.Checkpoint != Left {
			most = max(most, s.KernelMemory()-before.KernelMemory())
		}
	}
	may := max(maxLeftKernelBytes, maxLeftKernelShare*float64(most))
	kernel := max(float64(now.KernelMemory()-before.KernelMemory())-may, 0) / (1 << 20)
	return float64(max(now.Sockets-before.Sockets-maxLeftFiles, 0)+max(now.TimeWait-before.TimeWait, 0)+max(now.Files-before.Files-maxLeftFiles, 0)) + kernel
}

func (h heldConnsRun) foreignCPUs(before, end *result.Sample) float64 {
	own := end.Server.CPU() - before.Server.CPU() + end.Load.CPU() - before.Load.CPU()
	return ratioOrZero(end.Busy-before.Busy-own, end.At.Sub(before.At))
}
