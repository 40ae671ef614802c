// Package cluster joins hubs through NATS, so that who publishes to one reaches the subscribers
// of all:
//
//	h := &hub.Hub{}
//	node, err := cluster.Start(h, cluster.Config{URLs: []string{"nats://10.0.0.1:4222"}})
//	...
//	defer node.Close()
//
// Messages are delivered at most once. Those that get lost are counted, where they should have
// arrived: each has a number, by its topic and the node that it was published to.
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

// Config is how a hub joins a cluster: by URLs of a cluster of NATS, or by Peers that form one.
type Config struct {
	// URLs are servers of NATS, such as nats://user:password@10.0.0.1:4222, nats://token@host,
	// or tls://host.
	URLs []string
	// Creds is a file with the credentials of a user of NATS, and TLS what the servers are to
	// be connected to with. The defaults are "" and nil: what URLs say.
	Creds string
	TLS   *tls.Config

	// Peers has the hubs form a cluster of NATS by themselves. Its default is nil.
	Peers *Peers

	// Replicas is on how many servers of NATS the messages are that Hub.Replay keeps; with three, one of them
	// may go. The default is 1, and 3 with Peers; the most is 5.
	Replicas int

	// Name is the node's, for people. The default is the host's name.
	Name string
	// Origin is that of another process, its Node.Origin, of which this one takes over the hub, by
	// tcp.Server.Upgrade; not with Peers. The node delivers and sends nothing before the hub's clients
	// have come, or a minute is over. The default is "": a new node.
	Origin string
	// MaxMessage is the most bytes of a message. A server with Peers takes as many. The
	// default is 64 KiB, as that of hub.Limits.
	MaxMessage int
	// MaxWaiting and MaxWaitingBytes are the most messages, and bytes of these, that wait to be
	// passed on, as while there is no connection; further ones are lost, and counted. As many wait to
	// be kept, of Hub.Replay; further ones are refused. The defaults are 65,536 and 16 MiB.
	MaxWaiting, MaxWaitingBytes int
	// MaxSubjects is the most subjects of NATS that are subscribed to. A hub with more topics
	// takes the messages of all topics. The default is 100,000.
	MaxSubjects int
	// Linger is how long a subject stays subscribed to after its last subscriber has gone. The
	// default is 5 s.
	Linger time.Duration
	// Warn is told what goes wrong, a line each, at most a few a second, and the same one once a minute; and of a hub
	// with Peers, when others join it, and when it is alone again. It is called from several goroutines at once. The
	// default is nil: nobody is told.
	Warn func(line string)
}

// Peers are hubs that form a cluster, each with a server of NATS inside.
type Peers struct {
	// Addr is a host and port to listen on for the others, Advertise how they reach it, where
	// that is another.
	Addr, Advertise string
	// Join are addresses of others. Further ones are learnt from those.
	Join []string
	// Secret is what all of a cluster share. Without TLS it is sent in clear.
	Secret string
	// TLS is what they talk with each other in, for both ends. The default is nil: in clear.
	TLS *tls.Config
	// Dir is where a hub with a Replay has what its server of NATS keeps, and who that is: it is the
	// node's own, and stays. The servers decide by the majority, of those that Join names first, or
	// that have ever come. Its default is "": nothing is kept.
	Dir string
}

const (
	pingInterval           = 5 * time.Second
	maxPings               = 2
	connectTimeout         = 5 * time.Second
	writeTimeout           = 5 * time.Second
	minReconnectDelay      = 100 * time.Millisecond
	reconnectJitter        = 400 * time.Millisecond
	closeTimeout           = 2 * time.Second // to send what waits
	maxOriginBytes         = 64              // bytes
	headerReserve          = 4 << 10         // of a message, beside its data
	sequenceHeader         = "Myriad"        // origin, era and number of a message
	topicHeader            = "Myriad-Topic"  // all tokens of a name that is too long for a subject
	defaultMaxWaiting      = 1 << 16
	defaultMaxWaitingBytes = 16 << 20
	defaultMaxSubjects     = 100_000
	defaultLinger          = 5 * time.Second
	defaultMaxMessage      = 64 << 10
	serverMaxPayload       = 64 << 20
)

