package lab

import "math"

// FullFigures are worked out of a run under a Full workload.
type FullFigures struct {
	// Processes is how many processes the server had.
	Processes int `json:"processes"`
	// Idle is what each connection takes that has never sent anything, Exchanged
	// the same after one exchange.
	Idle      Footprint `json:"idle"`
	Exchanged Footprint `json:"exchanged"`
	// Sockets is for how many TCP sockets the kernel has made room for each
	// connection, by its cache of them: 2 if nobody else opened or closed any. It
	// is 0 where the kernel does not tell.
	Sockets float64 `json:"sockets,omitempty"`
}

// takes is the most that kernel and server had for each connection. What of the
// kernel's share belongs to other sockets that came meanwhile is left out, and what
// sockets that went had is added.
func (f *FullFigures) takes() float64 {
	own := 1.0
	if f.Sockets > 0 {
		own = 2 / f.Sockets
	}
	return max(f.Idle.RSS+f.Idle.Kernel*own, f.Exchanged.RSS+f.Exchanged.Kernel*own)
}

// Footprint is memory in bytes for each connection: what there is more of than
// before the first.
type Footprint struct {
	// RSS and Anonymous are of the server's processes. PSS has no place here: a
	// program's file counts for less of it as soon as another process, such as
	// the load generator, has the same.
	RSS       float64 `json:"rss"`
	Anonymous float64 `json:"anonymous"`
	// Kernel is the kernel's small objects for both ends of the connection, and
	// Caches what of that each cache has, empty where the kernel does not tell.
	Kernel float64            `json:"kernel"`
	Caches map[string]float64 `json:"caches,omitempty"`
	// Machine is by how much the machine's unused memory is less: kernel, server
	// and load generator together, and whatever else happened.
	Machine float64 `json:"machine"`
}

func (r *RunRecord) fullFigures() *FullFigures {
	base, held, exchanged := r.sample(Touched), r.sample(Held), r.sample(Exchanged)
	if base == nil || held == nil || exchanged == nil || r.Result.Connected == 0 {
		return nil
	}
	n := r.Result.Connected
	return &FullFigures{
		Processes: r.Processes, Idle: footprint(base, held, n), Exchanged: footprint(base, exchanged, n),
		Sockets: float64(exchanged.TCP-base.TCP) / float64(n),
	}
}

// footprint is what there is more of than before, for each of n connections.
func footprint(before, after *Sample, n int) Footprint {
	each := func(after, before int64) float64 { return float64(after-before) / float64(n) }
	f := Footprint{
		RSS:       each(after.RSS, before.RSS),
		Anonymous: each(after.Anonymous, before.Anonymous),
		Kernel:    each(after.Slab, before.Slab),
		Machine:   each(before.Free, after.Free),
	}
	if after.Caches != nil && before.Caches != nil {
		f.Caches = make(map[string]float64)
		for name, bytes := range after.Caches {
			if v := each(bytes, before.Caches[name]); math.Abs(v) >= 1 {
				f.Caches[name] = v
			}
		}
	}
	return f
}
