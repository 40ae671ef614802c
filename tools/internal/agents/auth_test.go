package agents

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/load"
)

// TestWrongToken checks that an agent with a wrong token, and one without, are named in both logs, once each.
func TestWrongToken(t *testing.T) {
	t.Parallel() // mostly waits
	var coordinator, wrong, without logBuffer
	url := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		o := Options{Agents: 1, NATS: NATS{Token: secret}, Listen: "127.0.0.1:0", JoinTimeout: testkit.Timeout, Logf: func(format string, args ...any) {
			coordinator.logf(format, args...)
			if _, rest, found := strings.Cut(fmt.Sprintf(format, args...), "waiting at "); found {
				at, _, _ := strings.Cut(rest, " ")
				url <- at
			}
		}}
		_, _ = RunOnAgents(ctx, o, load.Config{Target: "127.0.0.1:1", Connections: 1})
	})
	at := testkit.Receive(t, url, "the server")
	for token, say := range map[string]*logBuffer{"another": &wrong, "": &without} {
		running.Go(func() { _ = (&Agent{NATS: NATS{URL: at, Token: token}, Logf: say.logf}).Serve(ctx) })
	}
	testkit.WaitFor(t, "all are named", func() bool {
		return wrong.contains("Authorization Violation: wrong token") && without.contains("no credentials; expected the secret") &&
			coordinator.contains("NATS: rejected a client from 127.0.0.1: its token is wrong or missing")
	})
	if wrong.contains(secret) || wrong.contains("another") || coordinator.contains("another") {
		t.Error("a token is shown")
	}
	cancel()
	running.Wait()
	for _, s := range []*logBuffer{&wrong, &without} {
		if strings.Count(s.String(), "\n") != 1 {
			t.Errorf("an agent says %q; expected one line, however often it tries", s)
		}
	}
}

// TestWarnings checks that a flood of rejected clients does not flood the log.
func TestWarnings(t *testing.T) {
	var said logBuffer
	c := &coordinator{Options: Options{Logf: said.logf}, warnings: make(chan string, 1)}
	for _, line := range []string{"a", "a", "b"} {
		for range 1000 {
			c.keepWarningIfNonePending(line)
		}
		c.logQueuedNATSWarningUnlessRepeated()
		c.logQueuedNATSWarningUnlessRepeated()
	}
	if got := said.String(); got != "NATS: a\nNATS: b\n" {
		t.Errorf("it says %q", got)
	}
}

// TestCheck checks that agents and coordinators require credentials beyond loopback.
func TestCheck(t *testing.T) {
	for _, c := range []struct {
		nats NATS
		want string
	}{
		{NATS{URL: "nats://127.0.0.1:4222,nats://[::1]:1,nats://localhost"}, ""},
		{NATS{URL: "nats://192.0.2.1:4222"}, "no credentials for NATS at nats://192.0.2.1:4222, which is not on loopback; expected a secret (MYRIAD_AGENTS_SECRET)"},
		{NATS{URL: "nats://u:p@192.0.2.1,tls://a.invalid"}, "NATS at tls://a.invalid"},
		{NATS{URL: "nats://u:p@192.0.2.1"}, ""},
		{NATS{URL: "nats://192.0.2.1", Token: secret}, ""},
		{NATS{URL: "nats://192.0.2.1", Creds: "file"}, ""},
		{NATS{URL: "nats://u:p@:x"}, "cannot parse the NATS URL nats://…@:x"},
	} {
		err := (&Options{NATS: c.nats}).RequireCredentialsUnlessLoopback()
		if c.want != "" && err != nil {
			err = (&Agent{NATS: c.nats}).Serve(t.Context())
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v; want %q", c.nats, err, c.want)
		}
	}
	for listen, ok := range map[string]bool{"": true, "127.0.0.1:0": true, "[::1]:0": true, ":4222": false, "0.0.0.0:0": false, "192.0.2.1:1": false} {
		if err := (&Options{Listen: listen}).RequireCredentialsUnlessLoopback(); (err == nil) != ok {
			t.Errorf("an own server at %q without a token: %v", listen, err)
		}
		if err := (&Options{Listen: listen, NATS: NATS{Token: secret}}).RequireCredentialsUnlessLoopback(); err != nil {
			t.Errorf("an own server at %q with a token: %v", listen, err)
		}
	}
}

// remoteConn makes a connection look like one to another machine.
type remoteConn struct{ net.Conn }

func (remoteConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 4222} }

// Dial implements nats.CustomDialer.
func (remoteConn) Dial(network, addr string) (net.Conn, error) {
	conn, err := net.Dial(network, addr)
	return remoteConn{conn}, err
}

// TestCheckServer checks that both refuse a server on another machine that ignores credentials.
func TestCheckServer(t *testing.T) {
	t.Parallel() // mostly waits
	for _, token := range []string{secret, ""} {
		server := testkit.Must(natsd.Start(natsd.Config{Addr: "127.0.0.1:0", Token: token}))(t)
		defer server.Close()
		n := NATS{URL: "nats://" + server.Addr().String(), Token: secret}
		for _, n.dialer = range []nats.CustomDialer{nil, remoteConn{}} {
			conn := testkit.Must(nats.Connect(n.URL, n.natsConnOptions("test")...))(t)
			if err := requireServerAuthOrLoopback(conn); (err != nil) != (token == "" && n.dialer != nil) {
				t.Errorf("token %q, elsewhere %v: error %v", token, n.dialer != nil, err)
			}
			conn.Close()
		}
		if token != "" {
			continue
		}
		_, err := RunOnAgents(t.Context(), Options{Agents: 1, NATS: n}, load.Config{Target: "127.0.0.1:1", Connections: 1})
		for by, err := range map[string]error{"agent": (&Agent{NATS: n}).Serve(t.Context()), "coordinator": err} {
			if err == nil || !strings.Contains(err.Error(), "NATS at 192.0.2.1:4222 admits clients without credentials") {
				t.Errorf("the %s: error %v", by, err)
			}
		}
	}
}
