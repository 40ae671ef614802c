package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/hub/cluster"
	"github.com/myriad-go/myriad/internal/secure"
)

type clusterFlags struct {
	cluster.Config
	peers  cluster.Peers
	replay string // topics, separated by commas

	nats                         natsFlags
	secret                       secretFlag
	join                         string
	peersCert, peersKey, peersCA string
}

const clusterSecretVariable = "MYRIAD_CLUSTER_SECRET"

func (f *clusterFlags) addFlags(flags *pflag.FlagSet) {
	f.nats.addFlags(flags, "", "join other hubs through these NATS servers: `URL`s such as nats://user:password@host:4222 or tls://host, separated by commas, or @FILE with them (default off)")
	flags.StringVar(&f.peers.Addr, "cluster", "", "form a cluster with other hubs without a NATS server, and listen for them on this address; needs a secret (--cluster-secret) (default off)")
	flags.StringVar(&f.join, "join", "", "addresses of other hubs of the cluster, separated by commas; one that is running suffices, and this hub's own may be included")
	flags.StringVar(&f.peers.Advertise, "cluster-advertise", "", "address at which other hubs reach --cluster, if different")
	f.secret.addFlag(flags, "cluster-secret", clusterSecretVariable, "shared by all hubs of the cluster")
	flags.StringVar(&f.peersCert, "cluster-cert", "", "encrypt connections between hubs with TLS: PEM file with this hub's certificate chain, for servers and clients; reloaded when it changes (default off)")
	flags.StringVar(&f.peersKey, "cluster-key", "", "file with the private key of --cluster-cert")
	flags.StringVar(&f.peersCA, "cluster-ca", "", "file with the CA certificates of the cluster; hubs without a certificate that one of them has signed are rejected")
	flags.StringVar(&f.Name, "node", "", "display name of this hub (default: the host name)")
	flags.IntVar(&f.MaxWaiting, "cluster-waiting", 0, "limit for messages that wait for a connection to the other hubs, which do not receive further ones (default 65536)")
	flags.IntVar(&f.MaxWaitingBytes, "cluster-waiting-bytes", 0, "limit for the size of these messages in bytes (default 16777216)")
	flags.IntVar(&f.MaxSubjects, "cluster-subjects", 0, "limit for NATS subjects to subscribe to; with more topics this hub receives the messages of all topics (default 100000)")
	flags.DurationVar(&f.Linger, "cluster-linger", 0, "how long this hub keeps receiving a topic after its last subscriber has left (default 5s)")
}

// clusterOriginVariable is the environment variable that passes a node's identity to the new process of an upgrade.
const clusterOriginVariable = "MYRIAD_CLUSTER_ORIGIN"

func (f *hubFlags) addReplayFlags(flags *pflag.FlagSet) {
	r := &f.replay
	flags.StringVar(&f.cluster.replay, "replay", "", "keep messages of these topics for clients that reconnect: names, and prefixes such as news.* or chat:*, separated by commas; in a cluster, needs --replay-dir (default: none)")
	f.addIntFlag(flags, &r.MaxBytes, "replay-bytes", "Replay.MaxBytes", "limit for kept messages in bytes, in the memory of each hub and, in a cluster, on disk (default 67108864)")
	f.addIntFlag(flags, &r.MaxMessages, "replay-messages", "Replay.MaxMessages", "limit for kept messages (default 1000000)")
	f.addIntFlag(flags, &r.MaxMessagesPerTopic, "replay-topic-messages", "Replay.MaxMessagesPerTopic", "limit for kept messages of a topic in memory (default: no further limit)")
	f.addIntFlag(flags, &r.MaxBytesPerTopic, "replay-topic-bytes", "Replay.MaxBytesPerTopic", "limit for kept messages of a topic in memory, in bytes (default: no further limit)")
	flags.DurationVar(&r.MaxAge, "replay-age", 0, "how long to keep messages (default 1h)")
	f.flagsByField["Replay.MaxAge"] = "replay-age"
	f.addIntFlag(flags, &r.MaxReplays, "replay-clients", "Replay.MaxReplays", "limit for clients that receive missed messages at the same time; 64 times as many may wait (default 64)")
	f.addIntFlag(flags, &r.MaxReplaysEach, "replay-clients-each", "Replay.MaxReplaysEach", "limit for --replay-clients of one user; twice that for an address or IPv6 /64 network (default: a quarter of --replay-clients)")
	flags.DurationVar(&r.Timeout, "replay-timeout", 0, "time limit for one replay; slower clients are disconnected and resume when they reconnect (default 30s)")
	f.flagsByField["Replay.Timeout"] = "replay-timeout"
	flags.IntVar(&f.cluster.Replicas, "replay-replicas", 0, "NATS servers that keep each message, with --nats or --cluster (default 1; with --cluster 3)")
	flags.StringVar(&f.cluster.peers.Dir, "replay-dir", "", "directory of this hub for kept messages, with --cluster")
	f.flagsByField["Replay.Topics"] = "replay"
}