// Node is a hub's part in a cluster. Its methods are safe for concurrent use.
//
// The event loops of the hub put messages into the outbox, from which one goroutine passes them
// on to NATS; another keeps the subscriptions that the hub's topics need; a third takes what comes
// and delivers it, one message at a time, so that each publisher's order stays. Two more are those of presence.
type Node struct {
	hub      *hub.Hub
	config   Config
	origin   string // of messages: random, of each start
	server   *natsd.Server
	natsConn *nats.Conn

	outbox        *outbox
	subscriptions *subscriptions
	inbox         *inbox
	presence      *presence
	publisher     *streamPublisher // and stream: nil if nothing is kept
	stream        *replayStream

	// What nats.Conn knows of these it tells only when it is not busy connecting.
	connected  atomic.Bool
	maxPayload atomic.Int64 // of the server that was connected to last

	sent, disconnects atomic.Int64
	warnings          warningLimiter
	reconnected       chan struct{} // has room for one
	stopped           chan struct{}
	goroutines        sync.WaitGroup
	closeOnce         sync.Once
}

// Start joins a hub to a cluster, and is to be called before the hub serves: it sets its field
// Cluster. Servers of NATS that can't be reached yet are tried again, as long as the node runs; an
// error says what can't get better. Close ends it.
func Start(h *hub.Hub, c Config) (*Node, error) {
	if err := c.validate(h); err != nil {
		return nil, err
	}
	host, _ := os.Hostname()
	c.Name = cmp.Or(c.Name, host, "hub")
	n := &Node{
		hub: h, config: c, origin: cmp.Or(c.Origin, newOrigin()),
		warnings: warningLimiter{sink: c.Warn}, reconnected: make(chan struct{}, 1), stopped: make(chan struct{}),
	}
	n.outbox = newOutbox(n.origin, cmp.Or(c.MaxWaiting, defaultMaxWaiting), cmp.Or(c.MaxWaitingBytes, defaultMaxWaitingBytes))
	n.inbox = newInbox(n)
	if c.Origin != "" {
		n.outbox.sequencer.era = rand.Int()
		n.inbox.resumed = make(chan struct{})
		n.outbox.paused = true
	}
	if err := n.connect(); err != nil {
		if n.server != nil {
			n.server.Close()
		}
		return nil, err
	}
	n.subscriptions = &subscriptions{
		hub: h, natsConn: n.natsConn, messages: n.inbox.messages, onUnsubscribed: n.inbox.gaps.noteUnsubscribed, warn: n.warnings.warnf,
		linger: cmp.Or(c.Linger, defaultLinger), maxSubjects: cmp.Or(c.MaxSubjects, defaultMaxSubjects),
		alwaysAll: h.Limits.LastValues > 0, // which have to be those of all nodes
		wake:      make(chan struct{}, 1), subjects: make(map[string]*subjectState),
	}
	n.presence = newPresence(n)
	if h.Replay != nil {
		var err error
		if n.stream, err = newStream(n); err != nil {
			n.natsConn.Close()
			if n.server != nil {
				n.server.Close()
			}
			return nil, err
		}
		n.publisher = newStreamPublisher(newOrigin(), cmp.Or(c.MaxWaiting, defaultMaxWaiting), cmp.Or(c.MaxWaitingBytes, defaultMaxWaitingBytes))
		n.publisher.publish, n.publisher.warn, n.subscriptions.comesByStream = n.stream.publish, n.warnings.warnf, n.comesByStream
		n.publisher.paused = n.outbox.paused
	}
	if n.natsConn.IsConnected() {
		n.maxPayload.Store(n.natsConn.MaxPayload())
		n.connected.Store(true)
	}
	h.Cluster = n
	if c.Origin != "" {
		n.subscribeForTakeover()
	}
	n.goroutines.Go(n.sendOutbox)
	n.goroutines.Go(func() { n.subscriptions.maintain(n.stopped) })
	n.goroutines.Go(func() { n.inbox.deliverLoop(n.stopped) })
	n.goroutines.Go(func() { n.presence.announceLoop(n.stopped) })
	n.goroutines.Go(func() { n.presence.answerQueries(n.stopped) })
	if n.stream != nil {
		ctx, cancel := context.WithCancel(context.Background())
		n.goroutines.Go(func() {
			defer cancel()
			<-n.stopped
		})
		n.goroutines.Go(func() { n.stream.readLoop(ctx) })
		for range publisherGoroutines {
			n.goroutines.Go(func() { n.publisher.publishLoop(ctx) })
		}
	}
	return n, nil
}

