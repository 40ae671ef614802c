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
	"github.com/myriad-go/myriad/internal/format"
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
			"One port serves the Redis protocol (SUBSCRIBE, PSUBSCRIBE, PUBLISH and PUBSUB) and HTTP: a page to\n" +
			"watch and publish, WebSockets, server-sent events, and POST to publish. Messages are not stored, except\n" +
			"the newest of each topic with --last-values, and those of --replay for browsers that reconnect. With\n" +
			"--nats or --cluster, a message reaches the subscribers of all joined hubs.\n\n" +
			"SIGINT or SIGTERM stops accepting and drains; a second one stops at once. SIGHUP reloads --users and\n" +
			"--tls-cert; without these flags it also drains, unless the signal is ignored (nohup). SIGUSR2 starts\n" +
			"the current executable with the same arguments as a new process, which takes over the clients and\n" +
			"their subscriptions (Linux).",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.serveHub(cmd) },
	}
	f.addFlags(cmd)
	return cmd
}

type hubFlags struct {
	serverFlags
	hub      hub.Hub
	replay   hub.Replay
	users    string
	cluster  clusterFlags
	tlsAddr  string
	insecure bool
}

// Default limits of a hub.
const (
	defaultHubMaxMessage   = 1 << 20
	defaultHubMaxUnsent    = 8 << 20     // as Redis's soft limit for slow subscribers
	defaultHubWriteTimeout = time.Minute // as Redis's soft limit for slow subscribers
)

func (f *hubFlags) addFlags(cmd *cobra.Command) {
	flags, limits := cmd.Flags(), &f.hub.Limits
	f.srv.Limits = tcp.Limits{MaxMessage: defaultHubMaxMessage, MaxUnsent: defaultHubMaxUnsent, WriteTimeout: defaultHubWriteTimeout}
	f.serverFlags.addFlags(flags, "127.0.0.1:6379")
	flags.StringVar(&f.tlsAddr, "tls-addr", "", "additional address to listen on with TLS; --addr is then unencrypted (default: with --tls-cert, TLS on --addr)")
	flags.StringVar(&f.users, "users", "", "file with users and their rights, in the format of Redis ACL files (default: no access control)")
	flags.BoolVar(&f.insecure, "insecure", false, "allow clients on other machines without --users or --tls-client-ca")
	flags.DurationVar(&f.srv.Heartbeat.Interval, "heartbeat", 0, "ping WebSockets and event streams after this time without input, such as 30s behind a proxy (default off)")
	f.flagsByField["Heartbeat.Interval"] = "heartbeat"
	flags.BoolVar(&f.hub.Compression, "compression", false, "compress messages of 1 KiB and more for WebSockets that accept it")
	flags.StringArrayVar(&f.hub.Origins, "origin", nil, "allow pages of this `ORIGIN`, such as https://example.com, to use the hub (repeatable; default: only pages of the hub)")
	f.cluster.addFlags(flags)
	f.addReplayFlags(flags)
	f.flagsByField["Peers.Join"] = "join"
	f.addIntFlag(flags, &limits.PublishRate, "publish-rate", "Limits.PublishRate", "limit for messages per second that a client publishes (default: no limit)")
	f.addIntFlag(flags, &limits.MaxFailedLogins, "max-failed-logins", "Limits.MaxFailedLogins", "limit for consecutive failed logins on a connection; ten times that per minute for an address (default 10)")
	f.addIntFlag(flags, &limits.LastValues, "last-values", "Limits.LastValues", "number of topics whose newest message is kept for later subscribers (default 0)")
	f.addIntFlag(flags, &limits.LastValueBytes, "last-value-bytes", "Limits.LastValueBytes", "limit for the memory of --last-values in bytes (default 67108864)")
	f.addIntFlag(flags, &limits.MaxTopics, "max-topics", "Limits.MaxTopics", "limit for topics with subscribers, and for patterns (default 10000000)")
	f.addIntFlag(flags, &limits.MaxName, "max-name", "Limits.MaxName", "limit for the length of a topic's name in bytes (default 1024)")
	f.addIntFlag(flags, &limits.MaxSubscriptions, "max-subscriptions", "Limits.MaxSubscriptions", "limit for topics and patterns that a client subscribes to (default 100000)")
	f.addIntFlag(flags, &limits.MaxPatternWork, "max-pattern-work", "Limits.MaxPatternWork", "limit for the work of matching one message against all patterns, in units of about 10 ns (default 100000)")
	f.addIntFlag(flags, &limits.MaxPatternCost, "max-pattern-cost", "Limits.MaxPatternCost", "limit for the cost of a client's patterns; twice that for all clients of an address (default 25000)")
	f.addIntFlag(flags, &limits.MaxSubscribers, "max-subscribers", "Limits.MaxSubscribers", "limit for subscribers of a topic (default: no limit)")
}

