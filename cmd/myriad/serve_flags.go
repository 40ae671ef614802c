package main

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/admin"
	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/pool"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	srv myriad.Server
	app appFlags
	tls serverTLS

	workers workerFlags

	allow, deny, proxies []string
	slow                 string
	beat                 string
	admin                adminFlags
	flights              string
	flightLag            time.Duration
	memory               string
	gogc                 int

	fields map[string]string // the flag of each field of Server, for messages
}

// add adds the flags to the command.
func (f *serveFlags) add(cmd *cobra.Command) {
	flags, srv, limits := cmd.Flags(), &f.srv, &f.srv.Limits
	f.fields = make(map[string]string)
	flags.StringVar(&srv.Addr, "addr", "127.0.0.1:9000", "address to listen on; 0.0.0.0 is IPv4 alone, no host is IPv6 too; port 0 takes a free one; systemd or systemd:NAME is a socket that systemd has opened (LISTEN_FDS)")
	flags.StringVar(&srv.Network, "network", "", "tcp, tcp4, tcp6, or unix for a socket at the path --addr (default tcp)")
	flags.StringVar(&srv.Model, "model", "", "I/O model: auto, "+strings.Join(myriad.Models(), ", ")+" (default auto: the last of these, with workers for slow handlers)")
	flags.IntVar(&srv.Loops, "loops", 0, "event loops, for a model that has them (default: half of the processors, more if --max-conns takes more)")
	f.app.add(cmd)
	flags.DurationVar(&srv.Spin, "spin", 0, "have a loop without work look for some so long before it blocks; costs a CPU for each loop (default: not at all)")
	f.workers.add(cmd)
	flags.IntVar(&srv.Processes, "processes", 0, "worker processes, each with --loops event loops, 1 by default (default: none, this process serves)")
	for _, name := range []string{"addr", "network", "model", "loops", "spin", "processes"} {
		f.fields["Server."+strings.ToUpper(name[:1])+name[1:]] = name
	}
	number := func(field *int, name, means, help string) {
		flags.IntVar(field, name, 0, help)
		f.fields[means] = name
	}
	number(&limits.MaxConns, "max-conns", "Limits.MaxConns", "most connections at a time; above the limit of descriptors event loops get a table each (default: what that limit allows)")
	number(&limits.MaxConnsPerSource, "max-conns-per-source", "Limits.MaxConnsPerSource", "most connections at a time from one address, or one IPv6 network of 64 bits (default: no limit)")
	number(&limits.AcceptRate, "accept-rate", "Limits.AcceptRate", "most connections accepted in a second; further ones wait (default: no limit)")
	number(&limits.MaxMessage, "max-message", "Limits.MaxMessage", "most bytes of a message (default 65536)")
	number(&limits.MaxUnsent, "max-unsent", "Limits.MaxUnsent", "most bytes of output that wait for one peer (default 1048576)")
	number(&limits.MaxBuffered, "max-buffered", "Limits.MaxBuffered", "most bytes of memory that all buffers hold (default: a quarter of the memory)")
	number(&limits.MaxHandshakes, "max-handshakes", "Limits.MaxHandshakes", "most TLS handshakes under way (default 4096)")
	number(&limits.ShutdownRate, "drain-rate", "Limits.ShutdownRate", "most connections a second that are told to end while the server drains (default 100000)")
	span := func(field *time.Duration, name, means, help string) {
		flags.Var((*span)(field), name, help)
		f.fields[means] = name
	}
	span(&limits.HandshakeTimeout, "handshake-timeout", "Limits.HandshakeTimeout", "most time for the PROXY header and the TLS handshake (default 10s)")
	span(&limits.FirstByteTimeout, "first-byte-timeout", "Limits.FirstByteTimeout", "most time until a peer's first byte (default 1m)")
	span(&limits.MessageTimeout, "message-timeout", "Limits.MessageTimeout", "most time from a message's first byte to its last (default 30s)")
	span(&limits.IdleTimeout, "idle-timeout", "Limits.IdleTimeout", "most time without a byte from the peer (default never)")
	span(&limits.WriteTimeout, "write-timeout", "Limits.WriteTimeout", "most time for a peer to take what waits for it (default 30s)")
	span(&limits.HandlerTime, "handler-time", "Limits.HandlerTime", "report handlers that take longer (default 1s)")
	span(&limits.ShutdownTimeout, "drain", "Limits.ShutdownTimeout", "most time to drain (default 30s)")
	flags.StringVar(&f.slow, "slow-consumer", "close", "what happens to a peer with --max-unsent bytes waiting: close the connection, or drop the message")
	flags.StringArrayVar(&f.allow, "allow", nil, "let in only this network, such as 10.0.0.0/8, or address; may be repeated")
	flags.StringArrayVar(&f.deny, "deny", nil, "keep out this network or address; may be repeated")
	flags.StringArrayVar(&f.proxies, "trusted-proxy", nil, "expect the PROXY protocol from this network or address, headers of at most 4096 bytes; may be repeated")
	flags.DurationVar(&srv.Heartbeat.Interval, "heartbeat", 0, "send a heartbeat to peers that have been silent so long (default: none)")
	flags.StringVar(&f.beat, "heartbeat-message", "ping\n", "what a heartbeat is")
	flags.IntVar(&srv.Heartbeat.MaxMissed, "heartbeat-missed", 0, "close a connection that leaves so many unanswered (default 2)")
	f.fields["Heartbeat.Interval"], f.fields["Heartbeat.MaxMissed"] = "heartbeat", "heartbeat-missed"
	f.tls.add(flags)
	f.admin.add(flags)
	flags.StringVar(&f.flights, "flight-dir", "", "record what happens all the time, and write the last seconds to this directory when a loop lags (default: not at all)")
	flags.DurationVar(&f.flightLag, "flight-lag", 100*time.Millisecond, "how long a turn of a loop may take before that is done")
	flags.StringVar(&f.memory, "memory-limit", "", "Go's memory limit: auto for 90 % of what the cgroup or the machine allows, or a per cent such as 75% (default: GOMEMLIMIT, or none)")
	flags.IntVar(&f.gogc, "gogc", 0, "Go's GOGC: garbage in per cent of live memory before it is collected; with it --memory-limit is auto (default: GOGC, or 100)")
}