// validateAndSetReplay validates the flags for replay, and sets the hub's Replay if --replay is given.
func (f *hubFlags) validateAndSetReplay(cmd *cobra.Command) error {
	c := &f.cluster
	for _, flag := range []string{"replay-bytes", "replay-messages", "replay-topic-messages", "replay-topic-bytes", "replay-age", "replay-clients", "replay-clients-each", "replay-timeout", "replay-replicas", "replay-dir"} {
		if cmd.Flags().Changed(flag) && c.replay == "" {
			return usagef("--%s is given without --replay; expected both", flag)
		}
	}
	switch {
	case !cmd.Flags().Changed("replay"):
		return nil
	case cmd.Flags().Changed("replay-replicas") && !c.isClustered():
		return usagef("--replay-replicas is given without --nats or --cluster; expected one of them, because a single hub keeps messages in memory")
	case c.peers.Addr != "" && c.peers.Dir == "":
		return usagef("--replay is given with --cluster but without --replay-dir; expected --replay-dir DIR")
	case c.peers.Addr == "" && c.peers.Dir != "":
		return usagef("--replay-dir is given without --cluster; expected both")
	}
	f.replay.Topics = strings.Split(c.replay, ",")
	f.hub.Replay = &f.replay
	return nil
}

func (f *clusterFlags) isClustered() bool { return f.nats.urls != "" || f.peers.Addr != "" }

func (f *clusterFlags) validateAndConfigure(cmd *cobra.Command) (err error) {
	for _, needs := range []struct{ flag, of string }{
		{"nats-creds", "nats"}, {"nats-ca", "nats"}, {"join", "cluster"}, {"cluster-advertise", "cluster"}, {"cluster-secret", "cluster"},
		{"cluster-cert", "cluster"}, {"cluster-key", "cluster"}, {"cluster-ca", "cluster"},
	} {
		if cmd.Flags().Changed(needs.flag) && !cmd.Flags().Changed(needs.of) {
			return usagef("--%s is given without --%s; expected both", needs.flag, needs.of)
		}
	}
	for _, flag := range []string{"node", "cluster-waiting", "cluster-waiting-bytes", "cluster-subjects", "cluster-linger"} {
		if cmd.Flags().Changed(flag) && !f.isClustered() {
			return usagef("--%s is given without --nats or --cluster; expected one of them", flag)
		}
	}
	switch {
	case f.nats.urls != "" && f.peers.Addr != "":
		return usagef("--nats and --cluster are both given; expected one of the two")
	case f.nats.urls != "":
		f.Creds = f.nats.creds
		f.URLs, f.TLS, err = f.nats.parseURLsAndTrustedCA()
		return err
	case f.peers.Addr != "":
		return f.validateAndConfigurePeers()
	}
	return nil
}

