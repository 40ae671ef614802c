// Package cluster connects hubs through NATS, so that a published message reaches the subscribers of all hubs:
//
//	h := &hub.Hub{}
//	node, err := cluster.Start(h, cluster.Config{URLs: []string{"nats://10.0.0.1:4222"}})
//	...
//	defer node.Close()
//
// A message is delivered at most once. Each node numbers its messages per topic, which lets receivers count lost
// messages.
package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
)

// Config configures a node. Set URLs to use an existing NATS cluster, or Peers to form a new one.
type Config struct {
	// URLs lists NATS servers. Examples are nats://user:password@10.0.0.1:4222, nats://token@host and tls://host.
	URLs []string
	// Creds is the path of a NATS credentials file. TLS configures connections to the servers. If Creds is empty, the
	// credentials are those in the URLs. If TLS is nil, the URLs determine whether connections are encrypted.
	Creds string
	TLS   *tls.Config

	// Peers makes the hubs form a NATS cluster of their own. The default is nil.
	Peers *Peers

	// Replicas is the number of NATS servers that store each message of Hub.Replay. With 3 replicas, one server may
	// fail. The maximum is 5. The default is 3 with Peers, and 1 without.
	Replicas int

	// Name identifies the node in statistics and log lines. The default is the host name.
	Name string
	// Origin identifies the node that this node replaces in an upgrade (see tcp.Server.Upgrade). Set Origin to
	// Node.Origin of the old process. The new node neither delivers nor sends messages until the clients have moved,
	// but waits for at most a minute. Origin cannot be used with Peers. The default "" means that this node does not
	// replace another one.
	Origin string
	// MaxMessage is the size in bytes of the largest message that the servers of Peers must accept. The default is 64
	// KiB, like that of hub.Limits.MaxMessage. The servers accept messages of up to 1,020 KiB even if MaxMessage is
	// smaller. Without Peers, MaxMessage is unused.
	MaxMessage int
	// MaxWaiting and MaxWaitingBytes limit the queue of messages to send, which can fill up while NATS is unreachable.
	// Further messages are lost and counted. The same limits apply to the queue for the stream of Hub.Replay, which
	// rejects further messages. The defaults are 65,536 and 16 MiB.
	MaxWaiting, MaxWaitingBytes int
	// MaxSubjects limits the number of NATS subjects to which the node is subscribed. If the hub needs more subjects,
	// the node instead subscribes to wildcards that cover all topics. The default is 100,000.
	MaxSubjects int
	// Linger is how long the node stays subscribed to an unused NATS subject. The default is 5 s.
	Linger time.Duration
	// Warn is called with a line for each problem. A line is dropped if it repeats a line of the last minute, or if
	// there are more than a few lines per second. With Peers, Warn is also called when the first other hub joins and
	// when the last other hub leaves. Warn must be safe for concurrent use. The default is nil.
	Warn func(line string)
}

// Peers configures hubs that form a cluster. Each hub embeds a NATS server.
type Peers struct {
	// Addr is the host and port to listen on for other servers. Advertise is the address that they use, if it differs.
	Addr, Advertise string
	// Join lists addresses of other servers in the cluster. One reachable server is enough, because it announces all
	// others. With Hub.Replay, list all other servers; at least two are required.
	Join []string
	// Secret is the secret that all servers of the cluster share. Without TLS, the secret is sent unencrypted.
	Secret string
	// TLS configures the encryption between servers. It applies to accepted connections and to connections that this
	// server opens. The default nil means no encryption.
	TLS *tls.Config
	// Dir is the directory in which the server stores its identity and the messages of Hub.Replay. The directory must
	// be persistent. Each node needs a directory of its own. Dir is required if Hub.Replay is set. Otherwise, Dir is
	// unused.
	//
	// Messages are stored only while a majority of the cluster's servers is up. In a new cluster, the servers in Join
	// are counted for this purpose. Later, all servers that have ever joined are counted, even if some no longer exist.
	Dir string
}

const (
	pingInterval      = 2 * time.Second
	maxPings          = 2
	connectTimeout    = 5 * time.Second
	writeTimeout      = 5 * time.Second
	minReconnectDelay = 100 * time.Millisecond
	reconnectJitter   = 400 * time.Millisecond
	closeTimeout      = 2 * time.Second // to send waiting messages
	maxOriginBytes    = 64
	headerReserve     = 4 << 10        // space for headers in a message
	sequenceHeader    = "Myriad"       // origin, era (see sequencer) and sequence number of a message
	topicHeader       = "Myriad-Topic" // escaped name that is too long for a subject
	serverMaxPayload  = 64 << 20
)

