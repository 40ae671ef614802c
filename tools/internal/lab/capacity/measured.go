// Package capacity plans machines for many connections, based on measurements with fewer. docs/capacity.md explains the
// arithmetic. Except for the functions that write text, all functions are pure.
package capacity

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/myriad-go/myriad/tools/internal/lab/probe"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/lab/stats"
	"github.com/myriad-go/myriad/tools/load"
)

// MeasuredCosts contains the resources that a server needed, as medians over the rounds.
type MeasuredCosts struct {
	// Subject is the name of the server, Model its I/O model, and Loops its number of event loops. App is the app that
	// the server ran, with messages of Size bytes. Unknown names are "", and an unknown Loops is 0.
	Subject     string `json:"subject,omitempty"`
	Model       string `json:"model,omitempty"`
	Loops       int    `json:"loops,omitempty"`
	App         string `json:"app,omitempty"`
	Size        int    `json:"size"`
	TLS         bool   `json:"tls,omitempty"`
	Connections int    `json:"connections"`
	// Base is the resident memory of the process without connections, in bytes. BytesPerConn is the additional memory
	// per idle connection. Kernel is the memory of the kernel's small objects for both ends of a connection, or 0 if it
	// was not measured.
	Base         float64 `json:"base"`
	BytesPerConn float64 `json:"each"`
	Kernel       float64 `json:"kernel,omitempty"`
	// Connect is the server's processor time to establish a connection, or 0 if it was not measured.
	Connect time.Duration `json:"connect,omitempty"`
	// IdleCoresPerConn is the number of processors that an idle connection keeps busy, or 0 if unknown.
	// MaxIdleCoresPerConn is an upper limit of this number if only the limit is known, and otherwise 0.
	IdleCoresPerConn    float64 `json:"idle,omitempty"`
	MaxIdleCoresPerConn float64 `json:"idle_most,omitempty"`
	// Points contains the costs of messages, by ascending rate.
	Points []Point `json:"points"`
	// Caveats lists the rules that the measured runs have broken.
	Caveats []string `json:"marked,omitempty"`
}

// Point contains a server's costs at one message rate.
type Point struct {
	// Rate is the number of messages per second, each with an answer. Cores is the number of processors that the server
	// kept busy. Cores never decreases from one point to the next.
	Rate  float64 `json:"rate"`
	Cores float64 `json:"cores"`
	// Buffers is the additional resident memory of the process, in bytes, compared with idle connections.
	Buffers float64 `json:"buffers"`
}

type measuredSetup struct {
	scenario, subject, app   string
	size, loops, connections int
	tls                      bool
}

// MeasurementsFromBench returns the measurements of a bench, in the order of the runs. It skips runs that lack a
// required figure. If none is left, it returns an error.
func MeasurementsFromBench(set *result.Set) ([]MeasuredCosts, error) {
	var keys []measuredSetup
	groups := make(map[measuredSetup][]*result.Run)
	for _, report := range set.Reports {
		for i := range report.Runs {
			run := &report.Runs[i]
			w := report.Scenario.FindWorkload(run.Workload)
			if w == nil || !hasCapacityFigures(run, w) {
				continue
			}
			loops, _ := strconv.Atoi(flagValue(run.Command, "--loops"))
			k := measuredSetup{report.Scenario.Name, run.Subject, w.App, w.Size, loops, run.LastLoadResult().Connected, w.TLS}
			if groups[k] == nil {
				keys = append(keys, k)
			}
			groups[k] = append(groups[k], run)
		}
	}
	var all []MeasuredCosts
	for _, k := range keys {
		all = append(all, k.measuredMedians(groups[k]))
	}
	if len(all) == 0 {
		return nil, errors.New("no run measured both memory and messages; expected a report of `myriad bench capacity`, or of a scenario with the phases connect, verify, connect, hold, load, hold")
	}
	return all, nil
}

func flagValue(command []string, flag string) string {
	if i := slices.Index(command, flag); i >= 0 && i+1 < len(command) {
		return command[i+1]
	}
	return ""
}

