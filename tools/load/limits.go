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

// exhaustionErrnos contains the errors that show that this machine has run out of a resource. The values are their
// names.
var exhaustionErrnos = map[syscall.Errno]string{
	syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.EADDRINUSE: "EADDRINUSE",
	syscall.EMFILE: "EMFILE", syscall.ENFILE: "ENFILE",
	syscall.ENOBUFS: "ENOBUFS", syscall.ENOMEM: "ENOMEM",
}

func (f *faultRecorder) countExhaustionErrors(errnos ...syscall.Errno) (n int64, names string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var seen []string
	for _, errno := range errnos {
		if f.exhausted[errno] > 0 {
			n += f.exhausted[errno]
			seen = append(seen, exhaustionErrnos[errno])
		}
	}
	return n, strings.Join(seen, ", ")
}

// minUsageWindow is the shortest window for which processor use is reported.
const minUsageWindow = 100 * time.Millisecond

// highCPUPressure is the highest acceptable CPU pressure: the share of time during which at least one program waits for
// a processor.
const highCPUPressure = 0.2

// Limits for the time by which the generator itself delays messages. If the 99th percentile of this delay is at least
// veryLateP99, the generator counts as late. From lateP99 on, it counts as late only if the delay is also at least a
// tenth of the 99th percentile of the latency.
const (
	lateP99     = time.Millisecond
	veryLateP99 = 10 * time.Millisecond
	// minLateCount is the number of messages below which a 99th percentile is meaningless.
	minLateCount = 100
)

func (r *Result) generatorSentLate() bool {
	if r.Late == nil || r.Late.Count < minLateCount {
		return false
	}
	l := r.Late.P99
	return l >= veryLateP99 || l >= lateP99 && l*10 >= r.Latency.P99
}

// findReachedLimits returns the limits of the generator and of its machine that were reached. The most severe limit
// comes first.
func (r *loadRun) findReachedLimits(result *Result) []Limit {
	var found []Limit
	add := func(wall, advice, evidence string, args ...any) {
		found = append(found, Limit{Wall: wall, Evidence: fmt.Sprintf(evidence, args...), Advice: advice})
	}
	faults := &r.generator.faults
	if n, errnos := faults.countExhaustionErrors(syscall.EMFILE, syscall.ENFILE); n > 0 {
		add("descriptors", "raise the limit of open files (ulimit -n, fs.nr_open, fs.file-max), or use a model with loops, which get a descriptor table each",
			"%s attempts to connect found no free descriptor (%s)", format.Count(n), errnos)
	}
	if n, errnos := faults.countExhaustionErrors(syscall.EADDRNOTAVAIL, syscall.EADDRINUSE); n > 0 {
		add("ports", "connect from more addresses (--src), to more targets, or widen net.ipv4.ip_local_port_range",
			"%s attempts to connect found no free port on %d source addresses (%s)", format.Count(n), len(r.dialer.sources), errnos)
	}
	if n, errnos := faults.countExhaustionErrors(syscall.ENOBUFS, syscall.ENOMEM); n > 0 {
		add("memory", "use smaller socket buffers (--rcvbuf, --sndbuf), raise net.ipv4.tcp_mem, or add memory",
			"%s attempts to connect were refused memory by the kernel (%s)", format.Count(n), errnos)
	}
	r.addReachedKernelLimits(result, add)
	if result.GeneratorBound() {
		add("cpu", "give the generator more loops (--loops) and processors, or use larger messages or fewer connections",
			"the generator used %.0f%% of its %d CPU", 100*result.GeneratorCPUUtilization(), result.CPUs)
	}
	if share := r.cpuPressureShareInWindow(); share > highCPUPressure {
		add("cpu pressure", "stop other programs, or pin server and generator to separate processors",
			"some program on this machine waited for a processor during %.0f%% of the window", 100*share)
	}
	if result.generatorSentLate() {
		add("late sends", "give the generator dedicated processors, or lower the rate",
			"1%% of the messages were sent %v or more after their time although a connection was free", format.RoundToThreeDigits(result.Late.P99))
	}
	return found
}

// synRetransmitTime is the time after which the kernel sends a lost SYN again (RFC 6298).
const synRetransmitTime = time.Second

func (r *loadRun) addReachedKernelLimits(result *Result, add func(wall, advice, evidence string, args ...any)) {
	k := r.kernelCounters
	untracked := k["nf_conntrack_drop"] + k["nf_conntrack_insert_failed"]
	connectTrouble := r.generator.faults.countConnectFailures() > 0 || result.Connect.Max >= synRetransmitTime
	if k["ListenOverflows"] > 0 && connectTrouble && r.hasLocalTarget() {
		add("backlog", "have the server accept faster or ask for a longer queue, and raise net.core.somaxconn",
			"%s times a connection found the queue of a listener of this machine full (TcpExtListenOverflows); net.core.somaxconn is %s",
			format.Count(k["ListenOverflows"]), formatSysctlOrUnknown("net.core.somaxconn"))
	}
	if untracked > 0 && connectTrouble {
		add("conntrack", "raise net.netfilter.nf_conntrack_max, or have the firewall not follow these connections (notrack)",
			"this machine's firewall dropped %s packets whose connections it could not follow; it follows %s at most",
			format.Count(untracked), formatSysctlOrUnknown("net.netfilter.nf_conntrack_max"))
	}
	if k["TCPMemoryPressures"] > 0 || k["TCPAbortOnMemory"] > 0 {
		add("socket memory", "raise net.ipv4.tcp_mem, or use smaller socket buffers (--rcvbuf, --sndbuf) or fewer messages in flight",
			"TCP was short of memory %s times on this machine, and ended %s connections for that (TcpExtTCPMemoryPressures, TCPAbortOnMemory); net.ipv4.tcp_mem is %s",
			format.Count(k["TCPMemoryPressures"]), format.Count(k["TCPAbortOnMemory"]), formatSysctlOrUnknown("net.ipv4.tcp_mem"))
	}
}

func (r *loadRun) hasLocalTarget() bool {
	return slices.ContainsFunc(r.dialer.targets, func(t resolvedTarget) bool { return t.path == "" && sock.IsLocalAddr(t.addr.Addr()) })
}

func (r *loadRun) cpuPressureShareInWindow() float64 {
	if r.window < minUsageWindow {
		return 0
	}
	return min(max(r.cpuStallTime.Seconds()/r.window.Seconds(), 0), 1)
}

// readCPUStallTime returns how long at least one program on this machine has waited for a processor since boot. It
// returns 0 if the time is unknown.
func readCPUStallTime() time.Duration {
	machine, _ := procfs.ReadCPUTimeAndPressure()
	return machine.Stalled
}

func formatSysctlOrUnknown(name string) string {
	value, err := procfs.ReadSysctl(name)
	if err != nil {
		return "unknown"
	}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return format.Count(n)
	}
	return value
}
