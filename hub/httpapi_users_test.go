package hub

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"testing"

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
		{"GET", "/events?topic=a", nil, 401, errNotAuthenticated.Error()},
		{"POST", "/publish?topic=a", bearer("ann's"), 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a", basic, 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a&token=ann's", nil, 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a&token=ann's", bearer("wrong"), 401, errWrongCredentials.Error()},
		{"POST", "/publish?topic=a", bearer(""), 401, errWrongCredentials.Error()},
		{"POST", "/publish?topic=b", bearer("ann's"), 403, errDenied.Error()},
		{"POST", "/publish?topic=c", bearer("bob's"), 403, errDenied.Error()},
		{"GET", "/events?pattern=a", bearer("ann's"), 403, errDenied.Error()}, // as in Redis, only a* itself
		{"GET", "/events?topic=a&topic=b", bearer("ann's"), 403, errDenied.Error()},
		{"GET", "/topics", bearer("ann's"), 200, `"total":0`},
		{"GET", "/topics", bearer("bob's"), 403, errDenied.Error()},
		{"GET", "/topics/c", bearer("bob's"), 403, errDenied.Error()},
		{"GET", "/ws", nil, 426, ""},
		{"GET", "/ws?token=wrong", nil, 401, errWrongCredentials.Error()},
	}
	forEachModel(t, func() *Hub { return newHubWithUsers(httpTestUsers) }, func(t *testing.T, h *Hub, addr string) {
		for _, row := range rows {
			expectResponse(t, row.status, row.text, row.method, "http://"+addr+row.path, "x", row.fields...)
		}
		if r := h.Stats().Refused; r.Credentials != 3 || r.Denied != 6 {
			t.Errorf("counted %+v", r)
		}

		p := dialWebSocket(t, addr, "")
		for _, row := range []struct{ say, hear string }{
			{`{"op":"ping"}`, `{"op":"pong"}`},
			{`{"op":"subscribe","topic":"a"}`, `{"op":"error","error":"no permission"}`},
			{`{"op":"auth","user":"ann","password":"bob's"}`, `{"op":"error","error":"wrong user name or password*`},
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
			p.exchange(row.say, row.hear)
		}
		q := dialWebSocket(t, addr, "?token=ann's")
		q.exchange(`{"op":"publish","topic":"a","data":"x"}`, `{"op":"published","topic":"a","receivers":1}`)
		p.expectText(`{"op":"message","pattern":"a*","topic":"a","data":"x"}`)
	})
}

// newSelfSignedCert returns a certificate of 127.0.0.1 that is its own authority.
func newSelfSignedCert(t *testing.T, name string) tls.Certificate {
	t.Helper()
	cert, key := testkit.WriteCertificate(t, func(c *x509.Certificate) {
		c.Subject.CommonName = name
		c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	})
	loaded, err := tls.LoadX509KeyPair(cert, key)
	testkit.RequireNoError(t, err)
	return loaded
}

func TestClientCertificates(t *testing.T) {
	server, trusted := newSelfSignedCert(t, "server"), x509.NewCertPool()
	trusted.AddCert(server.Leaf)
	certs := map[string]tls.Certificate{"": {}}
	for _, name := range []string{"carl", "ann", "nobody"} {
		certs[name] = newSelfSignedCert(t, name)
		trusted.AddCert(certs[name].Leaf)
	}
	cfg := &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: trusted, ClientAuth: tls.VerifyClientCertIfGiven}
	addr, _ := testserver.Start(t, &tcp.Server{Handler: newHubWithUsers(httpTestUsers).Handler(), TLSConfig: cfg})
	for name, cert := range certs {
		status, reply := 401, `{"op":"error","error":"no permission"}`
		if name == "carl" {
			status, reply = 200, `{"op":"subscribed","topic":"c","count":1}`
		}
		ofClient := &tls.Config{RootCAs: trusted, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }}
		client := http.Client{Timeout: testkit.Timeout, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: ofClient}}
		res, err := client.Get("https://" + addr + "/topics/c")
		testkit.RequireNoError(t, err)
		res.Body.Close()
		testkit.WantEqual(t, res.StatusCode, status, "status for %q", name)
		c, _, err := websocket.Dial(t.Context(), "wss://"+addr+"/ws", &websocket.DialOptions{HTTPClient: &client})
		testkit.RequireNoError(t, err)
		wsClient{t, t.Context(), c}.exchange(`{"op":"subscribe","topic":"c"}`, reply)
		_ = c.CloseNow()
	}
}
