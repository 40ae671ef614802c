package main

import (
	"github.com/spf13/pflag"
)

// aliases are further names of flags, most of them tcpkali's.
var aliases = map[string]string{
	"ssl":                          "tls",
	"websocket":                    "ws",
	"source-ip":                    "src",
	"channel-lifetime":             "lifetime",
	"channel-bandwidth-upstream":   "send-limit",
	"channel-bandwidth-downstream": "receive-limit",
	"workers":                      "loops",
}

// canonical is the name that a flag has here.
func canonical(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	if here, ok := aliases[name]; ok {
		name = here
	}
	return pflag.NormalizedName(name)
}

const tcpkaliText = `  --ssl is --tls, --websocket --ws, --source-ip --src, --workers --loops,
  --channel-lifetime --lifetime, --channel-bandwidth-upstream --send-limit and
  --channel-bandwidth-downstream --receive-limit. The time to connect and to the
  first byte is always measured; --latency-connect and --latency-first-byte
  are there for old command lines. For what differs see docs/load.md.
`

// foreign is an option of tcpkali that load does not have.
type foreign struct {
	name, short string
	value       bool // it takes one
	instead     string
}

const (
	insteadDump   = "--out FILE for each second of the run; the bytes of a connection are what tcpdump shows"
	insteadServer = `a server, such as "myriad serve --app echo", or "myriad serve --app sink"`
	insteadStatsd = "--metrics ADDR, which serves them for Prometheus, or --out FILE"
)

var foreigners = []foreign{
	{"verbose", "v", false, insteadDump},
	{"dump-one", "d", false, insteadDump},
	{"dump-one-in", "", false, insteadDump},
	{"dump-one-out", "", false, insteadDump},
	{"dump-all", "", false, insteadDump},
	{"dump-all-in", "", false, insteadDump},
	{"dump-all-out", "", false, insteadDump},
	{"listen-port", "l", true, insteadServer},
	{"listen-mode", "", true, insteadServer},
	{"ssl-cert", "", true, `"myriad serve --tls-cert FILE" for a server, --tls-ca FILE to trust one`},
	{"ssl-key", "", true, `"myriad serve --tls-key FILE" for a server`},
	{"write-combine", "", true, "--pipeline 1, with which there is nothing to combine"},
	{"delay-send", "", true, "--hold-before TIME, which delays the traffic of all connections"},
	{"message-stop", "", true, "--answer TEXT or --match RULE, by which wrong answers count, and --expect"},
	{"message-marker", "", false, `--match marker:TEXT, or \{message.marker} in the message`},
	{"latency-marker-skip", "", true, "--warmup TIME, which leaves out the first answers"},
	{"statsd", "", false, insteadStatsd},
	{"statsd-host", "", true, insteadStatsd},
	{"statsd-port", "", true, insteadStatsd},
	{"statsd-namespace", "", true, insteadStatsd},
	{"statsd-latency-window", "", true, insteadStatsd},
	{"server", "", true, `a "myriad load" on each machine, and "myriad report --merge"`},
}

// addForeign adds tcpkali's options that are accepted because they ask for what
// is there anyway, and those that are known only to say what to use instead.
func addForeign(flags *pflag.FlagSet) {
	for _, name := range []string{"latency-connect", "latency-first-byte"} {
		flags.Bool(name, false, "")
		flags.Lookup(name).Hidden = true
	}
	for _, f := range foreigners {
		flags.StringP(f.name, f.short, "", "")
		added := flags.Lookup(f.name)
		added.Hidden = true
		if !f.value {
			added.NoOptDefVal = "on"
		}
	}
}

// checkForeign says what to use instead of an option that is not there.
func checkForeign(given func(name string) bool) error {
	for _, f := range foreigners {
		if given(f.name) {
			return usagef("--%s is an option of tcpkali that load does not have; expected %s", f.name, f.instead)
		}
	}
	return nil
}