func hasCapacityFigures(run *result.Run, w *scenario.Workload) bool {
	p := w.FindPhase(scenario.Load)
	return run.IsValid() && p != nil && p.Heartbeat == 0 && run.Processes < 2 && run.LastLoadResult() != nil && run.LastLoadResult().Connected > 0 &&
		run.Figures["tps"] > 0 && run.Figures["cpu"] > 0 &&
		run.FindSample(probe.Touched) != nil && run.FindSample(probe.Idle) != nil && run.FindSample("measured") != nil
}

func (k measuredSetup) measuredMedians(runs []*result.Run) MeasuredCosts {
	m := MeasuredCosts{
		Subject: k.subject, Model: flagValue(runs[0].Command, "--model"), Loops: k.loops, App: k.app, Size: k.size, TLS: k.tls,
		Connections: k.connections,
	}
	n := float64(k.connections)
	median := func(of func(touched, idle *result.Sample) float64) float64 {
		var values []float64
		for _, r := range runs {
			values = append(values, of(r.FindSample(probe.Touched), r.FindSample(probe.Idle)))
		}
		middle, _ := stats.Median(values)
		return max(middle, 0)
	}
	m.Base = median(func(touched, _ *result.Sample) float64 { return float64(touched.Server.RSS) })
	m.BytesPerConn = median(func(touched, idle *result.Sample) float64 { return float64(idle.Server.RSS-touched.Server.RSS) / n })
	m.Kernel = median(func(touched, idle *result.Sample) float64 { return float64(idle.Slab-touched.Slab) / n })
	m.Connect = time.Duration(median(func(touched, idle *result.Sample) float64 {
		return float64(idle.Server.CPU()-touched.Server.CPU()) / n
	}))
	m.setIdleCoresOrUpperLimit(runs)
	byWorkload := make(map[string][]*result.Run)
	for _, r := range runs {
		byWorkload[r.Workload] = append(byWorkload[r.Workload], r)
		for _, mark := range r.Caveats {
			if !slices.Contains(m.Caveats, mark.Rule) {
				m.Caveats = append(m.Caveats, mark.Rule)
			}
		}
	}
	for _, rounds := range byWorkload {
		middle := func(of func(*result.Run) float64) float64 {
			var values []float64
			for _, r := range rounds {
				values = append(values, of(r))
			}
			v, _ := stats.Median(values)
			return v
		}
		m.Points = append(m.Points, Point{
			Rate:  middle(func(r *result.Run) float64 { return r.Figures["tps"] }),
			Cores: middle(func(r *result.Run) float64 { return r.Figures["tps"] * r.Figures["cpu"] / 1e6 }),
			Buffers: max(0, middle(func(r *result.Run) float64 {
				return float64(r.FindSample("measured").Server.RSS - r.FindSample(probe.Idle).Server.RSS)
			})),
		})
	}
	m.sortByRateAndMakeMonotonic()
	return m
}

// setIdleCoresOrUpperLimit sets the number of processors that an idle connection keeps busy. This requires that every
// sample with idle connections shows more CPU usage than every sample without connections. Otherwise,
// setIdleCoresOrUpperLimit sets only an upper limit of the number.
func (m *MeasuredCosts) setIdleCoresOrUpperLimit(runs []*result.Run) {
	var without, with []float64
	for _, r := range runs {
		without = append(without, r.FindSample(probe.Touched).Resting...)
		with = append(with, r.FindSample(probe.Idle).Resting...)
	}
	if len(without) == 0 || len(with) == 0 {
		return
	}
	n := float64(m.Connections)
	if slices.Min(with) > slices.Max(without) {
		base, _ := stats.Median(without)
		all, _ := stats.Median(with)
		m.IdleCoresPerConn = (all - base) / n
		return
	}
	m.MaxIdleCoresPerConn = slices.Max(with) / n
}

// sortByRateAndMakeMonotonic sorts the points by rate. If a point has lower Cores or Buffers than the point before it,
// sortByRateAndMakeMonotonic raises them to the values of the point before.
func (m *MeasuredCosts) sortByRateAndMakeMonotonic() {
	slices.SortFunc(m.Points, func(a, b Point) int { return cmp.Compare(a.Rate, b.Rate) })
	for i := 1; i < len(m.Points); i++ {
		m.Points[i].Cores = max(m.Points[i].Cores, m.Points[i-1].Cores)
		m.Points[i].Buffers = max(m.Points[i].Buffers, m.Points[i-1].Buffers)
	}
}

