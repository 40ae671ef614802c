package main

import (
	"crypto/tls"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/hub/cluster"
)

// clusterFlags are those by which a hub joins others.
type clusterFlags struct {
	cluster.Config
	peers  cluster.Peers
	replay string // topics

	nats, ca, join, secretFile string
}

// secretVariable is where the secret of a cluster is looked for without a file of it.
const secretVariable = "MYRIAD_CLUSTER_SECRET"

func (f *clusterFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.nats, "nats", "", "join other hubs through these servers of NATS: URLs such as nats://user:password@host:4222 or tls://host, separated by commas, or @FILE with them (default: alone)")
	flags.StringVar(&f.Creds, "nats-creds", "", "file with the credentials of a user of NATS")
	flags.StringVar(&f.ca, "nats-ca", "", "file with the certificates of those who sign for the servers of NATS (default: those of the system)")
	flags.StringVar(&f.peers.Addr, "cluster", "", "form a cluster with other hubs, without a server of NATS, and listen for them on this address (default: alone)")
	flags.StringVar(&f.join, "join", "", "addresses of other hubs of the cluster, separated by commas; one is enough if it is there, its own may be among them")
	flags.StringVar(&f.peers.Advertise, "cluster-advertise", "", "address by which the other hubs reach --cluster, where that is another")
	flags.StringVar(&f.secretFile, "cluster-secret", "", "file with what all hubs of the cluster share (default: "+secretVariable+" in the environment)")
	flags.StringVar(&f.Name, "node", "", "name of this hub, for people (default: the host's name)")
	flags.IntVar(&f.MaxWaiting, "cluster-waiting", 0, "most messages that wait for a connection to the other hubs; further ones are lost to those (default 65536)")
	flags.IntVar(&f.MaxWaitingBytes, "cluster-waiting-bytes", 0, "most bytes of them (default 16777216)")
	flags.IntVar(&f.MaxSubjects, "cluster-subjects", 0, "most subjects of NATS to subscribe to; with more topics, those of all hubs come here (default 100000)")
	flags.DurationVar(&f.Linger, "cluster-linger", 0, "how long a topic's messages still come here after its last subscriber has gone (default 5s)")
}

// addReplay adds those by which messages are kept.
func (f *hubFlags) addReplay(flags *pflag.FlagSet) {
	r := &f.replay
	flags.StringVar(&f.cluster.replay, "replay", "", "keep the messages of these topics for clients that come again, with --nats or --cluster: names, and beginnings such as news.* or chat:*, separated by commas (default: none)")
	f.number(flags, &r.MaxBytes, "replay-bytes", "Replay.MaxBytes", "most bytes of messages to keep, in the memory of each hub and on disk (default 67108864)")
	f.number(flags, &r.MaxMessages, "replay-messages", "Replay.MaxMessages", "most messages to keep (default 1000000)")
	flags.DurationVar(&r.MaxAge, "replay-age", 0, "how long to keep them (default 1h)")
	f.fields["Replay.MaxAge"] = "replay-age"
	f.number(flags, &r.MaxReplays, "replay-clients", "Replay.MaxReplays", "most clients that are sent what they have missed at a time; 64 times as many wait (default 64)")
	flags.DurationVar(&r.Timeout, "replay-timeout", 0, "most time for that; who takes longer is closed, and goes on when it comes again (default 30s)")
	f.fields["Replay.Timeout"] = "replay-timeout"
	flags.IntVar(&f.cluster.Replicas, "replay-replicas", 0, "how many servers of NATS keep each message (default 1; with --cluster 3)")
	flags.StringVar(&f.cluster.peers.Dir, "replay-dir", "", "directory of this hub's own for what is kept, with --cluster")
	f.fields["Replay.Topics"] = "replay"
}

// checkReplay says what is wrong with those flags.
func (f *hubFlags) checkReplay(cmd *cobra.Command) error {
	c := &f.cluster
	for _, flag := range []string{"replay-bytes", "replay-messages", "replay-age", "replay-clients", "replay-timeout", "replay-replicas", "replay-dir"} {
		if cmd.Flags().Changed(flag) && c.replay == "" {
			return usagef("--%s is given without --replay", flag)
		}
	}
	switch {
	case !cmd.Flags().Changed("replay"):
		return nil
	case !c.some():
		return usagef("--replay is given without --nats or --cluster, which keep the messages")
	case (c.peers.Addr != "") != (c.peers.Dir != ""):
		return usagef("--replay with --cluster needs --replay-dir DIRECTORY, and --replay-dir needs --cluster")
	}
	f.replay.Topics = strings.Split(c.replay, ",")
	f.hub.Replay = &f.replay
	return nil
}

