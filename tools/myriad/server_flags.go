package main

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/internal/cgroup"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
	"github.com/myriad-go/myriad/tools/internal/quantity"
)

// serverFlags contains the flags that all server commands share.
type serverFlags struct {
	srv tcp.Server
	tls serverTLSFlags

	workers    workerFlags            // unused by servers without worker flags
	collectors []prometheus.Collector // additional metrics
	pages      []admin.Page
	reloads    []func() (told string) // called at SIGHUP instead of draining; each returns its outcome as text

	upgrading      atomic.Bool       // an upgrade is in progress or has succeeded
	relaysSignals  atomic.Bool       // this process only relays signals
	successorEnv   map[string]string // additional environment of the new process
	upgradeRefusal string            // reason why upgrades are impossible, "" if they are possible

	admin     adminFlags
	adminPage *adminServer // nil without --admin
	// upgradeRequests passes requests from the admin page to the goroutine that handles signals.
	upgradeRequests chan func(tcp.Upgraded, error)
	flightDir       string
	flightLag       time.Duration
	memoryLimit     string

	flagsByField map[string]string // flag names by field of Server, for messages
}

// addFlags adds the flags. defaultAddr is the default of --defaultAddr.
func (f *serverFlags) addFlags(flags *pflag.FlagSet, defaultAddr string) {
	srv, limits := &f.srv, &f.srv.Limits
	f.flagsByField = map[string]string{"Server.Addr": "addr", "Server.Network": "network", "Server.Model": "model", "Server.Loops": "loops", "Server.Spin": "spin", "Server.WriteDelay": "write-delay"}
	flags.StringVar(&srv.Addr, "addr", defaultAddr, "address to listen on; 0.0.0.0 means IPv4 only; without a host, IPv6 too; port 0 selects a free port; systemd or systemd:NAME is a socket passed by systemd (LISTEN_FDS)")
	flags.StringVar(&srv.Network, "network", "", "tcp, tcp4, tcp6, or unix for a socket at the path --addr (default tcp)")
	flags.StringVar(&srv.Model, "model", "", "I/O model: auto, goroutine, epoll or uring (default auto: the last of these that works here, with workers for slow handlers)")
	flags.IntVar(&srv.Loops, "loops", 0, "event loops, for models that use them (default: half of the processors, more if --max-conns needs them)")
	flags.DurationVar(&srv.Spin, "spin", 0, "busy-poll for this long before a loop blocks; costs a CPU for each loop (default off)")
	flags.DurationVar(&srv.WriteDelay, "write-delay", 0, "delay messages other than answers for this long, such as 20ms, to combine several in one write (default off)")
	number := func(field *int, name, means, help string) { f.addIntFlag(flags, field, name, means, help) }
	number(&limits.MaxConns, "max-conns", "Limits.MaxConns", "limit for open connections; above the descriptor limit each event loop gets its own descriptor table (default: the descriptor limit)")
	number(&limits.MaxConnsPerSource, "max-conns-per-source", "Limits.MaxConnsPerSource", "limit for open connections from one address or IPv6 /64 network (default: no limit)")
	number(&limits.AcceptRate, "accept-rate", "Limits.AcceptRate", "limit for accepted connections per second; further ones wait (default: no limit)")
	number(&limits.ReadRate, "read-rate", "Limits.ReadRate", "limit for bytes read per second from one connection; faster clients wait (default: no limit)")
	number(&limits.MessageRate, "message-rate", "Limits.MessageRate", "limit for messages read per second from one connection; faster clients wait (default: no limit)")
	number(&limits.MaxMessage, "max-message", "Limits.MaxMessage", "limit for a message in bytes (default 65536)")
	number(&limits.MaxUnsent, "max-unsent", "Limits.MaxUnsent", "limit for unsent output of one connection in bytes (default 1048576)")
	number(&limits.MaxBuffered, "max-buffered", "Limits.MaxBuffered", "limit for the memory of all buffers in bytes (default: a quarter of the memory)")
	number(&limits.MaxHandshakes, "max-handshakes", "Limits.MaxHandshakes", "limit for concurrent TLS handshakes (default 4096)")
	flags.BoolVar(&srv.DisableCompactTLS, "disable-compact-tls", false, "process all TLS records in crypto/tls, for comparison")
	flags.BoolVar(&srv.Stay, "stay", false, "after an upgrade, keep this process until the new one ends, and relay signals to it, for supervisors that watch the process that they started; process 1 always stays")
	number(&limits.ShutdownRate, "drain-rate", "Limits.ShutdownRate", "limit for connections drained per second at shutdown (default 100000)")
	number(&srv.Socket.SendBuffer, "sndbuf", "Server.Socket.SendBuffer", "SO_SNDBUF of each connection, in bytes (default: the kernel's choice)")
	number(&srv.Socket.ReceiveBuffer, "rcvbuf", "Server.Socket.ReceiveBuffer", "SO_RCVBUF of each connection, in bytes (default: the kernel's choice)")
	duration := func(field *time.Duration, name, means, help string) {
		if *field != 0 {
			help, _, _ = strings.Cut(help, " (default")
			help = fmt.Sprintf("%s (default %v)", help, *field)
		}
		addParsedFlag(flags, field, parseDurationOrNever, name, "", help)
		f.flagsByField[means] = name
	}
	duration(&limits.HandshakeTimeout, "handshake-timeout", "Limits.HandshakeTimeout", "allow this `TIME` for the PROXY header and the TLS handshake (default 10s)")
	duration(&limits.FirstByteTimeout, "first-byte-timeout", "Limits.FirstByteTimeout", "allow this `TIME` for a peer's first byte (default 1m)")
	duration(&limits.MessageTimeout, "message-timeout", "Limits.MessageTimeout", "allow this `TIME` from a message's first byte to its last (default 30s)")
	duration(&limits.IdleTimeout, "idle-timeout", "Limits.IdleTimeout", "close a connection after this `TIME` without input, such as 5m (default never)")
	duration(&limits.WriteTimeout, "write-timeout", "Limits.WriteTimeout", "close a connection after this `TIME` in which the peer reads no pending output (default 30s)")
	duration(&limits.HandlerTime, "handler-time", "Limits.HandlerTime", "report handler calls that take longer than this `TIME` (default 1s)")
	duration(&limits.ShutdownTimeout, "drain", "Limits.ShutdownTimeout", "when the server stops, wait at most this `TIME` for open connections (default 30s)")
	addParsedFlag(flags, &srv.SlowConsumer, parseSlowConsumerPolicy, "slow-consumer", "", "at --max-unsent bytes of pending output, apply this `POLICY`: close (the connection) or drop (the message) (default close)")
	addParsedFlag(flags, &srv.Overload.Off, parseOnOff, "overload", "", "pause accepting, shed requests and close slow consumers under overload: `on|off` (default on)")
	flags.Var(&parsedListFlag[netip.Prefix]{&srv.Allow, parseOnePrefixOrAddr}, "allow", "accept only this `NETWORK`, such as 10.0.0.0/8, or address (repeatable)")
	flags.Var(&parsedListFlag[netip.Prefix]{&srv.Deny, parseOnePrefixOrAddr}, "deny", "reject this `NETWORK` or address (repeatable)")
	flags.Var(&parsedListFlag[netip.Prefix]{&srv.TrustedProxies, parseOnePrefixOrAddr}, "trusted-proxy", "expect the PROXY protocol from this `NETWORK` or address, with headers of at most 4096 bytes (repeatable)")
	f.tls.addFlags(flags)
	f.admin.addFlags(flags)
	flags.StringVar(&f.flightDir, "flight-dir", "", "run the flight recorder and dump its last seconds to this directory when a loop lags (default off)")
	flags.DurationVar(&f.flightLag, "flight-lag", 100*time.Millisecond, "write a dump when a loop iteration takes this long, with --flight-dir")
	flags.StringVar(&f.memoryLimit, "memory-limit", "", "set Go's memory limit to this share of the memory of the cgroup or machine, such as 75%; auto is 90% (default: GOMEMLIMIT, or none)")
}

