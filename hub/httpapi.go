package hub

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/myriad-go/myriad/internal/page"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// httpAPI serves browsers and other HTTP clients:
//
//	GET /                                  the web page
//	GET /ws                                WebSocket, see websocket.go
//	GET /events?topic=a&topic=b&pattern=p  server-sent events, see eventstream.go
//	POST /publish?topic=a                  publish the request body
//	GET /topics?prefix=p&limit=100         the topics with the most subscribers
//	GET /topics/a                          the subscribers of one topic
//
// Clients authenticate with the Authorization header (Bearer or Basic), the parameter token, or a client certificate.
// Responses are JSON, including errors.
//
// Requests from web pages of other sites are rejected, because browsers may add the user's credentials to such
// requests. Hub.Origins lists sites that are permitted nevertheless. In a hub without users, requests from the same
// machine must use a trusted host name (see isTrustedHost).
type httpAPI struct {
	once        sync.Once
	http        web.HTTP
	hub         *Hub
	origins     http.CrossOriginProtection
	originHosts map[string]bool
	sockets     web.WebSocket
	streams     web.Events
	scanSlots   chan struct{}
}

const (
	bodyTimeout = 30 * time.Second
	// maxHTTPScans limits concurrent topic lists and queries to other hubs. Further requests wait for httpScanWait.
	maxHTTPScans = 4
	httpScanWait = clusterQueryTimeout
	// The default and the maximum of a topic list's limit parameter.
	defaultTopicLimit, maxTopicLimit = 100, 10_000
	maxRemoteNameBytes               = 4 << 20
)

func (h *Hub) httpHandler() *web.HTTP {
	f := &h.api
	f.once.Do(func() { f.init(h) })
	return &f.http
}

func (api *httpAPI) init(h *Hub) {
	api.hub = h
	api.scanSlots = make(chan struct{}, maxHTTPScans)
	if err := api.allowOrigins(h.Origins); err != nil {
		panic(err)
	}
	api.sockets = web.WebSocket{
		Handler:      socketHandler{api},
		Subprotocols: []string{subprotocol},
		CheckOrigin:  func(*http.Request) bool { return true }, // checkOriginParseQueryOrWriteError has checked it
		Compression:  h.Compression,
		MaxMessage:   2*h.Limits.maxMessage() + 4<<10, // JSON escapes take space
	}
	api.streams = web.Events{Opened: api.subscribeOpenedEventStream, Closed: h.countLostIfSlowThenUnsubscribe, Save: api.saveEventStream, Restore: api.restoreEventStream}
	api.http.Endpoints = map[string]web.Endpoint{"ws": &api.sockets, "events": &api.streams}

	mux := http.NewServeMux()
	handleQuick := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, web.Quick(h)) }
	handleQuick("GET /{$}", serveHubHTMLPage)
	handleQuick("GET /ws", api.serveWebSocket)
	handleQuick("GET /events", api.serveEventStream)
	for _, path := range []string{"/events", "/publish", "/topics", "/topics/{name...}"} {
		handleQuick("OPTIONS "+path, api.servePreflight)
	}
	if h.Cluster == nil {
		handleQuick("GET /topics/{name...}", api.serveSubscriberCount)
	} else {
		mux.HandleFunc("GET /topics/{name...}", api.waitScanSlotOrReject503(api.serveSubscriberCount))
	}
	mux.HandleFunc("GET /topics", api.waitScanSlotOrReject503(api.serveLargestTopics))
	mux.HandleFunc("POST /publish", api.servePublish)
	api.http.Handler, api.http.ReadTimeout = mux, bodyTimeout
	api.http.DisableHTTP2 = true // detectHTTP knows HTTP/1.1 only
}

func (api *httpAPI) allowOrigins(origins []string) error {
	api.originHosts = make(map[string]bool)
	for _, origin := range origins {
		if err := api.origins.AddTrustedOrigin(origin); err != nil {
			return fmt.Errorf("hub: Origins: %w: %w; expected an origin such as https://example.com", tcp.ErrBadConfig, err)
		}
		u, _ := url.Parse(origin) // AddTrustedOrigin has validated it
		api.originHosts[strings.ToLower(u.Hostname())] = true
	}
	return nil
}