// server is the server that the flags describe.
func (f *serveFlags) server(cmd *cobra.Command) (*myriad.Server, error) {
	f.app.server = &f.srv
	handler, err := f.app.handler(cmd)
	if err != nil {
		return nil, err
	}
	if err := f.workers.check(cmd, f.app.sheds()); err != nil {
		return nil, err
	}
	srv := &f.srv
	if f.app.name == "stall" {
		if err := f.app.stall.begin(cmd, srv); err != nil {
			return nil, err
		}
	}
	srv.Handler = handler
	switch f.slow {
	case "close":
	case "drop":
		srv.SlowConsumer = myriad.DropMessage
	default:
		return nil, usagef("--slow-consumer is %q; expected close or drop", f.slow)
	}
	for _, l := range []struct {
		flag string
		from []string
		to   *[]netip.Prefix
	}{{"allow", f.allow, &srv.Allow}, {"deny", f.deny, &srv.Deny}, {"trusted-proxy", f.proxies, &srv.TrustedProxies}} {
		if *l.to, err = prefixes(l.flag, l.from); err != nil {
			return nil, err
		}
	}
	if srv.Heartbeat.Interval != 0 {
		srv.Heartbeat.Message = []byte(f.beat)
	} else if cmd.Flags().Changed("heartbeat-message") || srv.Heartbeat.MaxMissed != 0 {
		return nil, usagef("--heartbeat-message and --heartbeat-missed are for heartbeats; expected them with --heartbeat")
	}
	if cmd.Flags().Changed("flight-lag") && (f.flights == "" || f.flightLag <= 0) {
		return nil, usagef("--flight-lag is %v; expected more than 0, with --flight-dir", f.flightLag)
	}
	if srv.TLSConfig, err = f.tls.config(); err != nil {
		return nil, err
	}
	return srv, nil
}

// checkAddresses says what is wrong with where to listen, before anybody does.
func (f *serveFlags) checkAddresses() error {
	tcp := f.srv.Network != "unix" && !fromSystemd(f.srv.Addr)
	if tcp && f.srv.Addr != "" {
		if err := checkAddress("addr", f.srv.Addr); err != nil {
			return err
		}
	}
	adminAddr := f.admin.addr
	if adminAddr == "" {
		return nil
	}
	if err := checkAddress("admin", adminAddr); err != nil {
		return err
	}
	if adminAddr[0] == ':' {
		adminAddr = "127.0.0.1" + adminAddr
	}
	if tcp && sameAddress(f.srv.Addr, adminAddr) {
		return usagef("--addr is %q and --admin is %q: both would listen on one port; expected two", f.srv.Addr, f.admin.addr)
	}
	return nil
}