// some says whether the hub is to join others.
func (f *clusterFlags) some() bool { return f.nats != "" || f.peers.Addr != "" }

// check makes the configuration complete, and says what is wrong with the flags.
func (f *clusterFlags) check(cmd *cobra.Command) error {
	for _, needs := range []struct{ flag, of string }{
		{"nats-creds", "nats"}, {"nats-ca", "nats"}, {"join", "cluster"}, {"cluster-advertise", "cluster"}, {"cluster-secret", "cluster"},
	} {
		if cmd.Flags().Changed(needs.flag) && !cmd.Flags().Changed(needs.of) {
			return usagef("--%s is given without --%s", needs.flag, needs.of)
		}
	}
	for _, flag := range []string{"node", "cluster-waiting", "cluster-waiting-bytes", "cluster-subjects", "cluster-linger"} {
		if cmd.Flags().Changed(flag) && !f.some() {
			return usagef("--%s is given without --nats or --cluster", flag)
		}
	}
	switch {
	case f.nats != "" && f.peers.Addr != "":
		return usagef("--nats and --cluster are both given; expected one")
	case f.nats != "":
		return f.checkNATS()
	case f.peers.Addr != "":
		return f.checkPeers()
	}
	return nil
}

// natsURLs reads URLs, or the file that has them.
func natsURLs(flag string) (urls []string, err error) {
	text := flag
	if path, ok := strings.CutPrefix(text, "@"); ok {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, usagef("--nats: %w", err)
		}
		text = strings.TrimSpace(string(data))
	}
	for url := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == '\n' }) {
		urls = append(urls, strings.TrimSpace(url))
	}
	if len(urls) == 0 {
		return nil, usagef("--nats is %q; expected URLs such as nats://host:4222", flag)
	}
	return urls, nil
}

func (f *clusterFlags) checkNATS() (err error) {
	if f.URLs, err = natsURLs(f.nats); err != nil {
		return err
	}
	if f.ca == "" {
		return nil
	}
	pool, err := authorities(f.ca)
	if err != nil {
		return err
	}
	f.TLS = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return nil
}

func (f *clusterFlags) checkPeers() error {
	if err := checkAddress("cluster", f.peers.Addr); err != nil {
		return err
	}
	for addr := range strings.SplitSeq(f.join, ",") {
		if addr == "" {
			continue
		}
		if err := checkAddress("join", addr); err != nil {
			return err
		}
		f.peers.Join = append(f.peers.Join, addr)
	}
	f.peers.Secret = os.Getenv(secretVariable)
	if f.secretFile != "" {
		data, err := os.ReadFile(f.secretFile)
		if err != nil {
			return usagef("--cluster-secret: %w", err)
		}
		f.peers.Secret = strings.TrimSpace(string(data))
	}
	if f.peers.Secret == "" {
		return usagef("--cluster is given without a secret; expected --cluster-secret FILE, or %s in the environment", secretVariable)
	}
	f.Peers = &f.peers
	return nil
}

// joinCluster joins the others, where that is asked for; leave ends it.
func (f *hubFlags) joinCluster(cmd *cobra.Command) (leave func(), err error) {
	c := &f.cluster
	if !c.some() {
		return func() {}, nil
	}
	out := cmd.ErrOrStderr()
	c.MaxMessage = f.hub.Limits.MaxMessage
	c.Warn = func(line string) { fmt.Fprintf(out, "myriad: %s: %s\n", time.Now().Format(time.TimeOnly), line) }
	node, err := cluster.Start(&f.hub, c.Config)
	if err != nil {
		return nil, usagef("%s", f.asFlags(strings.TrimPrefix(err.Error(), "cluster: ")))
	}
	if addr := node.Addr(); addr != "" {
		f.noUpgrade = "the new process can't listen on --cluster while this one does; end this one, and start the new one"
		fmt.Fprintf(cmd.OutOrStdout(), "myriad: the cluster is joined on %s\n", addr)
	}
	return node.Close, nil
}
