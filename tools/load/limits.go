package load

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/format"
	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/procfs"
)

// scarcities are the errors that say that this machine has run out of something, and
// their names.
var scarcities = map[syscall.Errno]string{
	syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.EADDRINUSE: "EADDRINUSE",
	syscall.EMFILE: "EMFILE", syscall.ENFILE: "ENFILE",
	syscall.ENOBUFS: "ENOBUFS", syscall.ENOMEM: "ENOMEM",
}

// met counts attempts that failed with one of some scarcities, and names those that
// did.
func (f *faults) met(errnos ...syscall.Errno) (n int64, names string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var seen []string
	for _, errno := range errnos {
		if f.scarce[errno] > 0 {
			n += f.scarce[errno]
			seen = append(seen, scarcities[errno])
		}
	}
	return n, strings.Join(seen, ", ")
}

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
	faults := &r.traffic.faults
	if n, errnos := faults.met(syscall.EMFILE, syscall.ENFILE); n > 0 {
		add("descriptors", "raise the limit of open files (ulimit -n, fs.nr_open, fs.file-max), or use a model with loops, which get a descriptor table each",
			"%s attempts to connect found no free descriptor (%s)", format.Count(n), errnos)
	}
	if n, errnos := faults.met(syscall.EADDRNOTAVAIL, syscall.EADDRINUSE); n > 0 {
		add("ports", "connect from more addresses (--src), to more targets, or widen net.ipv4.ip_local_port_range",
			"%s attempts to connect found no free port on %d source addresses (%s)", format.Count(n), len(r.dialer.plan), errnos)
	}
	if n, errnos := faults.met(syscall.ENOBUFS, syscall.ENOMEM); n > 0 {
		add("memory", "use smaller socket buffers (--rcvbuf, --sndbuf), raise net.ipv4.tcp_mem, or add memory",
			"%s attempts to connect were refused memory by the kernel (%s)", format.Count(n), errnos)
	}
	r.kernelLimits(of, add)
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
			"1%% of the messages were sent %v or more after their time although a connection was free", format.RoundDuration(of.Late.P99))
	}
	return met
}

// slowConnect is how long connecting takes when the kernel has dropped the first
// packet: that is when it sends another (RFC 6298).
const slowConnect = time.Second

// kernelLimits are the walls that the kernel of this machine has counted during the
// run: where connecting failed or was slow, or for want of socket memory.
func (r *run) kernelLimits(of *Result, add func(wall, advice, evidence string, args ...any)) {
	k := r.kernel
	untracked := k["nf_conntrack_drop"] + k["nf_conntrack_insert_failed"]
	hurt := r.traffic.faults.failures() > 0 || of.Connect.Max >= slowConnect
	if k["ListenOverflows"] > 0 && hurt && r.toSelf() {
		add("backlog", "have the server accept faster or ask for a longer queue, and raise net.core.somaxconn",
			"%s times a connection found the queue of a listener of this machine full (TcpExtListenOverflows); net.core.somaxconn is %s",
			format.Count(k["ListenOverflows"]), setting("net.core.somaxconn"))
	}
	if untracked > 0 && hurt {
		add("conntrack", "raise net.netfilter.nf_conntrack_max, or have the firewall not follow these connections (notrack)",
			"this machine's firewall dropped %s packets whose connections it could not follow; it follows %s at most",
			format.Count(untracked), setting("net.netfilter.nf_conntrack_max"))
	}
	if k["TCPMemoryPressures"] > 0 || k["TCPAbortOnMemory"] > 0 {
		add("socket memory", "raise net.ipv4.tcp_mem, or use smaller socket buffers (--rcvbuf, --sndbuf) or fewer messages in flight",
			"TCP was short of memory %s times on this machine, and ended %s connections for that (TcpExtTCPMemoryPressures, TCPAbortOnMemory); net.ipv4.tcp_mem is %s",
			format.Count(k["TCPMemoryPressures"]), format.Count(k["TCPAbortOnMemory"]), setting("net.ipv4.tcp_mem"))
	}
}

func (r *run) toSelf() bool {
	return slices.ContainsFunc(r.dialer.targets, func(t target) bool { return t.path == "" && sock.IsLocalAddr(t.addr.Addr()) })
}

// pressure is the share of the window in which some program of the machine, the
// generator or another, waited for a processor; 0 where that isn't known.
func (r *run) pressure() float64 {
	if r.window < shortest {
		return 0
	}
	return min(max(r.stalled.Seconds()/r.window.Seconds(), 0), 1)
}

// readPressure returns for how long some program of the machine has waited for a
// processor so far, 0 where the kernel doesn't tell.
func readPressure() time.Duration {
	machine, _ := procfs.ReadCPUTime()
	return machine.Stalled
}

// setting is a kernel's setting for people, "unknown" if it can't be read.
func setting(name string) string {
	value, err := procfs.ReadSysctl(name)
	if err != nil {
		return "unknown"
	}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return format.Count(n)
	}
	return value
}
