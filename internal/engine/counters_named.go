package engine

import "strconv"

// This file is how counters go to another process, of another version: by name. A counter that
// the other side does not know is left out; those that tell what is now stay.

var counterNames = [...]string{
	Accepted: "accepted", Dialled: "dialled", AcceptErrors: "accept_errors", AcceptPauses: "accept_pauses",
	Reads: "reads", Writes: "writes", BytesIn: "bytes_in", BytesOut: "bytes_out", Messages: "messages",
	Dropped: "dropped", Replaced: "replaced", Broadcasts: "broadcasts", Heartbeats: "heartbeats",
	HandedOver: "handed_over", TakenOver: "taken_over", Panics: "panics", Slow: "slow", Moved: "moved", Shed: "shed",
	BusyTime: "busy_time", GCs: "gcs", GCPause: "gc_pause",
}

var causeNames = [...]string{
	RefusedFull: "refused_full", RefusedSource: "refused_source", RefusedDenied: "refused_denied", RefusedProxy: "refused_proxy",
	RefusedHandshake: "refused_handshake", RefusedTimeout: "refused_timeout", RefusedOther: "refused_other",
	ClosedByPeer: "closed_peer", ClosedByReset: "closed_reset", ClosedByHandler: "closed_handler", ClosedFirstByte: "closed_first_byte",
	ClosedMessage: "closed_message", ClosedIdle: "closed_idle", ClosedWrite: "closed_write", ClosedClose: "closed_close",
	ClosedHeartbeat: "closed_heartbeat", ClosedSlow: "closed_slow", ClosedBudget: "closed_budget", ClosedTooLong: "closed_too_long",
	ClosedTLS: "closed_tls", ClosedPanic: "closed_panic", ClosedShutdown: "closed_shutdown", ClosedExpelled: "closed_expelled",
	ClosedOther: "closed_other",
}

// name is what a counter that only grows is called.
func (what Counter) name() string {
	switch {
	case what >= turnTimes:
		return "turn_times_" + strconv.Itoa(int(what-turnTimes))
	case what >= callTimes:
		return "call_times_" + strconv.Itoa(int(what-callTimes))
	case what >= refusals:
		return causeNames[what-refusals]
	}
	return counterNames[what]
}

// Named gives the counts that only grow by their names, but for those that are 0.
func (n Counts) Named() map[string]int64 {
	named := make(map[string]int64)
	for what := gauges; what < counters; what++ {
		if n[what] != 0 {
			named[what.name()] = n[what]
		}
	}
	return named
}

// AddNamed adds counts that Named has given.
func (n *Counts) AddNamed(named map[string]int64) {
	for what := gauges; what < counters; what++ {
		n[what] += named[what.name()]
	}
}

// Add adds other counts.
func (n *Counts) Add(other *Counts) {
	for i := range n {
		n[i] += other[i]
	}
}