func (c Config) validate(h *hub.Hub) error {
	switch {
	case (len(c.URLs) > 0) == (c.Peers != nil):
		return errors.New("cluster: expected URLs of NATS, or Peers, and not both")
	case c.Peers != nil && c.Peers.Secret == "":
		return errors.New("cluster: hubs that form a cluster need a secret in common")
	case c.Peers != nil && c.Origin != "":
		return errors.New("cluster: Origin is given with Peers, whose server of NATS another process can't take over")
	case strings.ContainsAny(c.Origin, ". ") || len(c.Origin) > maxOriginBytes:
		return fmt.Errorf("cluster: Origin is %.100q; expected that of another Node", c.Origin)
	case c.Peers != nil && h.Replay != nil && c.Peers.Dir == "":
		return errors.New("cluster: messages are to be kept without a directory; expected Peers.Dir")
	case c.Peers != nil && h.Replay != nil && len(c.Peers.Join) < 2:
		return fmt.Errorf("cluster: messages are to be kept by three nodes at the least, of which a majority is there; Peers.Join has %d addresses, expected those of all", len(c.Peers.Join))
	case c.Peers != nil && c.MaxMessage > serverMaxPayload-headerReserve:
		return fmt.Errorf("cluster: messages have at most %d bytes; NATS takes at most %d", c.MaxMessage, serverMaxPayload-headerReserve)
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

// connect connects to NATS, which it starts if it is the hub's own.
func (n *Node) connect() (err error) {
	options := []nats.Option{
		nats.Name("myriad hub " + n.config.Name), nats.NoEcho(), nats.MaxReconnects(-1), nats.ReconnectBufSize(-1),
		nats.ReconnectWait(minReconnectDelay), nats.ReconnectJitter(reconnectJitter, reconnectJitter),
		nats.PingInterval(pingInterval), nats.MaxPingsOutstanding(maxPings), nats.Timeout(connectTimeout),
		nats.FlusherTimeout(writeTimeout), nats.IgnoreAuthErrorAbort(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if n.isClosed() {
				return
			}
			n.connected.Store(false)
			n.disconnects.Add(1)
			n.warnings.logChange("the connection to NATS is lost: %v", err)
		}),
		nats.ConnectHandler(func(nc *nats.Conn) { n.handleConnected(nc, "connected to") }),
		nats.ReconnectHandler(func(nc *nats.Conn) { n.handleConnected(nc, "connected again to") }),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { n.warnings.warnf("NATS: %v", err) }),
	}
	if p := n.config.Peers; p != nil {
		serverConfig := natsd.Config{
			Name:       n.config.Name + "-" + n.origin,
			MaxPayload: max(1<<20, cmp.Or(n.config.MaxMessage, defaultMaxMessage)+headerReserve),
			Warn:       func(line string) { n.warnings.warnf("NATS: %s", line) },
			Cluster:    &natsd.Cluster{Addr: p.Addr, Advertise: p.Advertise, Join: p.Join, Secret: p.Secret, TLS: p.TLS},
		}
		if n.hub.Replay != nil {
			if serverConfig.Name, err = loadServerName(p.Dir, serverConfig.Name); err != nil {
				return fmt.Errorf("cluster: the directory of what is kept: %w", err)
			}
			serverConfig.StoreDir = p.Dir
		}
		if n.server, err = natsd.Start(serverConfig); err != nil {
			return fmt.Errorf("cluster: %w", err)
		}
		n.natsConn, err = n.server.Connect(append(options, nats.InProcessServer(throttledInProcess{n.server, n.inbox}))...)
		return err
	}
	options = append(options, nats.SetCustomDialer(&throttledDialer{inbox: n.inbox}))
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
		return fmt.Errorf("cluster: %w", err)
	}
	n.warnings.warnf("NATS can't be reached yet: %v", err)
	if n.natsConn, err = nats.Connect(urls, append(options, nats.RetryOnFailedConnect(true))...); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	return nil
}