func (f *clusterFlags) validateAndConfigurePeers() (err error) {
	if err := validateHostPort("cluster", f.peers.Addr); err != nil {
		return err
	}
	for addr := range strings.SplitSeq(f.join, ",") {
		if addr == "" {
			continue
		}
		if err := validateHostPort("join", addr); err != nil {
			return err
		}
		f.peers.Join = append(f.peers.Join, addr)
	}
	if f.peers.Secret, err = f.secret.readSecretFileOrVariable(); err != nil {
		return err
	}
	if f.peers.Secret == "" {
		return usagef("--cluster is given without a secret; expected --cluster-secret FILE, or %s in the environment", clusterSecretVariable)
	}
	f.Peers = &f.peers
	return f.configurePeerTLS()
}

func (f *clusterFlags) configurePeerTLS() error {
	switch given := f.peersCert + f.peersKey + f.peersCA; {
	case given == "":
		return nil // unencrypted
	case f.peersCert == "" || f.peersKey == "" || f.peersCA == "":
		return usagef("only some of --cluster-cert, --cluster-key and --cluster-ca are given; expected all three")
	}
	pair, err := secure.NewReloader(f.peersCert, f.peersKey, slog.Default())
	if err != nil {
		return usageError{err}
	}
	pool, err := readCertPool(f.peersCA)
	if err != nil {
		return err
	}
	own, _ := pair.GetCertificate(nil)
	if err := verifyForServerAndClientUse(own, pool); err != nil {
		return usagef("other hubs would reject --cluster-cert %s: %w; expected a certificate for servers and clients, signed by a CA in --cluster-ca", f.peersCert, err)
	}
	f.peers.TLS = &tls.Config{
		MinVersion: tls.VersionTLS12, RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		GetCertificate: pair.GetCertificate,
		GetClientCertificate: func(asked *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			own, _ := pair.GetCertificate(nil)
			// With TLS 1.3, a peer does not report why it rejects a certificate.
			if err := cmp.Or(asked.SupportsCertificate(own), verifyForServerAndClientUse(own, pool)); err != nil {
				return nil, fmt.Errorf("the other hub would reject --cluster-cert %s: %w; expected a certificate for servers and clients, signed by a CA in --cluster-ca", f.peersCert, err)
			}
			return own, nil
		},
	}
	return nil
}

func verifyForServerAndClientUse(pair *tls.Certificate, roots *x509.CertPool) error {
	chain := make([]*x509.Certificate, len(pair.Certificate))
	intermediates := x509.NewCertPool()
	for i, der := range pair.Certificate {
		var err error
		if chain[i], err = x509.ParseCertificate(der); err != nil {
			return err
		}
		intermediates.AddCert(chain[i])
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		o := x509.VerifyOptions{Roots: roots, Intermediates: intermediates, KeyUsages: []x509.ExtKeyUsage{use}}
		if _, err := chain[0].Verify(o); err != nil {
			return err
		}
	}
	return nil
}

func (f *hubFlags) joinClusterIfRequested(cmd *cobra.Command) (leave func(), err error) {
	c := &f.cluster
	if !c.isClustered() {
		return func() {}, nil
	}
	out := cmd.ErrOrStderr()
	c.MaxMessage = f.hub.Limits.MaxMessage
	c.Origin = os.Getenv(clusterOriginVariable)
	_ = os.Unsetenv(clusterOriginVariable)
	c.Warn = func(line string) { fmt.Fprintf(out, "myriad: %s: %s\n", time.Now().Format(time.TimeOnly), line) }
	node, err := cluster.Start(&f.hub, c.Config)
	if err != nil {
		return nil, usagef("%s", f.replaceFieldsWithFlags(strings.TrimPrefix(err.Error(), "cluster: ")))
	}
	f.successorEnv = map[string]string{clusterOriginVariable: node.Origin()}
	if addr := node.Addr(); addr != "" {
		f.upgradeRefusal = "a hub with --cluster cannot be upgraded, because its embedded NATS server cannot pass its listener to a new process; this process continues to serve: restart one node after the other with SIGTERM, or run a separate nats-server and use --nats, which keeps clients connected"
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: listening for other hubs on %s; alone until one joins\n", addr)
	}
	return node.Close, nil
}
