package lab

import (
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/page"
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
	// Foreign is how many CPUs anything but server, load and lab kept busy.
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
	s.Foreign = r.foreignIn(from, to)
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
	return found
}

// heartbeatTable is the table of a Heartbeats workload. Not every server can hold
// all connections: for comparison its CPU time is also given for as many as the
// workload asks for, in proportion.
func heartbeatTable(rows []row, w Workload) *page.Table {
	scaled := beatCPU
	scaled.read = func(r *RunRecord) (float64, bool) {
		cpu, ok := beatCPU.read(r)
		if !ok {
			return 0, false
		}
		return cpu * float64(w.Connections) / float64(r.Heartbeats.Connections), true
	}
	t := &page.Table{}
	t.Add("subject", "connections", "CPU of one", "±", "CPU per "+thousands(float64(w.Connections)),
		"heartbeats/s", "each in "+w.Duration.Round(time.Millisecond).String(), "CPU µs/heartbeat", "RSS bytes/conn", "marks")
	for _, r := range rows {
		addMarked(t, r, r.subject, r.cell(beatConns), r.cell(beatCPU), r.spread(beatCPU),
			r.cell(scaled), r.cell(beatRate), r.cell(beatsEach),
			r.cell(cpuPerBeat), r.cell(beatRSS))
	}
	return t
}
