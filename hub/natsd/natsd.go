// Package natsd is a nats-server inside this process, for what joins several machines: the
// nodes of a hub, the agents of a load. It is imported by programs that need it alone: it
// brings nats-server and what that depends on.
package natsd

import (
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// Config is what a Server is started with. The zero value is a server that this process alone
// reaches.
type Config struct {
	// Name is the server's, and has to be its own in a cluster. The default is a random one.
	Name string
	// Addr is a host and port to listen on for clients; port 0 takes a free one. The default
	// is "": clients are of this process alone (Connect), or, in a cluster, of this machine with
	// the Token.
	Addr string
	// Token is what clients have to show. The default is "": none, or a random one in a cluster
	// without an Addr.
	Token string
	// TLS is what clients on Addr are served with. The default is nil: in clear.
	TLS *tls.Config
	// Cluster joins the server with others. The default is nil: it is alone.
	Cluster *Cluster
	// MaxPayload is the most bytes of a message with its header, at most 64 MiB. The default
	// is 1 MiB.
	MaxPayload int
	// MaxPending is the most bytes that wait for one client, or one other server, which is
	// cut off when there are more. The default is 64 MiB.
	MaxPending int64
	// StoreDir is where streams are kept, and MaxStore the most bytes of them all. The default
	// is "": there are no streams.
	StoreDir string
	MaxStore int64
	// Warn is told what goes wrong, a line each. It is called from several goroutines at
	// once. The default is nil: nobody is told.
	Warn func(line string)
}

// Cluster is how servers form a cluster.
type Cluster struct {
	// Addr is a host and port to listen on for the other servers; port 0 takes a free one.
	Addr string
	// Advertise is the host and port by which the others reach Addr, where that is another.
	Advertise string
	// Join are addresses of other servers. One that can't be reached is tried again for as long
	// as this one runs; further ones are learnt from those that are reached. Its own may be
	// among them.
	Join []string
	// Secret is what servers of one cluster share; it may not be empty.
	Secret string
	// TLS is what the servers talk with each other in, for both ends. The default is nil: in
	// clear.
	TLS *tls.Config
}

const (
	// clusterName and clusterUser are the same in all servers, of which the secret lets in.
	clusterName = "myriad"
	clusterUser = "myriad"

	maxPayload = 64 << 20 // as much as MaxPending has by default

	startTimeout      = 10 * time.Second
	startPollInterval = 50 * time.Millisecond
	// writeDeadline is how long a client or a server may take what waits for it.
	writeDeadline = 10 * time.Second
	// A server that answers no ping for pingInterval * maxPings is taken for gone.
	pingInterval = 5 * time.Second
	maxPings     = 2
)

// Server is a nats-server that runs. Its methods are safe for concurrent use.
type Server struct {
	s     *server.Server
	token string
}

// Start starts a server, and returns when it takes clients. Close ends it.
func Start(c Config) (*Server, error) {
	if c.Cluster != nil && c.Addr == "" {
		// A server of nats-server that takes no clients takes no servers either.
		c.Addr = "127.0.0.1:0"
		c.Token = cmp.Or(c.Token, rand.Text())
	}
	o, err := c.serverOptions()
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(o)
	if err != nil {
		return nil, fmt.Errorf("natsd: %w", err)
	}
	l := &logger{warn: c.Warn}
	s.SetLoggerV2(l, false, false, false)
	s.Start()
	for end := time.Now().Add(startTimeout); !s.ReadyForConnections(startPollInterval); {
		why := l.fatalError()
		if why == "" && time.Now().After(end) {
			why = fmt.Sprintf("the server is not ready after %v", startTimeout)
		}
		if why != "" {
			s.Shutdown()
			s.WaitForShutdown()
			return nil, fmt.Errorf("natsd: %s", why)
		}
	}
	return &Server{s: s, token: c.Token}, nil
}

func (c Config) serverOptions() (*server.Options, error) {
	o := &server.Options{
		ServerName: c.Name, DontListen: c.Addr == "", Authorization: c.Token, TLSConfig: c.TLS,
		NoSigs: true, MaxPending: c.MaxPending, WriteDeadline: writeDeadline,
		PingInterval: pingInterval, MaxPingsOut: maxPings, DisableShortFirstPing: true,
		JetStream: c.StoreDir != "", StoreDir: c.StoreDir, JetStreamMaxStore: c.MaxStore, DisableJetStreamBanner: true,
	}
	if c.MaxPayload < 0 || c.MaxPayload > maxPayload {
		return nil, fmt.Errorf("natsd: MaxPayload is %d; expected 0 (the default) to %d", c.MaxPayload, maxPayload)
	}
	o.MaxPayload = int32(c.MaxPayload)
	var err error
	if c.Addr != "" {
		if o.Host, o.Port, err = parseHostPort(c.Addr); err != nil {
			return nil, err
		}
	}
	if c.Cluster == nil {
		return o, nil
	}
	if c.Cluster.Secret == "" {
		return nil, errors.New("natsd: a cluster needs a secret")
	}
	o.Cluster = server.ClusterOpts{
		Name: clusterName, NoAdvertise: true, Username: clusterUser, Password: c.Cluster.Secret, Advertise: c.Cluster.Advertise,
		TLSConfig: c.Cluster.TLS, PingInterval: pingInterval, MaxPingsOut: maxPings, WriteDeadline: writeDeadline,
	}
	if o.Cluster.Host, o.Cluster.Port, err = parseHostPort(c.Cluster.Addr); err != nil {
		return nil, err
	}
	for _, addr := range c.Cluster.Join {
		if _, _, err := parseHostPort(addr); err != nil {
			return nil, err
		}
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", User: url.UserPassword(clusterUser, c.Cluster.Secret), Host: addr})
	}
	return o, nil
}

// parseHostPort takes an address to pieces, in which nats-server takes -1 for any free port.
func parseHostPort(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("natsd: the address %q: %w; expected host:port", addr, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("natsd: the address %q has the port %q; expected 0 to 65535", addr, text)
	}
	if host == "" {
		host = server.DEFAULT_HOST
	}
	if n == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(n), nil
}

// Connect gives a connection to the server that is no socket.
func (s *Server) Connect(options ...nats.Option) (*nats.Conn, error) {
	options = append([]nats.Option{nats.InProcessServer(s), nats.Token(s.token)}, options...)
	return nats.Connect("", options...)
}

// InProcessConn implements nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) { return s.s.InProcessConn() }

// Addr is where the server listens for clients, or nil if it does not.
func (s *Server) Addr() net.Addr { return s.s.Addr() }

// ClusterAddr is where the server listens for other servers, or nil if it does not.
func (s *Server) ClusterAddr() net.Addr {
	if a := s.s.ClusterAddr(); a != nil {
		return a
	}
	return nil
}

// OtherServerCount is to how many other servers there are connections now.
func (s *Server) OtherServerCount() int { return len(s.otherServerIDs()) }

func (s *Server) otherServerIDs() map[string]struct{} {
	r, err := s.s.Routez(nil)
	if err != nil {
		return nil
	}
	others := make(map[string]struct{})
	for _, route := range r.Routes { // of which there are several to each
		others[route.RemoteID] = struct{}{}
	}
	return others
}

// SlowConsumerCount is how many clients and servers the server has cut off because they were slow.
func (s *Server) SlowConsumerCount() int64 { return s.s.NumSlowConsumers() }

// Close ends the server, and waits for that.
func (s *Server) Close() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}
