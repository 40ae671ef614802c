package load

import (
	"fmt"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// shortest is the least window of which it is said what the generator used in it, or
// waited for: in a shorter one the run's own beginning and end are most of it.
const shortest = 100 * time.Millisecond

// starved is the share of a window in which some program of the machine waited for a
// processor from which on that is called a limit.
const starved = 0.2

// How late the generator may send before that says more about it than about the
// server, for a hundredth of the messages: where that is a tenth of the latency, and
// whatever the latency is.
const (
	lateSend     = time.Millisecond
	veryLateSend = 10 * time.Millisecond
	// leastLate is how many messages it takes for a hundredth of them to be any.
	leastLate = 100
)

// late says whether the generator was too late.
func (r *Result) late() bool {
	if r.Late == nil || r.Late.Count < leastLate {
		return false
	}
	l := r.Late.P99
	return l >= veryLateSend || l >= lateSend && l*10 >= r.Latency.P99
}

// limits are the walls that the generator itself met, the most severe first.
func (r *run) limits(of *Result) []Limit {
	var met []Limit
	add := func(wall, advice, evidence string, args ...any) {
		met = append(met, Limit{Wall: wall, Evidence: fmt.Sprintf(evidence, args...), Advice: advice})
	}
	files, ports, memory := r.traffic.faults.walls()
	if files > 0 {
		add("descriptors", "raise the limit of open files (ulimit -n, fs.nr_open, fs.file-max), or use a model with loops, which get a descriptor table each",
			"%s attempts to connect found no free descriptor", group(files))
	}
	if ports > 0 {
		add("ports", "connect from more addresses (--src), to more targets, or widen net.ipv4.ip_local_port_range",
			"%s attempts to connect found no free port on %d source addresses", group(ports), len(r.dialer.plan))
	}
	if memory > 0 {
		add("memory", "use smaller socket buffers (--rcvbuf, --sndbuf), raise net.ipv4.tcp_mem, or add memory",
			"%s attempts to connect were refused memory by the kernel", group(memory))
	}
	if of.GeneratorBound() {
		add("cpu", "give it more loops (--loops) and processors, larger messages or fewer connections",
			"it used %.0f%% of its %d CPU", 100*of.CPUShare(), of.CPUs)
	}
	if share := r.pressure(); share > starved {
		add("cpu pressure", "run it on a quiet machine: end other programs, or pin server and generator to processors of their own",
			"for %.0f%% of the window some program of its machine waited for a processor", 100*share)
	}
	if of.late() {
		add("late sends", "give it processors of its own, or lower the rate",
			"1%% of the messages were sent %v or more after their time although a connection was free", round(of.Late.P99))
	}
	return met
}

// pressure is the share of the window in which some program of the machine, the
// generator or another, waited for a processor; 0 where that isn't known.
func (r *run) pressure() float64 {
	if r.window < shortest {
		return 0
	}
	return min(max(r.stalled.Seconds()/r.window.Seconds(), 0), 1)
}

// readPressure is for how long some program of the machine has waited for a processor
// so far, 0 where the kernel doesn't tell.
func readPressure() time.Duration {
	stalled, err := procfs.ReadCPUPressure()
	if err != nil {
		return 0
	}
	return stalled
}
