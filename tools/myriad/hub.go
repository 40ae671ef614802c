package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/admin"
	"github.com/myriad-go/myriad/tools/metrics"
)

func newHubCommand() *cobra.Command {
	f := &hubFlags{}
	cmd := &cobra.Command{
		Use:   "hub",
		Short: "Serve publish/subscribe to Redis clients and browsers",
		Long: "Serve publish/subscribe to Redis clients and browsers.\n\n" +
			"On one port there are the Redis protocol, with SUBSCRIBE, PSUBSCRIBE, PUBLISH and PUBSUB, and HTTP:\n" +
			"a page to watch and publish, WebSockets, server-sent events, and POST to publish. Messages are kept\n" +
			"for nobody who is not there, but for the last of each topic with --last-values. With --nats or\n" +
			"--cluster a message reaches the subscribers of all hubs that are joined so, and --replay keeps those\n" +
			"of some topics for browsers that come again.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once. SIGHUP reloads --users and\n" +
			"--tls-cert; without either it drains, too, unless it is ignored (nohup). SIGUSR2 has a new\n" +
			"process, of the executable as it is by then and with the same arguments, take over the clients with\n" +
			"their subscriptions (Linux); those with TLS are drained.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serveHub(cmd) },
	}
	f.addFlags(cmd)
	return cmd
}

// hubFlags are the flags of hub.
type hubFlags struct {
	serverFlags
	hub      hub.Hub
	replay   hub.Replay
	users    string
	cluster  clusterFlags
	tlsAddr  string
	insecure bool
}

// The defaults of a hub's limits that are not those of every server: a subscriber may be slow
// for a minute, or by 8 MiB, as with the soft limit that Redis has for them.
const (
	defaultHubMaxMessage   = 1 << 20
	defaultHubMaxUnsent    = 8 << 20
	defaultHubWriteTimeout = time.Minute
)

// addFlags adds the flags to the command.
func (f *hubFlags) addFlags(cmd *cobra.Command) {
	flags, limits := cmd.Flags(), &f.hub.Limits
	f.srv.Limits = tcp.Limits{MaxMessage: defaultHubMaxMessage, MaxUnsent: defaultHubMaxUnsent, WriteTimeout: defaultHubWriteTimeout}
	f.serverFlags.addFlags(flags, "127.0.0.1:6379")
	flags.StringVar(&f.tlsAddr, "tls-addr", "", "further address to listen on, with TLS; --addr is in clear then (default: with --tls-cert, TLS on --addr)")
	flags.StringVar(&f.users, "users", "", "file with users and their rights, as an ACL file of Redis (default: everybody may do everything)")
	flags.BoolVar(&f.insecure, "insecure", false, "let everybody in who reaches this machine, without --users or --tls-client-ca")
	flags.DurationVar(&f.srv.Heartbeat.Interval, "heartbeat", 0, "ping WebSockets, and write to streams of events, that have been silent so long, such as 30s behind a proxy (default: never)")
	f.flagsByField["Heartbeat.Interval"] = "heartbeat"
	flags.StringArrayVar(&f.hub.Origins, "origin", nil, "let pages of this site, such as https://example.com, use the hub (repeatable)")
	f.cluster.addFlags(flags)
	f.addReplayFlags(flags)
	f.flagsByField["Peers.Join"] = "join"
	f.addIntFlag(flags, &limits.PublishRate, "publish-rate", "Limits.PublishRate", "most messages that a client publishes in a second (default: no limit)")
	f.addIntFlag(flags, &limits.MaxFailedLogins, "max-failed-logins", "Limits.MaxFailedLogins", "most failed logins of a connection, and a tenth of those of an address in a minute (default 10)")
	f.addIntFlag(flags, &limits.LastValues, "last-values", "Limits.LastValues", "keep the newest message of so many topics, for those who subscribe later (default: of none)")
	f.addIntFlag(flags, &limits.LastValueBytes, "last-value-bytes", "Limits.LastValueBytes", "most bytes of memory for all of them (default 67108864)")
	f.addIntFlag(flags, &limits.MaxTopics, "max-topics", "Limits.MaxTopics", "most topics that have subscribers, and as many patterns (default 10000000)")
	f.addIntFlag(flags, &limits.MaxName, "max-name", "Limits.MaxName", "most bytes of a topic's name (default 1024)")
	f.addIntFlag(flags, &limits.MaxSubscriptions, "max-subscriptions", "Limits.MaxSubscriptions", "most topics and patterns that a client subscribes to (default 100000)")
	f.addIntFlag(flags, &limits.MaxPatternWork, "max-pattern-work", "Limits.MaxPatternWork", "most work of a publish with the patterns of all clients, in units of some 10 ns (default 100000)")
	f.addIntFlag(flags, &limits.MaxPatternCost, "max-pattern-cost", "Limits.MaxPatternCost", "limit for the cost of a client's patterns; an address has twice as much (default 25000)")
	f.addIntFlag(flags, &limits.MaxSubscribers, "max-subscribers", "Limits.MaxSubscribers", "most subscribers of a topic (default: no limit)")
}

