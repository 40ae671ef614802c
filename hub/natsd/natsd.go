// Package natsd runs a nats-server inside this process, for the nodes of a hub and the agents of a load test. It has
// many dependencies, so import it only in programs that need it.
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

// Config configures a Server. The zero value configures a server that only this process can reach.
type Config struct {
	// Name identifies the server in its cluster and must be unique there. The default is random.
	Name string
	// Addr is the host and port to listen on for clients. Port 0 selects a free port. With the default "" and no
	// Cluster, only this process can connect (see Server.Connect). With the default "" and a Cluster, clients on this
	// machine that know the Token can connect.
	Addr string
	// Token is the secret that clients must send. With the default "", clients need no secret. However, if Cluster is
	// set and Addr is empty, the default is a random secret.
	Token string
	// TLS encrypts client connections on Addr. The default nil means no encryption.
	TLS *tls.Config
	// Cluster connects the server with other servers. With the default nil, the server stands alone.
	Cluster *Cluster
	// MaxPayload limits the size of a message with its header, in bytes. The default is 1 MiB, the maximum 64 MiB.
	MaxPayload int
	// MaxPending limits the bytes that wait to be sent on one connection, to a client or to another server. A
	// connection that exceeds the limit is closed. The default is 64 MiB.
	MaxPending int64
	// StoreDir is the directory for streams. With the default "", streams are disabled.
	StoreDir string
	// Warn is called with each warning. Several goroutines may call Warn at once. The default is nil.
	Warn func(line string)
}

// Cluster configures a server's connections to other servers of its cluster.
type Cluster struct {
	// Addr is the host and port to listen on for other servers. Port 0 selects a free port.
	Addr string
	// Advertise is the host and port at which other servers reach this server. The default is Addr.
	Advertise string
	// Join lists addresses of other servers in the cluster. The list may include this server.
	Join []string
	// Secret is the shared secret of the cluster's servers. It must not be empty.
	Secret string
	// TLS configures the encryption between servers. It applies to accepted connections and to connections that this
	// server opens. The default nil means no encryption.
	TLS *tls.Config
}

const (
	clusterName = "myriad"
	clusterUser = "myriad"

	maxPayload = 64 << 20 // equal to the default of Config.MaxPending

	startTimeout      = 10 * time.Second
	startPollInterval = 50 * time.Millisecond
	writeDeadline     = 10 * time.Second
	// A peer is considered lost after maxPings unanswered pings.
	pingInterval = 5 * time.Second
	maxPings     = 2
)

// Server is a running nats-server. Methods are safe for concurrent use.
type Server struct {
	s     *server.Server
	token string
}

// Start starts a server. It returns when the server accepts clients. Call Close to stop the server.
func Start(c Config) (*Server, error) {
	if c.Cluster != nil && c.Addr == "" {
		// nats-server requires an address for clients in order to accept other servers.
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
		reason := l.firstFatalError()
		if reason == "" && time.Now().After(end) {
			reason = fmt.Sprintf("the server is not ready after %v", startTimeout)
		}
		if reason != "" {
			s.Shutdown()
			s.WaitForShutdown()
			return nil, fmt.Errorf("natsd: %s", reason)
		}
	}
	return &Server{s: s, token: c.Token}, nil
}

func (c Config) serverOptions() (*server.Options, error) {
	o := &server.Options{
		ServerName: c.Name, DontListen: c.Addr == "", Authorization: c.Token, TLSConfig: c.TLS,
		NoSigs: true, MaxPending: c.MaxPending, WriteDeadline: writeDeadline,
		PingInterval: pingInterval, MaxPingsOut: maxPings, DisableShortFirstPing: true,
		JetStream: c.StoreDir != "", StoreDir: c.StoreDir, DisableJetStreamBanner: true,
	}
	if c.MaxPayload < 0 || c.MaxPayload > maxPayload {
		return nil, fmt.Errorf("natsd: MaxPayload is %d; expected 0 (the default) to %d", c.MaxPayload, maxPayload)
	}
	o.MaxPayload = int32(c.MaxPayload)
	var err error
	if c.Addr != "" {
		if o.Host, o.Port, err = parseHostPortForNATS(c.Addr); err != nil {
			return nil, err
		}
	}
	if c.Cluster == nil {
		return o, nil
	}
	if c.Cluster.Secret == "" {
		return nil, errors.New("natsd: Cluster.Secret is empty; expected the secret that all servers of the cluster share")
	}
	o.Cluster = server.ClusterOpts{
		Name: clusterName, NoAdvertise: true, Username: clusterUser, Password: c.Cluster.Secret, Advertise: c.Cluster.Advertise,
		TLSConfig: c.Cluster.TLS, PingInterval: pingInterval, MaxPingsOut: maxPings, WriteDeadline: writeDeadline,
	}
	if o.Cluster.Host, o.Cluster.Port, err = parseHostPortForNATS(c.Cluster.Addr); err != nil {
		return nil, err
	}
	for _, addr := range c.Cluster.Join {
		if _, _, err := parseHostPortForNATS(addr); err != nil {
			return nil, err
		}
		o.Routes = append(o.Routes, &url.URL{Scheme: "nats-route", User: url.UserPassword(clusterUser, c.Cluster.Secret), Host: addr})
	}
	return o, nil
}

func parseHostPortForNATS(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, fmt.Errorf("natsd: the address is %q; expected host:port: %w", addr, err)
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("natsd: the address %q has the port %q; expected a port from 0 to 65535", addr, text)
	}
	if host == "" {
		host = server.DEFAULT_HOST
	}
	if n == 0 {
		return host, server.RANDOM_PORT, nil
	}
	return host, int(n), nil
}

// Connect connects to the server from within the process, without using the network.
func (s *Server) Connect(options ...nats.Option) (*nats.Conn, error) {
	options = append([]nats.Option{nats.InProcessServer(s), nats.Token(s.token)}, options...)
	return nats.Connect("", options...)
}

// InProcessConn implements nats.InProcessConnProvider.
func (s *Server) InProcessConn() (net.Conn, error) { return s.s.InProcessConn() }

// Addr returns the address on which the server accepts clients, or nil if only this process can connect.
func (s *Server) Addr() net.Addr { return s.s.Addr() }

// ClusterAddr returns the address on which the server accepts other servers. It returns nil without a cluster.
func (s *Server) ClusterAddr() net.Addr {
	if a := s.s.ClusterAddr(); a != nil {
		return a
	}
	return nil
}

// OtherServerCount returns the number of other servers to which this server is connected.
func (s *Server) OtherServerCount() int {
	r, err := s.s.Routez(nil)
	if err != nil {
		return 0
	}
	others := make(map[string]bool)
	for _, route := range r.Routes { // several to each server
		others[route.RemoteID] = true
	}
	return len(others)
}

// Close stops the server and waits until it has stopped.
func (s *Server) Close() {
	s.s.Shutdown()
	s.s.WaitForShutdown()
}
