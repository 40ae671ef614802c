package hub

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

func TestHTTPRoutes(t *testing.T) {
	rows := []struct {
		method, path, body string
		status             int
		text               string
	}{
		{"GET", "/", "", 200, "<title>Hub</title>"},
		{"GET", "/nothing", "", 404, ""},
		{"GET", "/ws", "", 426, "the request is not a WebSocket handshake"},
		{"GET", "/ws?topic=a", "", 400, `unknown parameter \"topic\"; expected one of token`},
		{"POST", "/publish?topic=a", "", 200, `{"receivers":0}`},
		{"PUT", "/publish?topic=a", "hello", 405, ""},
		{"POST", "/publish", "hello", 400, "the topic parameter occurs 0 times"},
		{"POST", "/publish?topic=a&to=b", "hello", 400, `unknown parameter \"to\"; expected one of topic, token`},
		{"POST", "/publish?topic=%", "hello", 400, "invalid URL escape"},
		{"POST", "/publish?topic=01234567890", "hello", 400, "11 bytes; at most 10 are allowed"},
		{"POST", "/publish?topic=a", strings.Repeat("x", 100), 200, `{"receivers":0}`},
		{"POST", "/publish?topic=a", strings.Repeat("x", 101), 413, "at most 100 bytes are allowed"},
		{"POST", "/publish?topic=a&token=x", "hello", 401, errWrongCredentials.Error()},
		{"GET", "/topics", "", 200, `{"topics":[],"total":0}`},
		{"GET", "/topics?limit=0", "", 400, `limit is \"0\"; expected 1 to 10000`},
		{"GET", "/topics?begin=x", "", 400, `unknown parameter \"begin\"; expected one of prefix, limit, token`},
		{"GET", "/topics/a%2Fb%2F%2Fc", "", 200, `{"topic":"a/b//c","subscribers":0}`},
		{"GET", "/topics/", "", 400, errEmptyName.Error()},
		{"GET", "/topics/01234567890", "", 400, errNameTooLong.Error()},
		{"GET", "/events", "", 400, "expected at least one topic or pattern parameter"},
		{"GET", "/events?topic=", "", 400, errEmptyName.Error()},
		{"GET", "/events?topic=a&channel=b", "", 400, `unknown parameter \"channel\"; expected one of topic, pattern, since, token`},
		{"HEAD", "/events?topic=a", "", 405, ""},
	}
	h, addr := startHub(t, &Hub{Limits: Limits{MaxName: 10, MaxMessage: 100}})
	for _, row := range rows {
		expectResponse(t, row.status, row.text, row.method, "http://"+addr+row.path, row.body)
	}
	for _, credential := range []string{"Bearer x", "Basic eDp5", "Basic x", "Digest x", "x"} {
		res := expectResponse(t, 401, errWrongCredentials.Error(), "POST", "http://"+addr+"/publish?topic=a", "x", "Authorization", credential)
		have := res.Header.Get("WWW-Authenticate")
		testkit.WantEqual(t, have, `Bearer realm="myriad hub"`, "WWW-Authenticate for %s", credential)
	}
	testkit.WantEqual(t, h.published.Load(), 2, "published messages")
}

// TestOrigins requests each route from pages of the hub, of allowed origins, and of others.
func TestOrigins(t *testing.T) {
	const friend = "https://friend.example"
	_, addr := startHub(t, &Hub{Origins: []string{friend, "http://localhost:3000"}})
	url := "http://" + addr
	rows := []struct {
		name    string
		fields  []string
		allowed bool
	}{
		{"a program", nil, true},
		{"the hub's page", []string{"Origin", url}, true},
		{"a friend's page", []string{"Origin", friend}, true},
		{"a friend's page, said twice", []string{"Origin", friend, "Sec-Fetch-Site", "cross-site"}, true},
		{"the same with another port", []string{"Origin", "http://localhost:3001"}, false},
		{"a friend's page in clear", []string{"Origin", "http://friend.example"}, false},
		{"a page of a name that ends so", []string{"Origin", "https://not.friend.example"}, false},
		{"another site's page, said otherwise", []string{"Sec-Fetch-Site", "cross-site"}, false},
		{"another page of the same site", []string{"Origin", "http://" + addr + "0", "Sec-Fetch-Site", "same-site"}, false},
		{"a page without an origin", []string{"Origin", "null"}, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			origin := ""
			if len(row.fields) > 0 && row.fields[0] == "Origin" {
				origin = row.fields[1]
			}
			preflight := append([]string{"Access-Control-Request-Method", "POST"}, row.fields...)
			for _, r := range []struct {
				method, path string
				fields       []string
				status       int
			}{
				{"POST", "/publish?topic=a", row.fields, 200},
				{"GET", "/topics", row.fields, 200},
				{"GET", "/topics/a", row.fields, 200},
				{"HEAD", "/events?topic=a", row.fields, 405}, // checked after the origin
				{"OPTIONS", "/publish", preflight, 204},
			} {
				status, allow := r.status, origin
				if !row.allowed {
					status, allow = 403, ""
				}
				res := expectResponse(t, status, "", r.method, url+r.path, "", r.fields...)
				have := res.Header.Get("Access-Control-Allow-Origin")
				testkit.WantEqual(t, have, allow, "Access-Control-Allow-Origin of %s %s", r.method, r.path)
			}
			expectResponse(t, 200, "<title>Hub</title>", "GET", url, "", row.fields...)
			c, _, err := websocket.Dial(t.Context(), "ws://"+addr+"/ws", &websocket.DialOptions{HTTPHeader: headerFromPairs(row.fields)})
			if (err == nil) != row.allowed {
				t.Errorf("a WebSocket: %v", err)
			}
			if c != nil {
				_ = c.CloseNow()
			}
		})
	}
	res := expectResponse(t, 204, "", "OPTIONS", url+"/publish?topic=a", "", "Origin", friend)
	for name, want := range map[string]string{"Access-Control-Allow-Methods": "GET, POST", "Access-Control-Allow-Headers": "Authorization, Content-Type, Last-Event-ID",
		"Access-Control-Allow-Credentials": "true", "Access-Control-Max-Age": "600", "Vary": "Origin"} {
		testkit.WantEqual(t, res.Header.Get(name), want, "%s", name)
	}
}