// addIntFlag adds a flag whose default is the current value of *field. In error messages, the name of the flag replaces
// fieldName.
func (f *serverFlags) addIntFlag(flags *pflag.FlagSet, field *int, name, fieldName, help string) {
	if *field != 0 {
		help, _, _ = strings.Cut(help, " (default") // pflag prints the default
	}
	flags.IntVar(field, name, *field, help)
	f.flagsByField[fieldName] = name
}

func (f *serverFlags) validateAndConfigure(cmd *cobra.Command) (err error) {
	if cmd.Flags().Changed("flight-lag") && (f.flightDir == "" || f.flightLag <= 0) {
		return usagef("--flight-lag is %v; expected more than 0, and --flight-dir", f.flightLag)
	}
	srv := &f.srv
	srv.DropTLSExporters = true // no application here exports keying material
	if srv.TLSConfig, err = f.tls.newReloadingTLSConfigOrNil(); err != nil {
		return err
	}
	if f.tls.pair != nil {
		f.reloads = append(f.reloads, f.tls.reloadCertificate)
	}
	if srv.Network != "unix" && !isSystemdAddr(srv.Addr) && srv.Addr != "" {
		if err := validateHostPort("addr", srv.Addr); err != nil {
			return err
		}
	}
	return f.admin.validate()
}

