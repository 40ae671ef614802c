package result

import (
	"encoding/json"

	"github.com/myriad-go/myriad/load"
)

// oldRun is what of a run of the version before phases is not where it is now.
type oldRun struct {
	Result  *load.Result
	Samples []struct {
		Moment         string
		RSS, PSS       float64
		Sockets, Slab  float64
		Go             *GoMemory
		Connections    float64
		UserTime       float64 `json:"user"`
		AnonymousBytes float64 `json:"anonymous"`
	}
	Throughput, Idle, Heartbeats, Parked, Flood, Soak map[string]any
	Overload                                          *struct {
		Rate, Capacity float64
		Window         float64
		Deadline       float64
		Ended          *Ended
		PeakRSS        float64 `json:"peak_rss"`
		Result         map[string]any
	}
}

// oldFigures says where figures were: in which part, and under which keys.
var oldFigures = []struct {
	figure, part string
	keys         []string
	unit         float64
}{
	{"tps", "throughput", []string{"tps"}, 1},
	{"p50", "throughput", []string{"p50"}, 1e-9},
	{"p99", "throughput", []string{"p99"}, 1e-9},
	{"in-flight", "throughput", []string{"in_flight"}, 1},
	{"expected", "throughput", []string{"expected"}, 1},
	{"load-busy", "throughput", []string{"load_busy"}, 1},
	{"server-busy", "throughput", []string{"server", "busy"}, 1},
	{"cpu", "throughput", []string{"server", "user_cpu"}, 1},
	{"cpu", "throughput", []string{"server", "system_cpu"}, 1},
	{"dial-rate", "idle", []string{"dial_rate"}, 1},
	{"bytes-idle", "idle", []string{"memory", "idle"}, 1},
	{"bytes-exchanged", "idle", []string{"memory", "exchanged"}, 1},
	{"kernel-idle", "idle", []string{"memory", "kernel_idle"}, 1},
	{"kernel-exchanged", "idle", []string{"memory", "kernel_exchanged"}, 1},
	{"anonymous-idle", "idle", []string{"full", "idle", "anonymous"}, 1},
	{"anonymous-exchanged", "idle", []string{"full", "exchanged", "anonymous"}, 1},
	{"machine-exchanged", "idle", []string{"full", "exchanged", "machine"}, 1},
	{"beat-connections", "heartbeats", []string{"connections"}, 1},
	{"beats", "heartbeats", []string{"beats"}, 1},
	{"beats-each", "heartbeats", []string{"each"}, 1},
	{"beat-cpu", "heartbeats", []string{"server", "user_cpu"}, 1},
	{"beat-cpu", "heartbeats", []string{"server", "system_cpu"}, 1},
	{"beat-rss", "heartbeats", []string{"server", "rss"}, 1},
	{"goroutine-stack", "parked", []string{"stack"}, 1},
	{"goroutine-anonymous", "parked", []string{"anonymous"}, 1},
	{"sent", "flood", []string{"sent"}, 1},
	{"received", "flood", []string{"received"}, 1},
	{"per-connection", "flood", []string{"per_connection"}, 1},
	{"down", "flood", []string{"down"}, 1},
	{"up", "flood", []string{"up"}, 1},
	{"packets-down", "flood", []string{"packets_down"}, 1},
	{"packets-up", "flood", []string{"packets_up"}, 1},
	{"unanswered", "flood", []string{"unanswered"}, 1},
	{"flood-cpu", "flood", []string{"server", "user_cpu"}, 1},
	{"flood-cpu", "flood", []string{"server", "system_cpu"}, 1},
	{"answers", "soak", []string{"answers"}, 1},
	{"errors", "soak", []string{"errors"}, 1},
	{"p99", "soak", []string{"p99"}, 1},
	{"offered", "jobs", []string{"offered"}, 1},
	{"finished", "jobs", []string{"finished"}, 1},
	{"rejected", "jobs", []string{"rejected"}, 1},
	{"expired", "jobs", []string{"expired"}, 1},
	{"shed", "jobs", []string{"shed"}, 1},
	{"p50", "jobs", []string{"p50"}, 1e-9},
	{"p99", "jobs", []string{"p99"}, 1e-9},
	{"job-p999", "jobs", []string{"p999"}, 1e-9},
	{"mean", "jobs", []string{"mean"}, 1e-9},
	{"peak-goroutines", "jobs", []string{"peak_goroutines"}, 1},
	{"peak-workers", "jobs", []string{"peak_workers"}, 1},
}

// readOld takes the figures of a run of the version before over, and its distribution of
// latencies. What it kept of a million connections is in its verdicts.
func (r *Run) readOld(text []byte) error {
	var old oldRun
	if err := json.Unmarshal(text, &old); err != nil {
		return err
	}
	r.Figures = make(map[string]float64)
	parts := map[string]map[string]any{
		"throughput": old.Throughput, "idle": old.Idle, "heartbeats": old.Heartbeats,
		"parked": old.Parked, "flood": old.Flood, "soak": old.Soak,
	}
	if o := old.Overload; o != nil {
		parts["jobs"] = o.Result
		r.Jobs = &Jobs{Rate: o.Rate, Capacity: o.Capacity, Ended: o.Ended}
		r.oldGoodput(o.Result, o.Window, o.Deadline)
		if o.PeakRSS > 0 {
			r.Figures["peak-memory"] = o.PeakRSS
		}
	}
	for _, f := range oldFigures {
		if v, ok := number(parts[f.part], f.keys); ok {
			r.Figures[f.figure] += v * f.unit
		}
	}
	for _, s := range old.Samples {
		suffix := map[string]string{"held": "-idle", "exchanged": "", "parked": ""}
		end, ok := suffix[s.Moment]
		if !ok {
			continue
		}
		prefix := ""
		if s.Moment == "parked" {
			prefix = "parked-"
		}
		r.set(prefix+"rss"+end, s.RSS)
		r.set(prefix+"pss"+end, s.PSS)
		if s.Go != nil {
			r.set(prefix+"stack"+end, float64(s.Go.StackInuse))
			r.set(prefix+"heap"+end, float64(s.Go.HeapInuse))
			r.set(prefix+"sys"+end, float64(s.Go.Sys))
		}
	}
	if old.Result != nil {
		r.Phases = append(r.Phases, Phase{Name: "load", Result: old.Result})
		if tps := r.Figures["tps"]; tps > 0 {
			r.Figures["mean"] = r.Figures["in-flight"] / tps
		}
	}
	return nil
}

// oldGoodput works out the goodput of jobs, as the version before did when it reported.
func (r *Run) oldGoodput(result map[string]any, window, deadline float64) {
	good, ok := number(result, []string{"good"})
	elapsed, _ := number(result, []string{"elapsed"})
	span := min(elapsed, window+deadline)
	if warm, _ := number(result, []string{"warmup"}); warm > 0 {
		good, _ = number(result, []string{"steady"})
		span = min(elapsed, window)
	}
	if r.Jobs.Ended != nil {
		span = window
	}
	if ok && span > 0 {
		r.Figures["goodput"] = good / span * 1e9
	}
}

func (r *Run) set(figure string, v float64) {
	if v != 0 {
		r.Figures[figure] = v
	}
}

// number is the number at a path of keys.
func number(in map[string]any, keys []string) (float64, bool) {
	for _, key := range keys[:len(keys)-1] {
		in, _ = in[key].(map[string]any)
	}
	v, ok := in[keys[len(keys)-1]].(float64)
	return v, ok
}