// MeasurementFromLoad returns the measurement from a run of the load generator. The server must have been a process on
// the same machine. The measurement does not include kernel memory.
func MeasurementFromLoad(s *load.Stream) (MeasuredCosts, error) {
	r := s.Result
	switch {
	case r == nil:
		return MeasuredCosts{}, errors.New("the run has no final result; expected a complete run")
	case r.Window <= 0 || r.Answered == 0:
		return MeasuredCosts{}, errors.New("no message was answered; expected a run with messages, to measure their cost")
	case s.Plan == nil || s.Plan.Server == nil:
		return MeasuredCosts{}, errors.New("the run contains no measurements of the server; expected a server on the same machine, run by the same user")
	}
	m := MeasuredCosts{Connections: r.Connected, Size: r.MessageSize, TLS: r.TLS != "", Base: float64(s.Plan.Server.RSS)}
	var cpu, length time.Duration
	connected, most := m.Base, m.Base
	for _, i := range s.Intervals {
		switch {
		case i.Server == nil:
		case i.Stage == "window":
			cpu += i.Server.CPU()
			length += i.To - i.From
			most = max(most, float64(i.Server.RSS))
		case i.Stage == "connect" || i.Stage == "hold" && length == 0:
			connected = float64(i.Server.RSS)
		}
	}
	if length == 0 || cpu == 0 || connected == m.Base {
		return MeasuredCosts{}, errors.New("the run has no interval with all connections before or within the measurement; expected --hold-before 2s and a --duration of several seconds")
	}
	m.BytesPerConn = max(connected-m.Base, 0) / float64(max(r.Connected, 1))
	m.Points = []Point{{Rate: r.Rate(), Cores: cpu.Seconds() / length.Seconds(), Buffers: max(most-connected, 0)}}
	return m, nil
}

// PredictCores predicts the number of processors that a server keeps busy. rate is in messages per second. loops is the
// number of event loops. If loops is 0, PredictCores assumes the number of loops in the measurement. If rate is between
// two measured rates, the result is an upper bound. If rate is above all measured rates, the result is extrapolated.
func (m *MeasuredCosts) PredictCores(connections, rate float64, loops int) float64 {
	scale := 1.0
	if loops > 0 && m.Loops > 0 {
		scale = float64(loops) / float64(m.Loops)
	}
	if rate <= 0 {
		return m.IdleCoresPerConn * connections
	}
	return m.coresUpperBoundAtRate(rate/scale)*scale + max(0, m.IdleCoresPerConn*(connections-float64(m.Connections)*scale))
}

// coresUpperBoundAtRate returns an upper bound of the number of processors that are busy at a message rate. If rate is
// above all measured rates, the result is an extrapolation and not an upper bound.
func (m *MeasuredCosts) coresUpperBoundAtRate(rate float64) float64 {
	i := m.lastPointIndexUpToRate(rate)
	if i < 0 {
		return m.Points[0].Cores
	}
	cores := m.Points[i].Cores * rate / m.Points[i].Rate
	if i+1 < len(m.Points) {
		cores = min(cores, m.Points[i+1].Cores)
	}
	return cores
}

// lastPointIndexUpToRate returns the index of the point with the highest measured rate that is not above the given
// rate. If all measured rates are above the given rate, it returns -1.
func (m *MeasuredCosts) lastPointIndexUpToRate(rate float64) int {
	i, exact := slices.BinarySearchFunc(m.Points, rate, func(p Point, rate float64) int { return cmp.Compare(p.Rate, rate) })
	if exact {
		return i
	}
	return i - 1
}

// PredictUserMemory predicts the resident memory of a server process in bytes. rate is in messages per second.
func (m *MeasuredCosts) PredictUserMemory(connections, rate float64) float64 {
	buffers, i := 0.0, m.lastPointIndexUpToRate(rate)
	switch last := m.Points[len(m.Points)-1]; {
	case rate <= 0:
	case i < 0 || m.Points[i].Rate == rate:
		buffers = m.Points[max(i, 0)].Buffers
	case i+1 < len(m.Points):
		buffers = m.Points[i+1].Buffers
	default:
		buffers = last.Buffers * rate / last.Rate
	}
	return m.Base + m.BytesPerConn*connections + buffers
}
