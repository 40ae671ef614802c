package main

import (
	"net/http"
	"net/netip"
	"strings"

	"github.com/myriad-go/myriad/load"
)

// given says whether a flag is on the command line.
type given func(name string) bool

// config is the configuration that the flags describe, but for TLS. It looks at
// nothing but its arguments.
func (f *loadFlags) config(given given, files messageTexts, targets []string) (load.Config, error) {
	f.cfg.Graceful = f.closing == "fin"
	f.cfg.Socket.Delay = f.nagle == "on"
	meant := func(name string) bool { return given(name) || name == "ws" && f.ws != "" } // as a target says
	for _, step := range []func() error{
		func() error { return checkForeign(given) },
		func() error { return f.setTargets(given, targets) },
		func() error { return checkTogether(meant) },
		func() error { return f.setSources() },
		func() error { return f.setRamp(given) },
		func() error { return f.setRate() },
		func() error { return f.setWebSocket() },
		func() error { return f.setMessages(given, files) },
		func() error { return f.setFirst(files) },
		func() error { return f.setAnswers(given) },
		func() error { return f.held.set(given, &f.cfg) },
	} {
		if err := step(); err != nil {
			return load.Config{}, err
		}
	}
	return f.cfg, nil
}

// exclusive are flags of which at most one can be given.
var exclusive = [][]string{
	{"rate", "message-rate", "flood", "think"},
	{"rate", "message-rate", "messages"},
	{"message", "message-file", "template-file", "size"},
	{"first-message", "first-message-file"},
	{"answer", "match", "latency-marker", "flood"},
	{"http", "ws"},
	{"messages", "duration"},
	{"json", "quiet"},
}

// needed are flags that do nothing without one of others.
var needed = []struct {
	flag   string
	others []string
}{
	{"arrivals", []string{"rate", "message-rate"}},
	{"sine", []string{"rate", "message-rate"}},
	{"header", []string{"ws"}},
	{"ws-binary", []string{"ws"}},
}

// checkTogether says which flags do not go together.
func checkTogether(given given) error {
	for _, names := range exclusive {
		first := ""
		for _, name := range names {
			switch {
			case !given(name):
			case first != "":
				return usagef("--%s and --%s are given; expected one of the two", first, name)
			default:
				first = name
			}
		}
	}
	for _, n := range needed {
		if given(n.flag) && !anyOf(given, n.others) {
			return usagef("--%s is given without --%s; expected both", n.flag, strings.Join(n.others, " or --"))
		}
	}
	return nil
}

func anyOf(given given, names []string) bool {
	for _, name := range names {
		if given(name) {
			return true
		}
	}
	return false
}

func (f *loadFlags) setSources() error {
	var list []netip.Addr
	for _, text := range f.sources {
		some, err := parseSources(text, maxSources-len(list))
		if err != nil {
			return usagef("--src is %q; %w", text, err)
		}
		list = append(list, some...)
	}
	f.cfg.Sources = list
	return nil
}

// setRamp makes the end of a ramp the number of connections.
func (f *loadFlags) setRamp(given given) error {
	to := f.cfg.Ramp.To
	if to == 0 {
		return nil
	}
	if given("connections") && to != f.cfg.Connections {
		return usagef("--ramp goes to %d and --connections is %d; expected the same, or one of the two", to, f.cfg.Connections)
	}
	f.cfg.Connections = to
	return nil
}

func (f *loadFlags) setRate() error {
	plan := f.rate
	f.cfg.Rate = load.Rate{Poisson: f.arrivals == "poisson", Swing: f.sine.swing, Period: f.sine.period}
	if f.each != (ratePlan{}) {
		plan, f.cfg.Rate.Each = f.each, true
	}
	f.cfg.Rate.PerSecond, f.cfg.Rate.To = plan.from, plan.to
	return nil
}

// goal is what is searched, zero for nothing.
func (f *loadFlags) goal() goal {
	if f.each.goal != (goal{}) {
		return f.each.goal
	}
	return f.rate.goal
}

// parsePath reads a path of HTTP.
func parsePath(text string) (string, error) {
	if !strings.HasPrefix(text, "/") {
		return "", wanted("a path that begins with a slash, given as --ws=/chat")
	}
	return text, nil
}

func (f *loadFlags) setWebSocket() error {
	if f.ws == "" {
		return nil
	}
	header := make(http.Header)
	for _, line := range f.headers {
		name, text, found := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !found || name == "" {
			return usagef("--header is %q; expected NAME: VALUE", line)
		}
		header.Add(name, strings.TrimSpace(text))
	}
	f.cfg.WebSocket = &load.WebSocket{Path: f.ws, Binary: f.binary}
	if len(header) > 0 {
		f.cfg.WebSocket.Header = header
	}
	return nil
}