func (api *httpAPI) checkOriginAndDNSRebinding(r *http.Request) error {
	postRequest := *r
	postRequest.Method = http.MethodPost // Check accepts every GET
	if api.origins.Check(&postRequest) != nil {
		return fmt.Errorf("origin %.100q is not allowed; expected that of this server or one of Hub.Origins (--origin of myriad hub)", r.Header.Get("Origin"))
	}
	if api.hub.Users == nil && remoteAddr(r).IsLoopback() && !api.isTrustedHost(r.Host) {
		return fmt.Errorf("host %.100q is not allowed for local requests to a hub without users; expected localhost, an address, or a host of Hub.Origins", r.Host)
	}
	return nil
}

// isTrustedHost reports whether host is an IP address, localhost or the host of an allowed origin.
func (api *httpAPI) isTrustedHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	// An attacker can make any other name resolve to 127.0.0.1 (DNS rebinding).
	return err == nil || strings.EqualFold(name, "localhost") || api.originHosts[strings.ToLower(name)]
}

// checkOriginParseQueryOrWriteError checks the origin of a request and parses its query. The query may contain only
// token and the parameters in allowedBesidesToken.
func (api *httpAPI) checkOriginParseQueryOrWriteError(w http.ResponseWriter, r *http.Request, allowedBesidesToken ...string) (q url.Values, ok bool) {
	if err := api.checkOriginAndDNSRebinding(r); err != nil {
		writeHTTPError(w, http.StatusForbidden, err)
		return nil, false
	}
	api.allowOriginAfterCheck(w, r)
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeHTTPError(w, http.StatusBadRequest, err)
		return nil, false
	}
	allowedBesidesToken = append(allowedBesidesToken, "token")
	for name := range q {
		if !slices.Contains(allowedBesidesToken, name) {
			writeHTTPError(w, http.StatusBadRequest, fmt.Errorf("unknown parameter %.40q; expected one of %s", name, strings.Join(allowedBesidesToken, ", ")))
			return nil, false
		}
	}
	return q, true
}

func (api *httpAPI) checkRequestOrWriteError(w http.ResponseWriter, r *http.Request, allowedParams ...string) (u *user, q url.Values, ok bool) {
	if q, ok = api.checkOriginParseQueryOrWriteError(w, r, allowedParams...); !ok {
		return nil, nil, false
	}
	u, err := api.authenticateOrInitialUser(r, q)
	if u == nil && err == nil {
		err = errNotAuthenticated
	}
	if err != nil {
		api.rejectLoginAndCloseIfMany(w, r, err)
		return nil, nil, false
	}
	return u, q, true
}

func (api *httpAPI) rejectLoginAndCloseIfMany(w http.ResponseWriter, r *http.Request, err error) {
	if srv := api.hub.server.Load(); srv != nil && errors.Is(err, errWrongCredentials) && api.hub.recordFailedLogin(srv, nil, remoteAddr(r)) != nil {
		w.Header().Set("Connection", "close")
	}
	writeHTTPError(w, http.StatusUnauthorized, err)
}

// allowOriginAfterCheck permits the requesting web page to read the response. The caller must have checked the page's
// origin.
func (api *httpAPI) allowOriginAfterCheck(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Origin")
	if origin := r.Header.Get("Origin"); origin != "" {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Allow-Credentials", "true")
	}
}

func (api *httpAPI) servePreflight(w http.ResponseWriter, r *http.Request) {
	if err := api.checkOriginAndDNSRebinding(r); err != nil {
		writeHTTPError(w, http.StatusForbidden, err)
		return
	}
	api.allowOriginAfterCheck(w, r)
	w.Header().Set("Access-Control-Allow-Methods", "GET, POST")
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID")
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

var errNotAuthenticated = errors.New("authentication required; expected Authorization: Bearer TOKEN, Authorization: Basic or the token parameter")

// authenticateOrInitialUser returns the user whose credentials the request contains. If the request contains no
// credentials, it returns the result of initialUser.
func (api *httpAPI) authenticateOrInitialUser(r *http.Request, q url.Values) (userOrNil *user, err error) {
	h := api.hub
	scheme, credential, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return h.authenticateToken(strings.TrimSpace(credential))
	case strings.EqualFold(scheme, "Basic"):
		name, password, ok := r.BasicAuth()
		if !ok {
			return nil, fmt.Errorf("%w: Authorization: Basic is not USER:PASSWORD in base64", errWrongCredentials)
		}
		return h.authenticatePassword(name, password)
	case scheme != "":
		return nil, fmt.Errorf("%w: the Authorization scheme is %.20q; expected Bearer or Basic", errWrongCredentials, scheme)
	case q.Has("token"):
		return h.authenticateToken(q.Get("token"))
	}
	return h.initialUser(r.TLS), nil
}

