package hub

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

const httpTestUsers = `
user default off
user ann on >ann's +@pubsub &a*
user bob on >bob's (+publish &b) (+subscribe &c)
user carl on cert +subscribe +@pubsub &c
`

// TestHTTPAuthentication checks each way to authenticate and each right on each route.
func TestHTTPAuthentication(t *testing.T) {
	bearer := func(token string) []string { return []string{"Authorization", "Bearer " + token} }
	basic := []string{"Authorization", "Basic YW5uOmFubidz"} // ann:ann's
	rows := []struct {
		method, path string
		fields       []string
		status       int
		text         string
	}{
		{"POST", "/publish?topic=a", nil, 401, errNotAuthenticated.Error()},
		{"GET", "/topics", nil, 401, errNotAuthenticated.Error()},
		{"GET", "/topics/a", nil, 401, errNotAuthenticated.Error()},
		{"GET", "/events?topic=a", nil, 401, errNotAuthenticated.Error()},
		{"GET", "/", nil, 200, "<title>Hub</title>"},
		{"POST", "/publish?topic=a", bearer("ann's"), 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a", []string{"Authorization", "bearer  ann's "}, 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a", basic, 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a&token=ann's", nil, 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a&token=ann's", bearer("wrong"), 401, errWrongCredentials.Error()},
		{"POST", "/publish?topic=a&token=", nil, 401, errWrongCredentials.Error()},
		{"POST", "/publish?topic=a", bearer(""), 401, errWrongCredentials.Error()},
		{"POST", "/publish?topic=b", bearer("ann's"), 403, errDenied.Error()},
		{"POST", "/publish?topic=b", bearer("bob's"), 200, `{"receivers":0}`},
		{"POST", "/publish?topic=c", bearer("bob's"), 403, errDenied.Error()},
		{"GET", "/events?topic=b", bearer("ann's"), 403, errDenied.Error()},
		{"GET", "/events?pattern=a", bearer("ann's"), 403, errDenied.Error()}, // as in Redis, only a* itself
		{"GET", "/events?topic=a&topic=b", bearer("ann's"), 403, errDenied.Error()},
		{"GET", "/topics", bearer("ann's"), 200, `"total":0`},
		{"GET", "/topics", bearer("bob's"), 403, errDenied.Error()},
		{"GET", "/topics/a", bearer("ann's"), 200, `"subscribers":0`},
		{"GET", "/topics/c", bearer("bob's"), 403, errDenied.Error()},
		{"GET", "/ws", nil, 426, ""},
		{"GET", "/ws?token=wrong", nil, 401, errWrongCredentials.Error()},
	}
	forEachModel(t, func() *Hub { return newHubWithUsers(t, httpTestUsers) }, func(t *testing.T, h *Hub, addr string) {
		for _, row := range rows {
			expectResponse(t, row.status, row.text, row.method, "http://"+addr+row.path, "x", row.fields...)
		}
		if r := h.Stats().Refused; r.Credentials != 4 || r.Denied != 7 {
			t.Errorf("counted %+v", r)
		}

		p := dialWebSocket(t, addr, "")
		for _, row := range []struct{ say, hear string }{
			{`{"op":"ping"}`, `{"op":"pong"}`},
			{`{"op":"subscribe","topic":"a"}`, `{"op":"error","error":"no permission"}`},
			{`{"op":"publish","topic":"a","data":"x"}`, `{"op":"error","error":"no permission"}`},
			{`{"op":"count","topic":"a"}`, `{"op":"error","error":"no permission"}`},
			{`{"op":"auth","user":"ann","password":"bob's"}`, `{"op":"error","error":"wrong user name or password*`},
			{`{"op":"subscribe","topic":"a"}`, `{"op":"error","error":"no permission"}`},
			{`{"op":"auth","user":"ann","password":"ann's","id":1}`, `{"op":"authenticated","user":"ann","id":1}`},
			{`{"op":"subscribe","topic":"a"}`, `{"op":"subscribed","topic":"a","count":1}`},
			{`{"op":"subscribe","pattern":"a*"}`, `{"op":"subscribed","pattern":"a*","count":2}`},
			{`{"op":"subscribe","pattern":"a"}`, `{"op":"error","error":"no permission"}`},
			{`{"op":"count","topic":"a"}`, `{"op":"count","topic":"a","subscribers":1}`},
			{`{"op":"auth","token":"bob's"}`, `{"op":"authenticated","user":"bob"}`},
			{`{"op":"publish","topic":"a","data":"x"}`, `{"op":"error","error":"no permission"}`},
			{`{"op":"publish","topic":"b","data":"x"}`, `{"op":"published","topic":"b","receivers":0}`},
			{`{"op":"unsubscribe","topic":"a"}`, `{"op":"unsubscribed","topic":"a","count":1}`},
		} {
			p.sendText(row.say)
			p.expectText(row.hear)
		}
		q := dialWebSocket(t, addr, "?token=ann's")
		q.sendText(`{"op":"publish","topic":"a","data":"x"}`)
		q.expectText(`{"op":"published","topic":"a","receivers":1}`)
		p.expectText(`{"op":"message","pattern":"a*","topic":"a","data":"x"}`)
	})
}