// isSystemdAddr reports whether addr stands for a listener that systemd has opened.
func isSystemdAddr(addr string) bool {
	name, ok := strings.CutPrefix(addr, "systemd")
	return ok && (name == "" || name[0] == ':')
}

func parseOnePrefixOrAddr(text string) ([]netip.Prefix, error) {
	if p, err := netip.ParsePrefix(text); err == nil {
		return []netip.Prefix{p}, nil
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return nil, quantity.Error("a network such as 10.0.0.0/8 or an address such as 10.1.2.3")
	}
	return []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, nil
}

func parseDurationOrNever(text string) (time.Duration, error) {
	if text == "never" {
		return tcp.Never, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, quantity.Error("a duration such as 1.5s, or never")
	}
	return d, nil
}

func parseSlowConsumerPolicy(text string) (tcp.SlowConsumer, error) {
	switch text {
	case "close":
		return tcp.CloseConn, nil
	case "drop":
		return tcp.DropMessage, nil
	}
	return 0, quantity.Error("close or drop")
}

func parseOnOff(text string) (off bool, err error) {
	switch text {
	case "on", "off":
		return text == "off", nil
	}
	return false, quantity.Error("on or off")
}

// systemdListenerIfRequested returns the listener that systemd has opened for --addr. If --addr is an ordinary address,
// it returns nil.
func (f *serverFlags) systemdListenerIfRequested() (net.Listener, error) {
	if !isSystemdAddr(f.srv.Addr) {
		return nil, nil
	}
	listeners, err := tcp.ActivatedListeners()
	if err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(strings.TrimPrefix(f.srv.Addr, "systemd"), ":")
	var names []string
	for _, l := range listeners {
		if name == "" || l.Name == name {
			return l, nil
		}
		names = append(names, l.Name)
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("--addr is %q, but no socket was passed to this process; expected LISTEN_FDS, and LISTEN_PID with the ID of this process, as set by systemd (a wrapper must use exec)", f.srv.Addr)
	}
	return nil, fmt.Errorf("--addr is %q; expected systemd, or systemd:NAME with the NAME of a socket that was passed: %s", f.srv.Addr, strings.Join(names, ", "))
}

func (f *serverFlags) replaceFieldsWithFlags(text string) string {
	fields := slices.SortedFunc(maps.Keys(f.flagsByField), func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, field := range fields {
		pairs = append(pairs, field, "--"+f.flagsByField[field])
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// setGoMemoryLimitIfRequested sets Go's memory limit as --memory-limit requires, and prints the limit. It does nothing
// if GOMEMLIMIT is set, or if the size of the memory is unknown.
func (f *serverFlags) setGoMemoryLimitIfRequested(cmd *cobra.Command) error {
	if f.memoryLimit == "" {
		return nil
	}
	percent := int64(90)
	if f.memoryLimit != "auto" {
		text, isPercent := strings.CutSuffix(f.memoryLimit, "%")
		n, err := strconv.Atoi(text)
		if !isPercent || err != nil || n < 1 || n > 100 {
			return usagef("--memory-limit is %q; expected auto or 1%% to 100%%", f.memoryLimit)
		}
		percent = int64(n)
	}
	available, from := cgroup.SmallestKnownMemoryLimit()
	if os.Getenv("GOMEMLIMIT") != "" || available == math.MaxInt64 {
		return nil
	}
	limit := available / 100 * percent / int64(max(f.srv.Processes, 1))
	debug.SetMemoryLimit(limit)
	if _, worker := tcp.WorkerProcess(); !worker {
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: memory limit %d MiB of %d MiB (%s)\n", limit>>20, available>>20, from)
	}
	return nil
}
