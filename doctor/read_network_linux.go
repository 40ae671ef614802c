package doctor

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/myriad-go/myriad/internal/procfs"
	"github.com/myriad-go/myriad/internal/sample"
	"github.com/myriad-go/myriad/internal/sock"
)

// maxInterfaces bounds the interfaces that are reported.
const maxInterfaces = 256

// network reads what is of the network namespace of the calling thread, and the
// settings, of which some are.
func (r *reader) network() {
	r.sysctls()
	r.sockets()
	r.interfaces()
}

func (r *reader) sysctls() {
	found := procfs.ReadSysctls(slices.Sorted(maps.Keys(settings)))
	r.Sysctls, r.ReadOnly = found.Values, found.ReadOnly
	for _, err := range found.Failed {
		r.unknown("sysctl", err)
	}
	for name, s := range settings {
		if _, shown := found.Values[name]; s.machineWide && !shown {
			r.elsewhere(name)
		}
	}
	slices.Sort(r.ReadOnly)
}

// maxAncestors bounds the processes in whose namespaces settings are looked for.
const maxAncestors = 16

// elsewhere reads a setting of the whole machine that this network namespace doesn't
// show.
func (r *reader) elsewhere(name string) {
	value, err := readElsewhere(name)
	if err != nil {
		r.unknown(name, err)
		return
	}
	r.Sysctls[name] = value
	r.ReadOnly = append(r.ReadOnly, name)
}

// readElsewhere reads a setting in the namespace of this process's first thread, or of
// the nearest process above it that has one that shows it.
func readElsewhere(name string) (value string, err error) {
	err = errNotShown
	pid := os.Getpid()
	for range maxAncestors {
		// Which of them can't be entered is of no interest.
		_ = inNetwork(pid, func() {
			if found, denied := procfs.ReadSysctl(name); denied == nil {
				value, err = found, nil
			}
		})
		if err == nil {
			return value, nil
		}
		above, ended := procfs.ReadStat(pid)
		if ended != nil || above.Parent == 0 {
			break
		}
		pid = above.Parent
	}
	return "", err
}

var errNotShown = errors.New("it is of the whole machine, and not shown in this network namespace")

// lowestPort is the lowest that a wider range of ports would have.
const lowestPort = 1024

func (r *reader) sockets() {
	used, err := sample.Take(sample.Network)
	r.unknown("sockets and counters of the network", err)
	m, s := used.Machine, &r.Sockets
	r.FilesOpen = m.Files
	s.Open, s.TimeWait, s.Orphans, s.Pages = m.Open, m.TimeWait, m.Orphans, m.TCPBuffers/r.PageSize
	s.Counters = m.Counters
	r.tracker()
	r.listeners()
}

// listeners reads the ports on which sockets listen, and the fullest of their queues.
func (r *reader) listeners() {
	low, _, err := parseRange(r.Sysctls[rangeName])
	if err != nil {
		r.unknown("ports on which sockets listen", err)
		return
	}
	queues, err := sock.Queues()
	r.unknown("sockets that listen", err)
	s := &r.Sockets
	for _, q := range queues {
		if port := q.At.Port(); port >= min(low, lowestPort) {
			s.Ports = append(s.Ports, port)
		}
		if s.Queue == nil || q.Waiting*(s.Queue.Most+1) > s.Queue.Waiting*(q.Most+1) {
			s.Queue = &QueueFacts{At: q.At, Waiting: q.Waiting, Most: q.Most}
		}
	}
	slices.Sort(s.Ports)
	s.Ports = slices.Compact(s.Ports)
}

// tracker reads how many connections the kernel tracks, if it does.
func (r *reader) tracker() {
	tracked, err := trackedNow()
	if procfs.Gone(err) {
		return
	}
	r.unknown("tracked connections", err)
	r.Sockets.Tracked = tracked
	if r.Sockets.Tracking = tracked > 0; !r.Sockets.Tracking {
		r.Sockets.Tracking, err = tracks()
		r.unknown("whether connections are tracked", err)
	}
}

// trackedNow is how many connections are tracked.
func trackedNow() (int64, error) {
	text, err := procfs.ReadSysctl(trackCountName)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// tracks sends a datagram to itself and reports whether it was tracked: the kernel does
// that while it is sent. Nothing in the kernel shows whether a rule asks for it.
func tracks() (bool, error) {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return false, err
	}
	defer c.Close()
	_, err = c.WriteTo([]byte("tracked?"), c.LocalAddr())
	if errors.Is(err, unix.ENETUNREACH) { // loopback is down: so far nothing is tracked, and a wall says that
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("with one datagram: %w", err)
	}
	tracked, err := trackedNow()
	return tracked > 0, err
}

// parseRange parses the two numbers of net.ipv4.ip_local_port_range.
func parseRange(text string) (low, high uint16, err error) {
	if n, err := fmt.Sscanf(text, "%d %d", &low, &high); n != 2 {
		return 0, 0, fmt.Errorf("net.ipv4.ip_local_port_range is %q; expected two ports: %w", text, err)
	}
	return low, high, nil
}

func (r *reader) interfaces() {
	all, err := net.Interfaces()
	r.unknown("interfaces", err)
	if len(all) > maxInterfaces {
		r.unknown("interfaces", fmt.Errorf("there are %d, of which %d are reported", len(all), maxInterfaces))
		all = all[:maxInterfaces]
	}
	for _, i := range all {
		found := Interface{Name: i.Name, Up: i.Flags&net.FlagUp != 0, Loopback: i.Flags&net.FlagLoopback != 0}
		addrs, err := i.Addrs()
		r.unknown("addresses of "+i.Name, err)
		for _, addr := range addrs {
			if p, err := netip.ParsePrefix(addr.String()); err == nil {
				found.Addrs = append(found.Addrs, p)
			}
		}
		// An error means that /sys shows another network namespace.
		found.Receive, found.Send, _ = procfs.CountQueues(i.Name, i.Index, i.HardwareAddr.String())
		r.Interfaces = append(r.Interfaces, found)
	}
}