// TestDNSRebindingRejected checks that local requests with a foreign host name are rejected in a hub without
// users.
func TestDNSRebindingRejected(t *testing.T) {
	users := mustReadUsers("user default on nopass +@all &*")
	_, addr := startHub(t, &Hub{Origins: []string{"https://Friend.example"}})
	named, _ := serveHub(t, tcp.Auto, &Hub{Users: users})
	for host, status := range map[string]int{
		"localhost": 200, "localhost:80": 200, "LOCALHOST": 200, "127.0.0.1": 200, "[::1]:6379": 200, "[::1]": 200, "friend.example:81": 200,
		"evil.example": 403, "evil.example:6379": 403, "localhost.evil.example": 403, "127.0.0.1.evil.example": 403,
	} {
		for at, want := range map[string]int{addr: status, named: 200} {
			c := dialAndSend(t, at, "GET /topics HTTP/1.1\r\nConnection: close\r\nHost: "+host+"\r\n\r\n")
			res, _ := c.ReadResponse()
			testkit.WantEqual(t, res.StatusCode, want, "status for %s", host)
		}
	}
}

// TestPublishOverHTTP publishes a message, and halves of messages, which have no effect.
func TestPublishOverHTTP(t *testing.T) {
	const half = "POST /publish?topic=a/b+c HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n\r\nhello"
	_, addr := startHub(t, &Hub{})
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"subscribe","topic":"a/b c"}`, `{"op":"subscribed","topic":"a/b c","count":1}`)
	c := dialAndSend(t, addr, half)
	c.CloseWrite()
	if text := c.ExpectClosed(); strings.Contains(text, "receivers") {
		t.Errorf("half a request is answered with %s", text)
	}
	expectResponse(t, 200, `{"receivers":1}`, "POST", "http://"+addr+"/publish?topic=a/b+c", "<b>hello</b>", "Content-Type", "text/plain")
	p.expectText(`{"op":"message","topic":"a/b c","data":"\u003cb\u003ehello\u003c/b\u003e"}`)
	h := &Hub{}
	testkit.WantEqual(t, h.httpHandler().ReadTimeout, bodyTimeout, "time for a body")
	h.httpHandler().ReadTimeout = 50 * time.Millisecond
	_, addr = startHub(t, h)
	c = dialAndSend(t, addr, half)
	expectUpTo(t, c, "400 Bad Request")
	expectUpTo(t, c, "the body is incomplete")
}

func TestTopicListLimit(t *testing.T) {
	h, addr := startHub(t, &Hub{})
	for range maxHTTPScans {
		h.api.scanSlots <- struct{}{}
	}
	res := expectResponse(t, 503, errTooManyHTTPScans.Error(), "GET", "http://"+addr+"/topics", "")
	testkit.WantEqual(t, res.Header.Get("Retry-After"), "1", "Retry-After")
	<-h.api.scanSlots
	expectResponse(t, 200, `"total":0`, "GET", "http://"+addr+"/topics", "")
}

func TestEventStream(t *testing.T) {
	forEachModel(t, newPlainHub, func(t *testing.T, h *Hub, addr string) {
		c := dialAndSend(t, addr, "GET /events?topic=a&topic=b&topic=a&pattern=c* HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: 7\r\n\r\n")
		res, err := http.ReadResponse(c.R, nil)
		if err != nil || res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" || res.Header.Get("X-Accel-Buffering") != "no" {
			t.Fatalf("answered with %v, %v", res, err)
		}
		var wait int
		if n, err := fmt.Sscanf(c.ReadLine(), "retry: %d", &wait); n != 1 || wait < 1000 || wait > 5000 {
			t.Errorf("the client is to wait for %d ms, %v", wait, err)
		}
		h.publishAll(t, "a", "one\ntwo")
		h.publishAll(t, "b", "\xff")
		h.publishAll(t, "other", "no")
		h.publishAll(t, "c3", "three")
		c.Expect("\n")
		for _, m := range []string{`"topic":"a","data":"one\ntwo"`, `"topic":"b","base64":"/w=="`, `"pattern":"c*","topic":"c3","data":"three"`} {
			c.Expect(`data: {"op":"message",` + m + "}\n\n")
		}
		c.Close()
		testkit.WaitFor(t, "all subscriptions end", func() bool { return h.Stats().Subscriptions == 0 })
	})
}

func TestEventStreamRefused(t *testing.T) {
	h := &Hub{Limits: Limits{MaxTopics: 1}}
	p := serveVirtual(t, h, tcp.Limits{}).Dial()
	p.Send("GET /events?topic=a&topic=b HTTP/1.1\r\nHost: localhost\r\n\r\n")
	p.ExpectClosed(nil)
	if text := p.Output(); !strings.Contains(text, "event: refused\ndata: {\"op\":\"error\",\"error\":\"") {
		t.Errorf("it says %s", text)
	}
	expectNoSubscriptions(t, h)
}

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
	h, addr := startHub(t, newHubWithUsers(httpTestUsers))
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
