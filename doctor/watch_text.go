package doctor

import (
	"fmt"
	"strings"
	"time"
)

// told says what a counter that rose means.
var told = map[string]string{
	"ListenOverflows":         "the queue of a listener was full; accept faster, or raise its backlog and net.core.somaxconn",
	"ListenDrops":             "connections to a listener were dropped",
	"TCPReqQFullDoCookies":    "more connections were half open than the backlog lets, and SYN cookies were sent; raise net.ipv4.tcp_max_syn_backlog and the backlog",
	"TCPReqQFullDrop":         "more connections were half open than the backlog lets, and were dropped; raise net.ipv4.tcp_max_syn_backlog and the backlog",
	"TCPMemoryPressures":      "TCP's buffers passed the middle value of net.ipv4.tcp_mem, and shrink",
	"TCPAbortOnMemory":        "connections were aborted for want of memory, or of room among net.ipv4.tcp_max_orphans",
	"TCPTimeWaitOverflow":     "connections skipped TIME_WAIT; raise net.ipv4.tcp_max_tw_buckets",
	"conntrack insert_failed": "the firewall could not follow connections, whose packets it dropped",
	"conntrack drop":          "the firewall's table was full, and it dropped packets of new connections; raise net.netfilter.nf_conntrack_max",
	"memory refused":          "the memory of the control group was at its limit",
	"memory oom_kill":         "the kernel killed a process of the control group for want of memory",
	"pids refused":            "the control group was refused a process or thread; raise its pids.max",
	"softnet dropped":         "packets were dropped before a processor took them; raise net.core.netdev_max_backlog",
}

// String is the reading in a line, such as
//
//	12:00:05 200,016 connected (+20,112/s); ports 71% (20,012 of 28,232 of 127.0.0.1), full in 41s; nofile 12%
func (r Reading) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s connected (%s/s)", r.At.Format(time.TimeOnly), thousands(r.Connections), signed(r.Rate))
	nearest := r.nearest()
	if nearest != nil {
		fmt.Fprintf(&b, "; %s", nearest)
	}
	for i, more := 0, 0; i < len(r.Levels) && more < alsoTold; i++ {
		if l := &r.Levels[i]; l != nearest {
			fmt.Fprintf(&b, "; %s %s", l.Wall, percent(l.Share))
			more++
		}
	}
	return b.String()
}

// alsoTold is how many walls a line has beside the nearest.
const alsoTold = 2

// nearest is the wall that is reached first: the first by its forecast, or else the
// fullest; nil without any.
func (r *Reading) nearest() *Level {
	var first *Level
	for i := range r.Levels {
		l := &r.Levels[i]
		if l.In > 0 && (first == nil || l.In < first.In) {
			first = l
		}
	}
	if first == nil && len(r.Levels) > 0 {
		first = &r.Levels[0]
	}
	return first
}

// String says how far the wall is.
func (l *Level) String() string {
	unit := l.Unit
	if l.Of != "" {
		unit += " of " + l.Of
	}
	used, limit := thousands(l.Used), thousands(l.Limit)
	if l.Unit == bytesUnit {
		used, limit = size(l.Used), size(l.Limit)
		unit = strings.TrimPrefix(unit, bytesUnit)
	}
	text := fmt.Sprintf("%s %s (%s of %s%s)", l.Wall, percent(l.Share), used, limit, after(unit))
	if l.In > 0 {
		text += fmt.Sprintf(", full in %v at %s/s", l.In.Round(roundTo(l.In)), l.growth())
	}
	return text
}

// bytesUnit is the unit of memory.
const bytesUnit = "bytes"

// growth is the rate in the unit.
func (l *Level) growth() string {
	if l.Unit == bytesUnit {
		return size(int64(l.Rate))
	}
	return thousands(int64(l.Rate))
}

// after is text behind a space, if there is any.
func after(text string) string {
	if text = strings.TrimSpace(text); text == "" {
		return ""
	}
	return " " + text
}

// percent rounds down: what is not full does not say so.
func percent(share float64) string { return fmt.Sprintf("%d%%", int64(100*share)) }

// signed is a rate with its sign.
func signed(rate float64) string {
	if rate < 0 {
		return "-" + thousands(int64(-rate))
	}
	return "+" + thousands(int64(rate))
}

// roundTo is what a time is rounded to for people.
func roundTo(d time.Duration) time.Duration {
	if d < time.Minute {
		return 100 * time.Millisecond
	}
	return time.Second
}