// handleConnected goes on sending.
func (n *Node) handleConnected(nc *nats.Conn, event string) {
	n.maxPayload.Store(nc.MaxPayload())
	n.connected.Store(true)
	select {
	case n.reconnected <- struct{}{}:
	default:
	}
	if n.config.Peers == nil {
		n.warnings.logChange("%s NATS", event)
	}
}

func (n *Node) isClosed() bool {
	select {
	case <-n.stopped:
		return true
	default:
		return false
	}
}

// Addr is where the server of a hub with Peers listens for the others; "" without.
func (n *Node) Addr() string {
	if n.server == nil {
		return ""
	}
	return n.server.ClusterAddr().String()
}

// Publish implements hub.Cluster.
func (n *Node) Publish(kind hub.Kind, name string, message []byte) error {
	if err := n.checkMessageSize(message); err != nil {
		return err
	}
	n.outbox.enqueue(kind, name, message)
	return nil
}

func (n *Node) checkMessageSize(message []byte) error {
	if limit := n.maxPayload.Load() - headerReserve; limit > 0 && int64(len(message)) > limit {
		return fmt.Errorf("%d bytes, at most %d are allowed in this cluster", len(message), limit)
	}
	return nil
}

// Keep implements hub.Cluster.
func (n *Node) Keep(topic string, message []byte) error {
	if err := n.checkMessageSize(message); err != nil {
		return err
	}
	return n.publisher.enqueue(topic, message)
}

// comesByStream says whether all messages of a name come by the stream.
func (n *Node) comesByStream(kind hub.Kind, name string) bool {
	return n.hub.Replay != nil && n.hub.Replay.Keeps(kind, name)
}

// Changed implements hub.Cluster.
func (n *Node) Changed(kind hub.Kind, name string) { n.subscriptions.queueNameCheck(kind, name) }

// sendOutbox passes messages on, until the outbox is closed and empty or the time to close is over.
func (n *Node) sendOutbox() {
	var batch []outgoing
	for {
		batch = n.outbox.dequeueAll(batch)
		if len(batch) == 0 {
			return
		}
		for i := range batch {
			ok := n.publishMessage(&batch[i])
			if ok {
				n.sent.Add(1)
			}
			n.outbox.complete(&batch[i], ok)
			batch[i] = outgoing{}
		}
	}
}

// publishMessage passes one message on, as soon as there is a connection.
func (n *Node) publishMessage(m *outgoing) bool {
	msg := nats.Msg{Subject: m.subject, Data: m.data, Header: nats.Header{sequenceHeader: {m.id}}}
	if m.escapedName != "" {
		msg.Header[topicHeader] = []string{m.escapedName}
	}
	for {
		err := n.natsConn.PublishMsg(&msg)
		switch {
		case err == nil:
			return true
		case n.connected.Load() || n.isClosed():
			if !n.isClosed() {
				n.warnings.warnf("a message is lost: %v", err)
			}
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
	s.Subjects, s.All = n.subscriptions.subjectCount()
	s.Waiting, s.WaitingBytes, s.Unsent = n.outbox.stats()
	if n.publisher != nil {
		waiting, bytes, lost := n.publisher.stats()
		s.Waiting, s.WaitingBytes, s.Unsent = s.Waiting+waiting, s.WaitingBytes+bytes, s.Unsent+lost
	}
	n.inbox.addStats(&s)
	return s
}

// Close leaves the cluster, within a few seconds: messages that wait are passed on if there is a
// connection. The hub goes on alone, and what is published to it from then on reaches its own
// subscribers only.
func (n *Node) Close() {
	n.closeOnce.Do(func() {
		n.outbox.close()
		if n.publisher != nil {
			n.publisher.close()
		}
		n.waitUntilSent(closeTimeout)
		if n.connected.Load() {
			n.presence.publishAnnouncement(true)
			_ = n.natsConn.FlushTimeout(closeTimeout)
		}
		close(n.stopped)
		n.natsConn.Close()
		n.goroutines.Wait()
		if n.server != nil {
			n.server.Close()
		}
	})
}

// waitUntilSent waits until what waits is with NATS, while there is a connection and time.
func (n *Node) waitUntilSent(timeout time.Duration) {
	for deadline := time.Now().Add(timeout); n.connected.Load() && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if n.Stats().Waiting == 0 {
			_ = n.natsConn.FlushTimeout(max(time.Until(deadline), time.Millisecond))
			return
		}
	}
}