// fromSystemd says whether an address means a listener of the service manager.
func fromSystemd(addr string) bool {
	name, ok := strings.CutPrefix(addr, "systemd")
	return ok && (name == "" || name[0] == ':')
}

// prefixes reads networks and addresses.
func prefixes(flag string, texts []string) (list []netip.Prefix, err error) {
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return nil, usagef("--%s is %q; expected a network such as 10.0.0.0/8 or an address such as 10.1.2.3", flag, text)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		list = append(list, p)
	}
	return list, nil
}

// listener is the one that the service manager has opened; nil if none is asked
// for.
func (f *serveFlags) listener() (net.Listener, error) {
	if !fromSystemd(f.srv.Addr) {
		return nil, nil
	}
	listeners, err := myriad.ActivatedListeners()
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
		return nil, fmt.Errorf("--addr is %q, and no socket was passed to this process; expected LISTEN_FDS as systemd sets it", f.srv.Addr)
	}
	return nil, fmt.Errorf("--addr is %q; expected one of the sockets that were passed: %s", f.srv.Addr, strings.Join(names, ", "))
}

// asFlags names flags instead of the fields that they set: longer names first,
// because some begin with another.
func (f *serveFlags) asFlags(text string) string {
	fields := slices.SortedFunc(maps.Keys(f.fields), func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, field := range fields {
		pairs = append(pairs, field, "--"+f.fields[field])
	}
	return strings.NewReplacer(pairs...).Replace(text)
}

// span is a duration that may be never.
type span time.Duration

func (s *span) String() string {
	switch time.Duration(*s) {
	case 0:
		return ""
	case myriad.Never:
		return "never"
	}
	return time.Duration(*s).String()
}

func (s *span) Set(text string) error {
	if text == "never" {
		*s = span(myriad.Never)
		return nil
	}
	d, err := time.ParseDuration(text)
	*s = span(d)
	return err
}

func (s *span) Type() string { return "duration" }

var _ pflag.Value = (*span)(nil)

// serverTLS are the flags of a server's side of TLS.
type serverTLS struct {
	cert, key, clientCA string

	pair *secure.Reloader // of cert and key, nil without them
}

func (f *serverTLS) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.cert, "tls-cert", "", "encrypt with TLS: file with the certificate chain, in PEM form; read again when it changes")
	flags.StringVar(&f.key, "tls-key", "", "file with the key of --tls-cert")
	flags.StringVar(&f.clientCA, "tls-client-ca", "", "demand client certificates that an authority in this file has signed")
}

// config is the TLS configuration, nil if no TLS is asked for.
func (f *serverTLS) config() (*tls.Config, error) {
	if f.cert == "" && f.key == "" {
		if f.clientCA != "" {
			return nil, usagef("--tls-client-ca is given without a certificate; expected --tls-cert and --tls-key too")
		}
		return nil, nil
	}
	if f.cert == "" || f.key == "" {
		return nil, usagef("only one of --tls-cert and --tls-key is given; expected both")
	}
	var err error
	if f.pair, err = secure.Reload(f.cert, f.key, slog.Default()); err != nil {
		return nil, usageError{err}
	}
	cfg := &tls.Config{GetCertificate: f.pair.GetCertificate}
	if f.clientCA != "" {
		cfg.ClientAuth = tls.RequireAndVerifyClientCert
		if cfg.ClientCAs, err = authorities(f.clientCA); err != nil {
			return nil, err
		}
	}
	return cfg, nil
}

// authorities reads the certificates of a file.
func authorities(file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, usageError{err}
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, usagef("no certificate in %s; expected PEM blocks of type CERTIFICATE", file)
	}
	return pool, nil
}

// workerFlags say which pool runs the application.
type workerFlags struct {
	workers string
	queue   int
	target  time.Duration

	cfg  pool.Config
	pool *pool.Pool // nil without
}

// add adds the flags to a command.
func (f *workerFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.workers, "workers", "", "run the application on workers, off the event loops: a number for at most so many, MIN-MAX or adaptive for as many as the work needs, which sheds overload if the application is work (default: on the loops)")
	flags.IntVar(&f.queue, "workers-queue", 0, "how many connections may wait for a worker; -1 for none (default: as many as there are --workers, 1024 with adaptive and MIN-MAX)")
	flags.DurationVar(&f.target, "workers-target", 0, "how long they may wait before the pool is overloaded, with adaptive and MIN-MAX (default 5ms)")
}