func TestEnforceClosesHTTPClients(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			h := newHubWithUsers(t, httpTestUsers)
			srv := &tcp.Server{Model: model, Handler: h.Handler()}
			addr, _ := testserver.Start(t, srv)
			p := dialWebSocket(t, addr, "?token=ann's")
			p.sendText(`{"op":"subscribe","topic":"a"}`)
			p.expectText(`{"op":"subscribed","topic":"a","count":1}`)
			_, r := dialAndSend(t, addr, "GET /events?topic=a&token=ann's HTTP/1.1\r\nHost: localhost\r\n\r\n")
			waitForSubscribers(t, h, "a", 2)
			if err := h.Users.Reload(strings.NewReader("user bob on >bob's")); err != nil {
				t.Fatal(err)
			}
			if n, err := h.Enforce(t.Context(), srv); n != 2 || err != nil {
				t.Errorf("closed %d, %v", n, err)
			}
			if _, err := io.ReadAll(r); err != nil {
				t.Error(err)
			}
			if _, m, err := p.Read(p.ctx); err == nil {
				t.Errorf("the socket goes on with %s", m)
			}
		})
	}
}

type testCA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newTestCA(t testing.TB) *testCA {
	t.Helper()
	a := &testCA{t: t}
	a.key, a.cert = a.issueCert("authority", nil)
	return a
}

func (a *testCA) issueCert(name string, signer *testCA) (*ecdsa.PrivateKey, *x509.Certificate) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: signer == nil, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	parent, by := c, key
	if signer != nil {
		parent, by = signer.cert, signer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	c, err = x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, c
}

func (a *testCA) issueKeyPair(name string) tls.Certificate {
	key, cert := a.issueCert(name, a)
	return tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key}
}

func (a *testCA) certPool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.cert)
	return p
}

func TestClientCertificates(t *testing.T) {
	a := newTestCA(t)
	cfg := &tls.Config{Certificates: []tls.Certificate{a.issueKeyPair("server")}, ClientCAs: a.certPool(), ClientAuth: tls.VerifyClientCertIfGiven}
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			addr, _ := testserver.Start(t, &tcp.Server{Model: model, Handler: newHubWithUsers(t, httpTestUsers).Handler(), TLSConfig: cfg})
			for name, status := range map[string]int{"carl": 200, "ann": 401, "nobody": 401, "": 401} {
				client := http.Client{Timeout: testkit.Timeout, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: a.certPool()}}}
				if name != "" {
					client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{a.issueKeyPair(name)}
				}
				res, err := client.Get("https://" + addr + "/topics/c")
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if res.StatusCode != status {
					t.Errorf("%q: %s; expected %d", name, res.Status, status)
				}
				ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
				c, _, err := websocket.Dial(ctx, "wss://"+addr+"/ws", &websocket.DialOptions{HTTPClient: &client})
				if err != nil {
					t.Fatal(err)
				}
				p := wsClient{t, ctx, c}
				p.sendText(`{"op":"subscribe","topic":"c"}`)
				if name == "carl" {
					p.expectText(`{"op":"subscribed","topic":"c","count":1}`)
				} else {
					p.expectText(`{"op":"error","error":"no permission"}`)
				}
				_ = c.CloseNow()
				cancel()
			}
		})
	}
}
