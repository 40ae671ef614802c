package hub

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

const wrongLogin = "-WRONGPASS invalid username-password pair or user is disabled.\r\n"

func serveWithUserAnn(t *testing.T, limits Limits) (h *Hub, s *tcptest.Server, log *bytes.Buffer) {
	t.Helper()
	users := mustReadUsers("user ann on >secret +@all &*\n")
	h, log = &Hub{Users: users, Limits: limits}, new(bytes.Buffer)
	return h, tcptest.NewServer(t, &tcp.Server{Handler: h.Handler(), Log: slog.New(slog.NewTextHandler(log, nil))}), log
}

func TestFailedLoginLimitPerConn(t *testing.T) {
	h, s, log := serveWithUserAnn(t, Limits{MaxFailedLogins: 3})
	p := s.Dial()
	p.Send(strings.Repeat("AUTH ann x\r\n", 2) + "AUTH ann secret\r\n" + strings.Repeat("AUTH ann x\r\n", 2) + "PING\r\n")
	p.Expect(strings.Repeat(wrongLogin, 2) + "+OK\r\n" + strings.Repeat(wrongLogin, 2) + "+PONG\r\n")
	p.Send("HELLO 3 AUTH ann x\r\nPING\r\n")
	p.Expect(wrongLogin)
	if why, closed := p.Closed(); closed {
		t.Fatalf("it is closed at once: %v", why)
	}
	s.Advance(2 * failedLoginCloseDelay)
	p.ExpectClosed(errTooManyFailedLogins)
	testkit.WantEqual(t, p.Output(), "", "answer behind the last failed login")
	if r := h.Stats().Refused; r.Credentials != 5 || r.Logins != 1 {
		t.Errorf("%+v", r)
	}
	if lines := log.String(); strings.Count(lines, "after failed logins") != 1 || !strings.Contains(lines, "3 on one connection") {
		t.Errorf("the log is %s", lines)
	}
}

func TestFailedLoginLimitPerAddress(t *testing.T) {
	h, s, log := serveWithUserAnn(t, Limits{MaxFailedLogins: 2})
	from := netip.MustParseAddrPort("192.0.2.1:1000")
	try := func(from netip.AddrPort) (closes bool) {
		p := s.DialFrom(from)
		p.Send("AUTH ann x\r\n")
		p.Expect(wrongLogin)
		s.Advance(2 * failedLoginCloseDelay)
		why, closes := p.Closed()
		if closes && !errors.Is(why, errTooManyFailedLogins) {
			t.Errorf("it closes with %v", why)
		}
		return closes
	}
	const free = 2 * addrLoginFactor
	for i := range free + 5 {
		testkit.WantEqual(t, try(from), i >= free, "closes after failed login %d of one address", i+1)
	}
	if try(netip.MustParseAddrPort("192.0.2.2:1000")) {
		t.Error("another address is closed for it")
	}
	p := s.DialFrom(from)
	p.Send("AUTH ann secret\r\n")
	p.Expect("+OK\r\n")
	testkit.WantEqual(t, h.Stats().Refused.Logins, 5, "refused logins")
	testkit.WantEqual(t, strings.Count(log.String(), "after failed logins"), 1, "lines of the log in a second")
	h.failedLogins.lastLogged = time.Now().Add(-failedLoginLogInterval)
	try(from)
	if lines := log.String(); strings.Count(lines, "after failed logins") != 2 || !strings.Contains(lines, "suppressed=4") {
		t.Errorf("the log is %s", lines)
	}
}

func TestFailedLoginLimitOverHTTP(t *testing.T) {
	users := mustReadUsers("user ann on >secret +@all &*\nuser default on nopass +subscribe &*\n")
	h, addr := startHub(t, &Hub{Users: users, Limits: Limits{MaxFailedLogins: 2}})
	p := dialWebSocket(t, addr, "")
	for range 2 {
		p.exchange(`{"op":"auth","token":"x"}`, `{"op":"error","error":"`+errWrongCredentials.Error()+`"}`)
	}
	p.expectClose(websocket.StatusPolicyViolation)
	client := http.Client{Transport: new(http.Transport), Timeout: testkit.Timeout}
	defer client.CloseIdleConnections()
	for i := range 2*addrLoginFactor - 1 {
		res, err := client.Get("http://" + addr + "/topics?token=x")
		testkit.RequireNoError(t, err)
		_ = res.Body.Close()
		if res.StatusCode != http.StatusUnauthorized || res.Close != (i >= 2*addrLoginFactor-2) {
			t.Fatalf("failed login %d by HTTP: %d, closes: %v", i+1, res.StatusCode, res.Close)
		}
	}
	testkit.WantEqual(t, h.Stats().Refused.Logins, 2, "refused logins")
}