// some says whether there are to be workers.
func (f *workerFlags) some() bool { return f.workers != "" && f.workers != "0" }

// check reads the flags. The rules are for an application that can say that it is
// busy: for another one what is shed would only come again.
func (f *workerFlags) check(cmd *cobra.Command, sheds bool) (err error) {
	if !f.some() {
		if f.queue != 0 || f.target != 0 {
			return usagef("--workers-queue and --workers-target are for workers; expected them with --workers")
		}
		return nil
	}
	cfg, adapts := &f.cfg, true
	least, most, isRange := strings.Cut(f.workers, "-")
	switch {
	case f.workers == "adaptive":
	case isRange:
		cfg.Min, err = strconv.Atoi(least)
		if err == nil {
			cfg.Max, err = strconv.Atoi(most)
		}
	default:
		adapts = false
		cfg.Max, err = strconv.Atoi(f.workers)
		cfg.Queue, cfg.Off = cfg.Max, pool.AllRules
	}
	switch {
	case err != nil || cfg.Max < 1 && f.workers != "adaptive":
		return usagef("--workers is %q; expected a number such as 128, MIN-MAX such as 2-1000, or adaptive", f.workers)
	case f.target != 0 && !adapts:
		return usagef("--workers-target is %v with --workers %s; expected it with --workers adaptive or MIN-MAX", f.target, f.workers)
	}
	if cmd.Flags().Changed("workers-queue") {
		cfg.Queue = f.queue
	}
	cfg.Target = f.target
	if adapts && !sheds {
		cfg.Off = pool.Shedding | pool.NewestFirst
	}
	return nil
}

// start makes the pool, if there is to be one, and gives it to the server. With
// worker processes each of them has one; their supervisor only sees that it can be
// made.
func (f *workerFlags) start(srv *myriad.Server) error {
	if !f.some() {
		return nil
	}
	p, err := pool.New(f.cfg)
	if err != nil {
		return usagef("--workers %s: %s", f.workers, workerFields.Replace(err.Error()))
	}
	if _, worker := myriad.WorkerProcess(); srv.Processes > 1 && !worker {
		_, err = p.Close(context.Background())
		return err
	}
	f.pool, srv.Workers = p, p
	return nil
}

// workerFields names flags instead of the fields of a pool.Config.
var workerFields = strings.NewReplacer("pool: bad configuration: ", "", "Queue is", "--workers-queue is", "Target is", "--workers-target is")

// stop closes the pool, when the server has ended.
func (f *workerFlags) stop() {
	if f.pool != nil {
		_, _ = f.pool.Close(context.Background()) // all connections have come back from it
	}
}

// adminFlags are those of the admin server.
type adminFlags struct {
	addr      string
	control   bool
	tokenFile string
}

func (f *adminFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.addr, "admin", "", "serve a page that follows this server, metrics, health, profiles and traces over HTTP on this address, on loopback if it has no host (default: not at all)")
	flags.BoolVar(&f.control, "admin-control", false, "let who knows the token pause accepting, close connections and drain from there; the token is printed unless it is in --admin-token-file (default: nobody can)")
	flags.StringVar(&f.tokenFile, "admin-token-file", "", fmt.Sprintf("file with the token for --admin-control, %d bytes or more (default: a random one)", admin.MinToken))
}

// check says what does not go together.
func (f *adminFlags) check() error {
	switch {
	case f.control && f.addr == "":
		return usagef("--admin-control is for the page of --admin; expected it with --admin")
	case f.tokenFile != "" && !f.control:
		return usagef("--admin-token-file is for --admin-control; expected it with that")
	}
	return nil
}

// maxTokenFile bounds what is read of a file.
const maxTokenFile = 4096

// token is what lets somebody control the server, "" for nobody.
func (f *adminFlags) token(out io.Writer) (string, error) {
	if err := f.check(); err != nil || !f.control {
		return "", err
	}
	if f.tokenFile == "" {
		token := rand.Text()
		fmt.Fprintf(out, "myriad: the token for --admin-control is %s\n", token)
		return token, nil
	}
	file, err := os.Open(f.tokenFile)
	if err != nil {
		return "", usagef("--admin-token-file: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(io.LimitReader(file, maxTokenFile))
	if err != nil {
		return "", usagef("--admin-token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if len(token) < admin.MinToken {
		return "", usagef("--admin-token-file %s has %d bytes; expected a token of %d or more", f.tokenFile, len(token), admin.MinToken)
	}
	return token, nil
}