// serveHub serves until a signal has ended it.
func (f *hubFlags) serveHub(cmd *cobra.Command) error {
	if err := f.validateAndSetUp(cmd); err != nil {
		return err
	}
	leaveCluster, err := f.joinCluster(cmd)
	if err != nil {
		return err
	}
	defer leaveCluster()
	return f.runServer(cmd, "hub")
}

// validateAndSetUp makes the server complete.
func (f *hubFlags) validateAndSetUp(cmd *cobra.Command) error {
	if err := f.validateAndComplete(cmd); err != nil {
		return err
	}
	f.hub.Limits.MaxMessage = f.srv.Limits.MaxMessage
	if err := f.validateReplayFlags(cmd); err != nil {
		return err
	}
	if err := f.hub.Check(); err != nil {
		return usagef("%s", strings.TrimPrefix(f.replaceFieldsWithFlags(err.Error()), "hub: "))
	}
	if err := f.cluster.validateAndComplete(cmd); err != nil {
		return err
	}
	if err := f.readUsers(cmd); err != nil {
		return err
	}
	if err := f.setUpTLSListener(); err != nil {
		return err
	}
	f.srv.Handler = f.hub.Handler()
	f.collectors = append(f.collectors, metrics.NewHubCollector(&f.hub, nil))
	f.pages = append(f.pages, admin.Page{Path: "/hub", Text: "topics, messages, and who reads too slowly", Handler: f.hub.Operator(&f.srv)})
	return nil
}

// setUpTLSListener says where the server listens with TLS, and where everybody may come in.
func (f *hubFlags) setUpTLSListener() error {
	if f.tlsAddr != "" {
		if f.srv.TLSConfig == nil {
			return usagef("--tls-addr is given without a certificate; expected --tls-cert and --tls-key too")
		}
		if err := validateListenAddr("tls-addr", f.tlsAddr); err != nil {
			return err
		}
		f.srv.Listeners = []tcp.Listener{{Addr: f.tlsAddr, TLSConfig: f.srv.TLSConfig}}
		f.srv.TLSConfig = nil
	}
	if f.insecure || f.hub.Users != nil || f.srv.Network == "unix" {
		return nil
	}
	for flag, addr := range map[string]string{"addr": f.srv.Addr, "tls-addr": f.tlsAddr} {
		needsClientCert := f.tls.clientCA != "" && (flag == "tls-addr" || f.tlsAddr == "")
		if addr != "" && !needsClientCert && !isLoopback(addr) {
			return usagef("--%s is %q, and whoever reaches it could read and publish everything; expected --users, an address of loopback, or --insecure", flag, addr)
		}
	}
	return nil
}

// isLoopback says whether only this machine reaches an address. Of a socket of the service
// manager's that is not known.
func isLoopback(addr string) bool {
	a, err := net.ResolveTCPAddr("tcp", addr)
	return err == nil && a.IP.IsLoopback()
}

// readUsers reads the file of users, and has SIGHUP read it again.
func (f *hubFlags) readUsers(cmd *cobra.Command) error {
	if f.users == "" {
		return nil
	}
	file, err := os.Open(f.users)
	if err != nil {
		return usagef("--users: %w", err)
	}
	defer file.Close()
	if f.hub.Users, err = hub.ReadUsers(file); err != nil {
		return usagef("--users %s: %s", f.users, strings.TrimPrefix(err.Error(), "hub: users, "))
	}
	f.reloads = append(f.reloads, func() string { return f.reloadUsers(cmd.Context()) })
	return nil
}

// enforceTimeout bounds how long it takes to look at all clients.
const enforceTimeout = 30 * time.Second

// reloadUsers reads the file of users again, and says how that went.
func (f *hubFlags) reloadUsers(ctx context.Context) string {
	file, err := os.Open(f.users)
	if err == nil {
		defer file.Close()
		err = f.hub.Users.Reload(file)
	}
	if err != nil {
		return fmt.Sprintf("the users can't be reloaded, the old ones stay: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, enforceTimeout)
	defer cancel()
	switch closed, err := f.hub.Enforce(ctx, &f.srv); {
	case errors.Is(err, tcp.ErrServerClosed):
		return fmt.Sprintf("users %s reloaded", f.users)
	case err != nil:
		return fmt.Sprintf("users %s reloaded, %d clients closed, and not all were looked at: %v", f.users, closed, err)
	default:
		return fmt.Sprintf("users %s reloaded, %d clients closed that have lost their rights", f.users, closed)
	}
}