// Node connects a hub to a cluster. Messages of one publisher arrive in order. Methods are safe for concurrent use.
type Node struct {
	hub      *hub.Hub
	config   Config
	origin   string // random for each start, unless taken over from an old process
	server   *natsd.Server
	natsConn *nats.Conn

	outbox        *outbox
	subscriptions *subscriptions
	inbox         *inbox
	presence      *presence
	publisher     *streamPublisher // publisher and stream are nil without Replay
	stream        *replayStream

	// These fields copy the state of the nats.Conn, whose own methods block while it connects.
	connected  atomic.Bool
	maxPayload atomic.Int64 // of the last connected server

	sent, disconnects atomic.Int64
	warnings          warningLimiter
	reconnected       chan struct{} // capacity 1
	closing           atomic.Bool   // set before stopped is closed
	stopped           chan struct{}
	goroutines        sync.WaitGroup
	closeOnce         sync.Once
}

// Start connects h to a cluster and sets h.Cluster. Call Start before the hub serves clients. Call Node.Close to stop
// the node. If NATS is unreachable, Start still succeeds, and the node keeps trying to connect.
func Start(h *hub.Hub, c Config) (*Node, error) {
	if err := c.validate(h); err != nil {
		return nil, err
	}
	c = c.withDefaults()
	n := &Node{
		hub: h, config: c, origin: cmp.Or(c.Origin, newOrigin()),
		warnings: warningLimiter{sink: c.Warn}, reconnected: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	n.outbox = newOutbox(n.origin, c.MaxWaiting, c.MaxWaitingBytes)
	n.inbox = newInbox(n)
	if c.Origin != "" {
		n.outbox.sequencer.era = rand.Int()
		n.inbox.resumed = make(chan struct{})
		n.outbox.paused = true
	}
	if err := n.startServerIfPeersAndConnect(); err != nil {
		if n.server != nil {
			n.server.Close()
		}
		return nil, err
	}
	n.subscriptions = &subscriptions{
		hub: h, natsConn: n.natsConn, messages: n.inbox.messages, onUnsubscribed: n.inbox.gaps.ignoreGapsAfterUnsubscribe, warn: n.warnings.warnf,
		linger: c.Linger, maxSubjects: c.MaxSubjects,
		alwaysAll: h.Limits.LastValues > 0, // last values must be those of all nodes
		wake:      make(chan struct{}, 1), subjects: make(map[string]*subjectState),
	}
	n.presence = newPresence(n)
	if h.Replay != nil {
		var err error
		if n.stream, err = newReplayStreamClient(n); err != nil {
			n.natsConn.Close()
			if n.server != nil {
				n.server.Close()
			}
			return nil, err
		}
		n.publisher = newStreamPublisher(newOrigin(), c.MaxWaiting, c.MaxWaitingBytes)
		n.publisher.publish, n.publisher.warn, n.subscriptions.comesByStream = n.stream.publishOnce, n.warnings.warnf, n.comesByStream
		n.publisher.paused = n.outbox.paused
	}
	if n.natsConn.IsConnected() {
		n.maxPayload.Store(n.natsConn.MaxPayload())
		n.connected.Store(true)
	}
	h.Cluster = n
	if c.Origin != "" {
		n.subscribeToAllForTakeover()
	}
	n.goroutines.Go(n.sendOutboxUntilClosed)
	n.goroutines.Go(func() { n.subscriptions.subscribeNeededSubjectsUntilStopped(n.stopped) })
	n.goroutines.Go(func() { n.inbox.deliverOrPauseUntilStopped(n.stopped) })
	n.goroutines.Go(func() { n.presence.announceAndTrackNodes(n.stopped) })
	n.goroutines.Go(func() { n.presence.answerQueries(n.stopped) })
	if n.stream != nil {
		ctx, cancel := context.WithCancel(context.Background())
		n.goroutines.Go(func() {
			defer cancel()
			<-n.stopped
		})
		n.goroutines.Go(func() { n.stream.readWithRetries(ctx) })
		for range publisherGoroutines {
			n.goroutines.Go(func() { n.publisher.publishUntilClosedAndEmpty(ctx) })
		}
	}
	return n, nil
}

func (c Config) withDefaults() Config {
	host, _ := os.Hostname()
	c.Name = cmp.Or(c.Name, host, "hub")
	c.MaxMessage = cmp.Or(c.MaxMessage, 64<<10)
	c.MaxWaiting, c.MaxWaitingBytes = cmp.Or(c.MaxWaiting, 1<<16), cmp.Or(c.MaxWaitingBytes, 16<<20)
	c.MaxSubjects = cmp.Or(c.MaxSubjects, 100_000)
	c.Linger = cmp.Or(c.Linger, 5*time.Second)
	if c.Peers != nil {
		c.Replicas = cmp.Or(c.Replicas, 3)
	}
	c.Replicas = cmp.Or(c.Replicas, 1)
	return c
}

func (c Config) validate(h *hub.Hub) error {
	switch {
	case (len(c.URLs) > 0) == (c.Peers != nil):
		return errors.New("cluster: URLs and Peers are both set or both empty; expected exactly one of them")
	case c.Peers != nil && c.Peers.Secret == "":
		return errors.New("cluster: Peers.Secret is empty; expected the secret that all hubs of the cluster share")
	case c.Peers != nil && c.Origin != "":
		return errors.New("cluster: Origin is set with Peers; expected no Origin, because another process cannot take over an embedded server")
	case strings.ContainsAny(c.Origin, ". ") || len(c.Origin) > maxOriginBytes:
		return fmt.Errorf("cluster: Origin is %.100q; expected the origin of another Node", c.Origin)
	case c.Peers != nil && h.Replay != nil && c.Peers.Dir == "":
		return errors.New("cluster: Peers.Dir is empty; expected a directory, because Hub.Replay is set")
	case c.Peers != nil && h.Replay != nil && len(c.Peers.Join) < 2:
		return fmt.Errorf("cluster: len(Peers.Join) is %d; expected at least 2, the addresses of all other nodes, because Hub.Replay needs three nodes", len(c.Peers.Join))
	case c.Peers != nil && c.MaxMessage > serverMaxPayload-headerReserve:
		return fmt.Errorf("cluster: MaxMessage is %d; expected at most %d, the limit of NATS", c.MaxMessage, serverMaxPayload-headerReserve)
	}
	if c.Replicas > maxReplicas {
		return fmt.Errorf("cluster: Replicas is %d; expected 0 (the default) to %d", c.Replicas, maxReplicas)
	}
	for _, n := range []struct {
		name  string
		value int
	}{{"Replicas", c.Replicas}, {"MaxMessage", c.MaxMessage}, {"MaxWaiting", c.MaxWaiting}, {"MaxWaitingBytes", c.MaxWaitingBytes}, {"MaxSubjects", c.MaxSubjects}, {"Linger", int(c.Linger)}} {
		if n.value < 0 {
			return fmt.Errorf("cluster: %s is %d; expected 0 (the default) or more", n.name, n.value)
		}
	}
	return nil
}

func (n *Node) startServerIfPeersAndConnect() (err error) {
	options := []nats.Option{
		nats.Name("myriad hub " + n.config.Name), nats.NoEcho(), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1),
		nats.ReconnectWait(minReconnectDelay), nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(maxPings), nats.Timeout(connectTimeout),
		nats.FlusherTimeout(writeTimeout), nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if n.closing.Load() {
				return
			}
			n.connected.Store(false)
			n.disconnects.Add(1)
			n.warnings.logChange("lost the connection to NATS: %v", err)
		}),
		nats.ConnectHandler(func(nc *nats.Conn) { n.recordConnectedAndSignal(nc, "connected to") }),
		nats.ReconnectHandler(func(nc *nats.Conn) { n.recordConnectedAndSignal(nc, "reconnected to") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { n.warnings.warnf("NATS: %v", err) }),
	}
	if p := n.config.Peers; p != nil {
		serverConfig := natsd.Config{
			Name:       n.config.Name + "-" + n.origin,
			MaxPayload: max(1<<20, n.config.MaxMessage+headerReserve),
			Warn:       func(line string) { n.warnings.warnf("NATS: %s", line) },
			Cluster:    &natsd.Cluster{Addr: p.Addr, Advertise: p.Advertise, Join: p.Join, Secret: p.Secret, TLS: p.TLS},
		}
		if n.hub.Replay != nil {
			if serverConfig.Name, err = loadOrStoreServerName(p.Dir, serverConfig.Name); err != nil {
				return fmt.Errorf("cluster: Peers.Dir: %w", err)
			}
			serverConfig.StoreDir = p.Dir
		}
		if n.server, err = natsd.Start(serverConfig); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		n.natsConn, err = n.server.Connect(append(options, nats.InProcessServer(readThrottledDialer{n.server, n.inbox}))...)
		return err
	}
	options = append(options, nats.SetCustomDialer(readThrottledDialer{inbox: n.inbox}))
	if n.config.Creds != "" {
		options = append(options, nats.UserCredentials(n.config.Creds))
	}
	if n.config.TLS != nil {
		options = append(options, nats.Secure(n.config.TLS))
	}
	urls := strings.Join(n.config.URLs, ",")
	if n.natsConn, err = nats.Connect(urls, options...); err == nil {
		return nil
	}
	if !errors.Is(err, nats.ErrNoServers) && !errors.Is(err, nats.ErrTimeout) {
		return fmt.Errorf("cluster: connecting to NATS: %w", err)
	}
	n.warnings.warnf("NATS is not reachable yet: %v", err)
	if n.natsConn, err = nats.Connect(urls, append(options, nats.RetryOnFailedConnect(true))...); err != nil {
		return fmt.Errorf("cluster: connecting to NATS: %w", err)
	}
	return nil
}

