package main

import (
	"strings"

	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/load"
)

// heldFlags are what lines connections that are held send and hear.
type heldFlags struct {
	check                        bool
	inFlight                     int
	heartbeat, answer, broadcast string
}

// defaultInFlight is how many lines of a roll call are in flight by default.
const defaultInFlight = 1000

func (f *heldFlags) add(flags *pflag.FlagSet) {
	flags.BoolVar(&f.check, "check", false, "have a roll call when all are connected, and again at the end: each connection sends a line of its own, and the same must come back")
	flag(flags, &f.inFlight, parseMore, "check-inflight", "", "--check with at most `N` lines in flight, on all connections together (default 1000)")
	flags.StringVar(&f.heartbeat, "heartbeat", "", "the `LINE` that the server sends as a heartbeat, answered at once; the newline at its end can be left out")
	flags.StringVar(&f.answer, "heartbeat-answer", "pong", "the `LINE` that answers it")
	flags.StringVar(&f.broadcast, "broadcast", "", "expect this `LINE` once on each connection")
}

// set sets what the flags describe.
func (f *heldFlags) set(given given, cfg *load.Config) error {
	switch {
	case given("heartbeat-answer") && !given("heartbeat"):
		return usagef("--heartbeat-answer is given without --heartbeat; expected both")
	case given("check-inflight"):
		cfg.Check = f.inFlight
	case f.check:
		cfg.Check = defaultInFlight
	}
	for _, l := range []struct {
		flag, text string
		to         *string
	}{{"heartbeat", f.heartbeat, &cfg.Heartbeat}, {"heartbeat-answer", f.answer, &cfg.HeartbeatAnswer}, {"broadcast", f.broadcast, &cfg.Broadcast}} {
		if given(l.flag) && strings.TrimSuffix(l.text, "\n") == "" {
			return usagef("--%s is %q; expected a line that is not empty", l.flag, l.text)
		}
		if l.text != "" {
			*l.to = strings.TrimSuffix(l.text, "\n") + "\n"
		}
	}
	if cfg.Heartbeat == "" {
		cfg.HeartbeatAnswer = ""
	}
	return nil
}