func writeHTTPError(w http.ResponseWriter, status int, err error) {
	switch status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="myriad hub"`)
	}
	writeJSON(w, status, map[string]string{"error": err.Error()})
}

func statusForError(err error) int {
	switch {
	case errors.Is(err, errEmptyName), errors.Is(err, errNameTooLong), errors.Is(err, errBadPosition):
		return http.StatusBadRequest
	case errors.Is(err, errWrongCredentials):
		return http.StatusUnauthorized
	case errors.Is(err, errDenied):
		return http.StatusForbidden
	case errors.Is(err, errPublishRate):
		return http.StatusTooManyRequests
	case errors.Is(err, errMessageTooLong):
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusServiceUnavailable
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	p, _ := json.Marshal(v) // structs and maps: can't fail
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(p, '\n'))
}

func (api *httpAPI) servePublish(w http.ResponseWriter, r *http.Request) {
	u, q, ok := api.checkRequestOrWriteError(w, r, "topic")
	if !ok {
		return
	}
	if n := len(q["topic"]); n != 1 {
		err := fmt.Errorf("%w: the topic parameter occurs %d times; expected it once", errEmptyName, n)
		writeHTTPError(w, http.StatusBadRequest, err)
		return
	}
	maxBytes := int64(api.hub.Limits.maxMessage())
	message, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		writeHTTPError(w, http.StatusRequestEntityTooLarge, api.hub.countRefusal(fmt.Errorf("%w: at most %d bytes are allowed", errMessageTooLong, maxBytes)))
		return
	case err != nil:
		writeHTTPError(w, http.StatusBadRequest, fmt.Errorf("the body is incomplete: %w", err))
		return
	}
	withinRate := func(now time.Time, rate int) bool {
		return api.hub.httpPublishRates.allow(remoteAddr(r), now, rate, time.Second)
	}
	receivers, err := api.hub.authorizeAndPublish(u, withinRate, Topic, q.Get("topic"), message)
	if err != nil {
		writeHTTPError(w, statusForError(err), err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"receivers": receivers})
}

func remoteAddr(r *http.Request) netip.Addr {
	addrPort, _ := netip.ParseAddrPort(r.RemoteAddr)
	return addrPort.Addr()
}

type topicSubscribers struct {
	Topic       string `json:"topic"`
	Subscribers int    `json:"subscribers"`
}

func (api *httpAPI) serveSubscriberCount(w http.ResponseWriter, r *http.Request) {
	u, _, ok := api.checkRequestOrWriteError(w, r)
	if !ok {
		return
	}
	name := r.PathValue("name")
	if err := api.hub.checkMayCountSubscribers(u, name); err != nil {
		writeHTTPError(w, statusForError(err), err)
		return
	}
	writeJSON(w, http.StatusOK, topicSubscribers{name, api.hub.subscriberCountsOnAllHubs(r.Context(), Topic, []string{name})[0]})
}

func (h *Hub) checkMayCountSubscribers(u *user, topic string) error {
	if err := h.checkNameLength(topic); err != nil {
		return h.countRefusal(err)
	}
	if !u.mayRunForSomeTopic("pubsub|numsub") {
		return h.countRefusal(errDenied)
	}
	return nil
}

var errTooManyHTTPScans = fmt.Errorf("too many concurrent topic requests (at most %d); try again later", maxHTTPScans)

func (api *httpAPI) waitScanSlotOrReject503(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		late := time.NewTimer(httpScanWait)
		defer late.Stop()
		select {
		case api.scanSlots <- struct{}{}:
			defer func() { <-api.scanSlots }()
			next(w, r)
		case <-late.C:
			writeHTTPError(w, http.StatusServiceUnavailable, errTooManyHTTPScans)
		}
	}
}

func (api *httpAPI) serveLargestTopics(w http.ResponseWriter, r *http.Request) {
	u, q, ok := api.checkRequestOrWriteError(w, r, "prefix", "limit")
	if !ok {
		return
	}
	if !u.mayRunForSomeTopic("pubsub|channels") {
		writeHTTPError(w, http.StatusForbidden, api.hub.countRefusal(errDenied))
		return
	}
	limit := defaultTopicLimit
	if q.Has("limit") {
		var err error
		if limit, err = strconv.Atoi(q.Get("limit")); err != nil || limit < 1 || limit > maxTopicLimit {
			writeHTTPError(w, http.StatusBadRequest, fmt.Errorf("limit is %.20q; expected 1 to %d", q.Get("limit"), maxTopicLimit))
			return
		}
	}
	var list struct {
		Topics []topicSubscribers `json:"topics"`
		Total  int                `json:"total"`
	}
	list.Topics, list.Total = api.hub.largestClusterTopics(r.Context(), q.Get("prefix"), limit)
	writeJSON(w, http.StatusOK, list)
}

// largestLocalTopics returns the topics on this hub that begin with prefix and have the most subscribers, largest
// first. total counts all topics that begin with prefix.
func (h *Hub) largestLocalTopics(prefix string, limit int) (largest []topicSubscribers, total int) {
	largest = []topicSubscribers{} // [] instead of null in JSON
	h.EachName(Topic, func(name string, subscribers int) bool {
		if strings.HasPrefix(name, prefix) {
			total++
			if largest = append(largest, topicSubscribers{name, subscribers}); len(largest) >= 2*limit {
				largest = sortAndTruncateBySubscribers(largest, limit)
			}
		}
		return true
	})
	return sortAndTruncateBySubscribers(largest, limit), total
}

func sortAndTruncateBySubscribers(topics []topicSubscribers, limit int) []topicSubscribers {
	slices.SortFunc(topics, func(a, b topicSubscribers) int {
		return cmp.Or(cmp.Compare(b.Subscribers, a.Subscribers), cmp.Compare(a.Topic, b.Topic))
	})
	return topics[:min(len(topics), limit)]
}

// largestClusterTopics is like largestLocalTopics, but for the topics on all hubs of the cluster. total may count a
// topic more than once.
func (h *Hub) largestClusterTopics(ctx context.Context, prefix string, limit int) (largest []topicSubscribers, total int) {
	largest, total = h.largestLocalTopics(prefix, limit)
	if h.Cluster == nil {
		return largest, total
	}
	queryCtx, cancel := context.WithTimeout(ctx, clusterQueryTimeout)
	names, omitted := h.Cluster.Largest(queryCtx, prefix, limit, maxRemoteNameBytes)
	cancel()
	slices.Sort(names)
	names = slices.Compact(names)
	total += omitted + h.countWithoutLocalSubscribers(Topic, names)
	for _, p := range largest {
		names = append(names, p.Topic)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	largest = largest[:0]
	for i, n := range h.subscriberCountsOnAllHubs(ctx, Topic, names) {
		largest = append(largest, topicSubscribers{names[i], n})
	}
	return sortAndTruncateBySubscribers(largest, limit), total
}

// Largest returns the topics on this hub that begin with prefix and have the most subscribers, largest first. It
// returns at most limit topics, and never more than 10,000. total counts all topics with this prefix.
func (h *Hub) Largest(prefix string, limit int) (names []string, total int) {
	largest, total := h.largestLocalTopics(prefix, min(max(limit, 0), maxTopicLimit))
	for _, p := range largest {
		names = append(names, p.Topic)
	}
	return names, total
}

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

var renderPage = sync.OnceValue(func() []byte {
	var b bytes.Buffer
	if err := (page.Application{Title: "Hub", Body: pageHTML, Style: pageCSS, Script: pageJS}).WriteHTML(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
})

func serveHubHTMLPage(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cache-Control", "no-cache")
	_, _ = w.Write(renderPage())
}