func (n *Node) recordConnectedAndSignal(nc *nats.Conn, logVerb string) {
	n.maxPayload.Store(nc.MaxPayload())
	n.connected.Store(true)
	select {
	case n.reconnected <- struct{}{}:
	default:
	}
	if n.config.Peers == nil {
		n.warnings.logChange("%s NATS", logVerb)
	}
}

// Addr returns the address at which the embedded server listens for other servers. Without Peers, it returns "".
func (n *Node) Addr() (clusterAddr string) {
	if n.server == nil {
		return ""
	}
	return n.server.ClusterAddr().String()
}

var _ hub.ClusterMigrator = (*Node)(nil)

// PublishOrCountLost implements hub.Cluster.
func (n *Node) PublishOrCountLost(kind hub.Kind, topic string, message []byte) (tooLong error) {
	if err := n.checkMessageSize(message); err != nil {
		return err
	}
	n.outbox.enqueueOrCountLost(kind, topic, message)
	return nil
}

func (n *Node) checkMessageSize(message []byte) error {
	if limit := n.maxPayload.Load() - headerReserve; limit > 0 && int64(len(message)) > limit {
		return fmt.Errorf("%d bytes; at most %d are allowed in this cluster", len(message), limit)
	}
	return nil
}

// QueueForReplay implements hub.Cluster.
func (n *Node) QueueForReplay(topic string, message []byte) error {
	if err := n.checkMessageSize(message); err != nil {
		return err
	}
	return n.publisher.enqueue(topic, message)
}

