package lab

import (
	"fmt"
	"time"
)

// HeartbeatFigures are worked out of a run under a Heartbeats workload.
type HeartbeatFigures struct {
	// Connections is how many there were.
	Connections int `json:"connections"`
	// Beats is how many heartbeats a second have reached the clients, Each
	// how many each of them has had in the window.
	Beats float64 `json:"beats"`
	Each  float64 `json:"each"`
	// Server is what was sampled of the server, nil where /proc is not
	// available.
	Server *HeartbeatServer `json:"server,omitempty"`
}

// HeartbeatServer is what heartbeats cost their server.
type HeartbeatServer struct {
	// UserCPU and SystemCPU are the CPUs that it used, 1 for one.
	UserCPU   float64 `json:"user_cpu"`
	SystemCPU float64 `json:"system_cpu"`
	// RSS is its resident memory in bytes for each connection.
	RSS float64 `json:"rss"`
	// Foreign is how many CPUs anything but server and load kept busy.
	Foreign float64 `json:"foreign"`
}

// CPU is user and system time together.
func (s *HeartbeatServer) CPU() float64 { return s.UserCPU + s.SystemCPU }

func (r *RunRecord) heartbeatFigures() *HeartbeatFigures {
	f := &HeartbeatFigures{Connections: r.Result.Connected, Beats: r.Result.Rate()}
	from, to, ready := r.sample(Measuring), r.sample(Measured), r.sample(Ready)
	if f.Connections == 0 {
		return f
	}
	f.Each = float64(r.Result.Answered) / float64(f.Connections)
	if from == nil || to == nil || ready == nil {
		return f
	}
	between := to.At.Sub(from.At)
	s := &HeartbeatServer{
		UserCPU:   part(to.User-from.User, between),
		SystemCPU: part(to.System-from.System, between),
		RSS:       float64(to.RSS-ready.RSS) / float64(f.Connections),
	}
	load := part(r.Result.UserCPU+r.Result.SystemCPU, r.Result.Window)
	s.Foreign = max(0, part(to.Busy-from.Busy, between)-s.CPU()-load)
	f.Server = s
	return f
}

// marks lists the rules that heartbeats broke.
func (f *HeartbeatFigures) marks(beating bool, w Workload) (found []Mark) {
	expected := 0
	if beating {
		expected = w.beats()
	}
	if f.Each < float64(expected)*(1-beatsTolerance) || !beating && f.Each > 0 {
		found = append(found, Mark{RuleBeats, fmt.Sprintf("%.2f heartbeats on each connection in %v, expected %d",
			f.Each, w.Duration, expected)})
	}
	if s := f.Server; s != nil && s.Foreign > noiseTolerance {
		found = append(found, Mark{RuleNoise, fmt.Sprintf("other processes used %.0f %% of a CPU", s.Foreign*100)})
	}
	return found
}

// ofBeats makes a figure of a run with heartbeats.
func ofBeats(read func(*HeartbeatFigures) float64) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Heartbeats == nil {
			return 0, false
		}
		return read(r.Heartbeats), true
	}
}

// ofBeating makes a figure of what was sampled of its server.
func ofBeating(read func(*HeartbeatFigures) float64) figure {
	return func(r *RunRecord) (float64, bool) {
		if r.Heartbeats == nil || r.Heartbeats.Server == nil {
			return 0, false
		}
		return read(r.Heartbeats), true
	}
}

var (
	beatConns = ofBeats(func(f *HeartbeatFigures) float64 { return float64(f.Connections) })
	beatRate  = ofBeats(func(f *HeartbeatFigures) float64 { return f.Beats })
	beatsEach = ofBeats(func(f *HeartbeatFigures) float64 { return f.Each })
	beatCPU   = ofBeating(func(f *HeartbeatFigures) float64 { return f.Server.CPU() })
	beatRSS   = ofBeating(func(f *HeartbeatFigures) float64 { return f.Server.RSS })
)

// cpuPerBeat is the server's CPU time for each heartbeat, all that it did
// included; a server that sends none has no such figure.
func cpuPerBeat(r *RunRecord) (float64, bool) {
	cpu, ok := beatCPU(r)
	if !ok || r.Heartbeats.Beats == 0 {
		return 0, false
	}
	return cpu / r.Heartbeats.Beats * 1e6, true
}

// heartbeatTable is the table of a Heartbeats workload. Not every server can hold
// all connections: for comparison its CPU time is also given for as many as the
// workload asks for, in proportion.
func heartbeatTable(rows []row, w Workload) *table {
	scaled := ofBeating(func(f *HeartbeatFigures) float64 {
		return f.Server.CPU() * float64(w.Connections) / float64(f.Connections)
	})
	t := &table{}
	t.add("subject", "connections", "CPU of one", "±", "CPU per "+thousands(float64(w.Connections)),
		"heartbeats/s", "each in "+w.Duration.Round(time.Millisecond).String(), "CPU µs/heartbeat", "RSS bytes/conn", "marks")
	for _, r := range rows {
		t.add(r.subject, r.median(beatConns, thousands), r.median(beatCPU, finePercent), r.spread(beatCPU),
			r.median(scaled, finePercent), r.median(beatRate, thousands), r.median(beatsEach, twoDecimals),
			r.median(cpuPerBeat, twoDecimals), r.median(beatRSS, thousands), r.marks())
	}
	return t
}

func finePercent(v float64) string { return fmt.Sprintf("%.2f %%", v*100) }