func (f *hubFlags) serveHub(cmd *cobra.Command) error {
	if err := f.validateAndSetUp(cmd); err != nil {
		return err
	}
	leaveCluster, err := f.joinClusterIfRequested(cmd)
	if err != nil {
		return err
	}
	defer leaveCluster()
	return f.serveUntilSignal(cmd, "hub")
}

func (f *hubFlags) validateAndSetUp(cmd *cobra.Command) error {
	if err := f.validateAndConfigure(cmd); err != nil {
		return err
	}
	f.hub.Limits.MaxMessage = f.srv.Limits.MaxMessage
	if err := f.validateAndSetReplay(cmd); err != nil {
		return err
	}
	if err := f.hub.Check(); err != nil {
		return usagef("%s", strings.TrimPrefix(f.replaceFieldsWithFlags(err.Error()), "hub: "))
	}
	if err := f.cluster.validateAndConfigure(cmd); err != nil {
		return err
	}
	if err := f.readUsersAndRegisterReload(cmd); err != nil {
		return err
	}
	if err := f.moveTLSToOwnListenerIfRequested(); err != nil {
		return err
	}
	if err := f.requireAuthForRemoteClients(); err != nil {
		return err
	}
	f.srv.Handler = f.hub.Handler()
	f.collectors = append(f.collectors, metrics.NewHubCollector(&f.hub, nil))
	f.pages = append(f.pages, admin.Page{Path: "/hub", Text: "topics, messages and slow subscribers", Handler: f.hub.StatsAndSlowPage(&f.srv)})
	return nil
}

func (f *hubFlags) moveTLSToOwnListenerIfRequested() error {
	if f.tlsAddr == "" {
		return nil
	}
	if f.srv.TLSConfig == nil {
		return usagef("--tls-addr is given without a certificate; expected --tls-cert and --tls-key too")
	}
	if err := validateHostPort("tls-addr", f.tlsAddr); err != nil {
		return err
	}
	f.srv.Listeners = []tcp.Listener{{Addr: f.tlsAddr, TLSConfig: f.srv.TLSConfig}}
	f.srv.TLSConfig = nil
	return nil
}

// requireAuthForRemoteClients returns an error if the flags permit remote clients to connect without authentication. If
// --insecure is given, it returns nil.
func (f *hubFlags) requireAuthForRemoteClients() error {
	if f.insecure || f.hub.Users != nil || f.srv.Network == "unix" {
		return nil
	}
	for flag, addr := range map[string]string{"addr": f.srv.Addr, "tls-addr": f.tlsAddr} {
		needsClientCert := f.tls.clientCA != "" && (flag == "tls-addr" || f.tlsAddr == "")
		if addr != "" && !needsClientCert && !isLoopbackAddr(addr) {
			return usagef("--%s is %q, which lets any client read and publish everything; expected --users, a loopback address, or --insecure", flag, addr)
		}
	}
	return nil
}

// isLoopbackAddr reports whether addr is on loopback. It returns false for a listener from systemd.
func isLoopbackAddr(addr string) bool {
	a, err := net.ResolveTCPAddr("tcp", addr)
	return err == nil && a.IP.IsLoopback()
}

func (f *hubFlags) readUsersAndRegisterReload(cmd *cobra.Command) error {
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
	f.reloads = append(f.reloads, func() string { return f.reloadUsersAndCloseRevoked(cmd.Context()) })
	return nil
}

// closeRevokedTimeout limits the time for checking the rights of all clients after the users file has been reloaded.
const closeRevokedTimeout = 30 * time.Second

// reloadUsersAndCloseRevoked reads the users file again, and closes clients that have lost their rights.
func (f *hubFlags) reloadUsersAndCloseRevoked(ctx context.Context) (resultText string) {
	file, err := os.Open(f.users)
	if err == nil {
		defer file.Close()
		err = f.hub.Users.Reload(file)
	}
	if err != nil {
		return fmt.Sprintf("cannot reload the users; the old ones remain in use: %v", err)
	}
	ctx, cancel := context.WithTimeout(ctx, closeRevokedTimeout)
	defer cancel()
	switch closed, err := f.hub.CloseRevoked(ctx, &f.srv); {
	case errors.Is(err, tcp.ErrServerClosed):
		return fmt.Sprintf("users %s reloaded", f.users)
	case err != nil:
		return fmt.Sprintf("users %s reloaded; closed %s, but not all were checked: %v", f.users, format.Plural(int64(closed), "client", "clients"), err)
	default:
		return fmt.Sprintf("users %s reloaded; closed %s rights", f.users, format.Plural(int64(closed), "client that has lost its", "clients that have lost their"))
	}
}
