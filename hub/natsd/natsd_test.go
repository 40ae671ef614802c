package natsd

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/goleak"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func startServer(t *testing.T, c Config) *Server {
	t.Helper()
	s, err := Start(c)
	testkit.RequireNoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func connect(t *testing.T, s *Server) *nats.Conn {
	t.Helper()
	nc, err := s.Connect()
	testkit.RequireNoError(t, err)
	t.Cleanup(nc.Close)
	return nc
}

// TestInProcessServer checks a server that only its own process can reach.
func TestInProcessServer(t *testing.T) {
	s := startServer(t, Config{Token: "s3cret"})
	if s.Addr() != nil || s.ClusterAddr() != nil {
		t.Fatalf("it listens on %v and %v; expected nothing", s.Addr(), s.ClusterAddr())
	}
	got := make(chan *nats.Msg, 1)
	to := connect(t, s)
	_, err := to.ChanSubscribe("a", got)
	testkit.RequireNoError(t, err)
	testkit.RequireNoError(t, to.Flush())
	testkit.RequireNoError(t, connect(t, s).Publish("a", []byte("b")))
	if m := testkit.Receive(t, got, "a message"); string(m.Data) != "b" {
		t.Fatalf("got %q", m.Data)
	}
}

// TestCluster checks that servers with the same secret find each other, and that others are rejected.
func TestCluster(t *testing.T) {
	a := startServer(t, Config{Cluster: &Cluster{Addr: "127.0.0.1:0", Secret: "s3cret"}})
	join := []string{a.ClusterAddr().String()}
	startServer(t, Config{Cluster: &Cluster{Addr: "127.0.0.1:0", Secret: "s3cret", Join: join}})
	testkit.WaitFor(t, "it knows the other", func() bool { return a.OtherServerCount() == 1 })
	warned := make(chan string, 64)
	startServer(t, Config{Cluster: &Cluster{Addr: "127.0.0.1:0", Secret: "other", Join: join},
		Warn: func(line string) {
			select {
			case warned <- line:
			default:
			}
		}})
	for !strings.Contains(testkit.Receive(t, warned, "a warning of the wrong secret"), "the server at "+a.ClusterAddr().String()+" rejected this server: their cluster secrets differ") {
	}
	if n := a.OtherServerCount(); n != 1 { // the stranger counts until it is rejected
		t.Fatalf("with one of a wrong secret there are %d others; expected 1", n)
	}
}

func TestStartErrors(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.RequireNoError(t, err)
	defer taken.Close()
	for _, c := range []struct {
		config Config
		want   string
	}{
		{Config{Addr: "nowhere"}, "expected host:port"},
		{Config{Addr: "127.0.0.1:x"}, "expected a port from 0 to 65535"},
		{Config{MaxPayload: 1 << 30}, "expected 0 (the default) to 67108864"},
		{Config{Cluster: &Cluster{Addr: "127.0.0.1:0"}}, "Cluster.Secret is empty"},
		{Config{Cluster: &Cluster{Addr: "127.0.0.1:0", Secret: "s", Join: []string{"nowhere"}}}, "expected host:port"},
		{Config{Addr: taken.Addr().String()}, "address already in use"},
		{Config{Cluster: &Cluster{Addr: taken.Addr().String(), Secret: "s"}}, "address already in use"},
	} {
		began := time.Now()
		s, err := Start(c.config)
		if err == nil {
			s.Close()
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v; expected %q", c.config, err, c.want)
		}
		if took := time.Since(began); took > startTimeout {
			t.Errorf("%q took %v", c.want, took)
		}
	}
}