// comesByStream reports whether all messages of a topic or pattern come through the replay stream.
func (n *Node) comesByStream(kind hub.Kind, name string) bool {
	return n.hub.Replay != nil && n.hub.Replay.KeepsAll(kind, name)
}

// Changed implements hub.Cluster.
func (n *Node) Changed(kind hub.Kind, name string) {
	n.subscriptions.queueSubscriptionCheck(kind, name)
}

func (n *Node) sendOutboxUntilClosed() {
	var batch []outgoing
	for {
		batch = n.outbox.waitAndDequeueAll(batch)
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			ok := n.publishWhenConnected(&batch[i])
			if ok {
				n.sent.Add(1)
			}
			n.outbox.releaseSpaceCountingLost(&batch[i], ok)
			batch[i] = outgoing{}
		}
	}
}

func (n *Node) publishWhenConnected(m *outgoing) (sent bool) {
	msg := nats.Msg{Subject: m.subject, Data: m.data, Header: nats.Header{sequenceHeader: {m.id}}}
	if m.escapedName != "" {
		msg.Header[topicHeader] = []string{m.escapedName}
	}
	for {
		err := n.natsConn.PublishMsg(&msg)
		switch {
		case err == nil:
			return true
		case n.closing.Load():
			return false
		case n.connected.Load():
			n.warnings.warnf("message lost: %v", err)
			return false
		}
		select {
		case <-n.reconnected:
		case <-time.After(minReconnectDelay):
		case <-n.stopped:
			return false
		}
	}
}

// Stats implements hub.Cluster.
func (n *Node) Stats() hub.ClusterStats {
	s := hub.ClusterStats{Connected: n.connected.Load(), Disconnects: n.disconnects.Load(), Sent: n.sent.Load()}
	s.Subjects, s.SubscribedToAll = n.subscriptions.subjectCount()
	s.Waiting, s.WaitingBytes, s.Unsent = n.outbox.stats()
	if n.publisher != nil {
		waiting, bytes, lost := n.publisher.stats()
		s.Waiting, s.WaitingBytes, s.Unsent = s.Waiting+waiting, s.WaitingBytes+bytes, s.Unsent+lost
	}
	n.inbox.fillReceiveAndNodeStats(&s)
	return s
}

// Close stops the node within a few seconds. If the node is connected to NATS, Close first sends the queued messages.
// After Close, the hub serves its clients without the cluster.
func (n *Node) Close() {
	n.closeOnce.Do(func() {
		n.outbox.close()
		if n.publisher != nil {
			n.publisher.close()
		}
		n.waitUntilSentWhileConnected(closeTimeout)
		if n.connected.Load() {
			n.presence.publishAnnouncement(true)
			_ = n.natsConn.FlushTimeout(closeTimeout)
		}
		n.closing.Store(true)
		close(n.stopped)
		n.natsConn.Close()
		n.goroutines.Wait()
		if n.server != nil {
			n.server.Close()
		}
	})
}

func (n *Node) waitUntilSentWhileConnected(timeout time.Duration) {
	for deadline := time.Now().Add(timeout); n.connected.Load() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n.Stats().Waiting == 0 {
			_ = n.natsConn.FlushTimeout(max(time.Until(deadline), time.Millisecond))
			return
		}
	}
}
