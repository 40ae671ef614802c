package load

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sample"
	"github.com/myriad-go/myriad/internal/sock"
)

// faults is what went wrong in a run, by cause. It is safe for concurrent use;
// none of it is on the way of a message.
type faults struct {
	mu              sync.Mutex
	failed          int64  // attempts to connect
	connects        causes // why they failed
	settled         bool   // attempts are no longer counted
	lost            causes // connections
	wrongs          int64  // connections with a wrong answer
	first           *Mismatch
	whys            causes                  // why they were wrong
	lines           causes                  // that connections which are held did not expect
	statuses        causes                  // of HTTP responses that are errors
	firstUnexpected string                  // of lines
	scarce          map[syscall.Errno]int64 // attempts that failed because this machine ran out
}

// status counts an HTTP response whose status says that it is an error.
func (f *faults) status(status int) {
	if status < 400 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statuses.add("HTTP status "+strconv.Itoa(status), 1)
}

// all counts everything that went wrong, by cause.
func (f *faults) all() causes {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := causes{}
	for _, of := range []struct {
		what   string
		causes causes
	}{{"connect: ", f.connects}, {"lost: ", f.lost}, {"answer: ", f.whys}, {"answer: ", f.statuses}, {"line: ", f.lines}} {
		for cause, n := range of.causes {
			sum[of.what+cause] += n
		}
	}
	return sum
}

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

// totals counts failed attempts, lost connections and wrong answers.
func (f *faults) totals() (failed, lost, wrong int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.lost {
		lost += n
	}
	return f.failed, lost, f.wrongs
}

// causes counts by cause.
type causes map[string]int64

// maxCauses bounds how many causes are told apart.
const maxCauses = 64

func (c *causes) add(cause string, n int64) {
	if *c == nil {
		*c = causes{}
	}
	if _, known := (*c)[cause]; !known && len(*c) >= maxCauses {
		cause = "other causes"
	}
	(*c)[cause] += n
}

// refused counts a failed attempt to connect.
func (f *faults) refused(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.settled {
		return
	}
	f.failed++
	f.connects.add(cause(err), 1)
	var errno syscall.Errno
	if !errors.As(err, &errno) || scarcities[errno] == "" {
		return
	}
	if f.scarce == nil {
		f.scarce = make(map[syscall.Errno]int64)
	}
	f.scarce[errno]++
}

// settle ends the counting of attempts. Of those that were asked for, what has
// neither opened nor failed failed for the given cause, if there is one.
func (f *faults) settle(asked, opened int64, cause string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled = true
	if missing := asked - opened - f.failed; missing > 0 && cause != "" {
		f.failed += missing
		f.connects.add(cause, missing)
	}
}

// failures counts failed attempts to connect.
func (f *faults) failures() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// gone counts a connection that was lost.
func (f *faults) gone(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost.add(cause(why), 1)
}

// wrong counts a connection whose answer was wrong and keeps the first.
func (f *faults) wrong(why error, m Mismatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrongs++
	f.whys.add(cause(why), 1)
	if f.first == nil {
		m.Why = why.Error()
		f.first = &m
	}
}

// unexpected counts a line that nobody expected, nil for a broadcast that came again,
// and keeps the first.
func (f *faults) unexpected(line []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case line == nil:
		f.lines.add("the broadcast again", 1)
		return
	case f.firstUnexpected == "":
		f.firstUnexpected = quote(line)
	}
	f.lines.add("not expected", 1)
}

// unanswered counts lines of a verification that have no answer.
func (f *faults) unanswered(n int64) {
	if n > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.whys.add("none to the verification", n)
	}
}

// fill writes the faults into a result.
func (f *faults) fill(r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.ConnectErrors = maps.Clone(map[string]int64(f.connects))
	r.Lost = maps.Clone(map[string]int64(f.lost))
	r.Mismatched = f.wrongs
	r.FirstMismatch = f.first
	r.FirstUnexpected = f.firstUnexpected
	r.BadStatus = maps.Clone(map[string]int64(f.statuses))
}

// cause says why a connection failed or was lost, in words that are the same
// for each connection, so without addresses.
func cause(err error) string {
	var errno syscall.Errno
	var op *net.OpError
	var timeout net.Error
	var handshake handshakeError
	switch {
	case err == nil:
		return "closed"
	case errors.As(err, &handshake):
		return "TLS handshake: " + cause(handshake.error)
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF):
		return "closed by the server"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "cut off by the server"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timed out"
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return err.Error()
}

// quoted is how many bytes of a mismatch are kept.
const quoted = 32

// quote quotes the start of p as in Go.
func quote(p []byte) string {
	if len(p) > quoted {
		return strconv.Quote(string(p[:quoted])) + "..."
	}
	return strconv.Quote(string(p))
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
	faults := &r.traffic.faults
	if n, errnos := faults.met(syscall.EMFILE, syscall.ENFILE); n > 0 {
		add("descriptors", "raise the limit of open files (ulimit -n, fs.nr_open, fs.file-max), or use a model with loops, which get a descriptor table each",
			"%s attempts to connect found no free descriptor (%s)", group(n), errnos)
	}
	if n, errnos := faults.met(syscall.EADDRNOTAVAIL, syscall.EADDRINUSE); n > 0 {
		add("ports", "connect from more addresses (--src), to more targets, or widen net.ipv4.ip_local_port_range",
			"%s attempts to connect found no free port on %d source addresses (%s)", group(n), len(r.dialer.plan), errnos)
	}
	if n, errnos := faults.met(syscall.ENOBUFS, syscall.ENOMEM); n > 0 {
		add("memory", "use smaller socket buffers (--rcvbuf, --sndbuf), raise net.ipv4.tcp_mem, or add memory",
			"%s attempts to connect were refused memory by the kernel (%s)", group(n), errnos)
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
			"1%% of the messages were sent %v or more after their time although a connection was free", round(of.Late.P99))
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
			group(k["ListenOverflows"]), setting("net.core.somaxconn"))
	}
	if untracked > 0 && hurt {
		add("conntrack", "raise net.netfilter.nf_conntrack_max, or have the firewall not follow these connections (notrack)",
			"this machine's firewall dropped %s packets whose connections it could not follow; it follows %s at most",
			group(untracked), setting("net.netfilter.nf_conntrack_max"))
	}
	if k["TCPMemoryPressures"] > 0 || k["TCPAbortOnMemory"] > 0 {
		add("socket memory", "raise net.ipv4.tcp_mem, or use smaller socket buffers (--rcvbuf, --sndbuf) or fewer messages in flight",
			"TCP was short of memory %s times on this machine, and ended %s connections for that (TcpExtTCPMemoryPressures, TCPAbortOnMemory); net.ipv4.tcp_mem is %s",
			group(k["TCPMemoryPressures"]), group(k["TCPAbortOnMemory"]), setting("net.ipv4.tcp_mem"))
	}
}

// toSelf says whether a target is on this machine.
func (r *run) toSelf() bool {
	return slices.ContainsFunc(r.dialer.targets, func(t target) bool { return t.path == "" && sock.IsLocal(t.addr.Addr()) })
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
	taken, _ := sample.Take(sample.MachineCPU)
	return taken.Machine.Stalled
}

// setting is a kernel's setting for people, "unknown" if it can't be read.
func setting(name string) string {
	value, err := procfs.ReadSysctl(name)
	if err != nil {
		return "unknown"
	}
	if n, err := strconv.ParseInt(value, 10, 64); err == nil {
		return group(n)
	}
	return value
}
