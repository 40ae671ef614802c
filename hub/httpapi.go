package hub

import (
	"cmp"
	"context"
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

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/web"
)

// httpAPI is the hub as browsers, and programs that speak HTTP, see it:
//
//	GET /                                  the page
//	GET /ws                                a WebSocket: socket.go
//	GET /events?topic=a&topic=b&pattern=p  server-sent events: events.go
//	POST /publish?topic=a                  publish the body
//	GET /topics?prefix=p&limit=100         the topics with the most subscribers
//	GET /topics/a                          one topic
//
// Who asks is known by Authorization (Bearer, or Basic), by the parameter token, or by a
// client certificate. Whatever answers is JSON, errors included.
//
// A browser sends requests for any page of the web, and with them what it knows of its user.
// So a page of another site may only show the hub's own page, unless Hub.Origins has it. Where
// everybody may do everything, who comes from this machine has to call it by a name that is its
// own.
type httpAPI struct {
	once        sync.Once
	http        web.HTTP
	hub         *Hub
	origins     http.CrossOriginProtection
	originHosts map[string]bool // hosts of origins
	sockets     web.WebSocket
	streams     web.Events
	scanSlots   chan struct{}
}

const (
	// bodyTimeout is the most time for the body of a request.
	bodyTimeout = 30 * time.Second
	// maxHTTPScans is how many lists of topics are made, or the other hubs of a cluster asked, at a time; others
	// wait for httpScanWait at most.
	maxHTTPScans = 4
	httpScanWait = clusterQueryTimeout
	// The topics of a list, and the most bytes of those that the other hubs of a cluster tell of.
	defaultTopicLimit, maxTopicLimit = 100, 10_000
	maxRemoteNameBytes               = 4 << 20
)

// httpHandler serves browsers.
func (h *Hub) httpHandler() *web.HTTP {
	f := &h.api
	f.once.Do(func() { f.init(h) })
	return &f.http
}

func (f *httpAPI) init(h *Hub) {
	f.hub = h
	f.scanSlots = make(chan struct{}, maxHTTPScans)
	if err := f.allowOrigins(h.Origins); err != nil {
		panic(err)
	}
	f.sockets = web.WebSocket{
		Handler:      socketHandler{f},
		Subprotocols: []string{subprotocol},
		CheckOrigin:  func(*http.Request) bool { return true }, // parameters has
		MaxMessage:   2*h.Limits.maxMessage() + 4<<10,          // JSON takes more
	}
	f.streams = web.Events{Opened: f.startEventStream, Closed: f.handleEventStreamClosed, Save: f.saveEventStream, Restore: f.restoreEventStream}
	f.http.Endpoints = map[string]web.Endpoint{"ws": &f.sockets, "events": &f.streams}

	mux := http.NewServeMux()
	handleQuick := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, web.Quick(h)) }
	handleQuick("GET /{$}", servePage)
	handleQuick("GET /ws", f.serveWebSocket)
	handleQuick("GET /events", f.serveEvents)
	for _, path := range []string{"/events", "/publish", "/topics", "/topics/{name...}"} {
		handleQuick("OPTIONS "+path, f.servePreflight)
	}
	if h.Cluster == nil {
		handleQuick("GET /topics/{name...}", f.serveTopic)
	} else {
		mux.HandleFunc("GET /topics/{name...}", f.limitScans(f.serveTopic))
	}
	mux.HandleFunc("GET /topics", f.limitScans(f.serveTopics))
	mux.HandleFunc("POST /publish", f.servePublish)
	f.http.Handler, f.http.ReadTimeout = mux, bodyTimeout
}

// allowOrigins lets the pages of origins use the hub.
func (f *httpAPI) allowOrigins(origins []string) error {
	f.originHosts = make(map[string]bool)
	for _, origin := range origins {
		if err := f.origins.AddTrustedOrigin(origin); err != nil {
			return fmt.Errorf("hub: Origins: %w: %w; expected such as https://example.com", tcp.ErrBadConfig, err)
		}
		u, _ := url.Parse(origin) // as AddTrustedOrigin has
		f.originHosts[strings.ToLower(u.Hostname())] = true
	}
	return nil
}

// checkOrigin says why a page of the request's origin may not use the hub.
func (f *httpAPI) checkOrigin(r *http.Request) error {
	asked := *r
	asked.Method = http.MethodPost // to GET it has no objection
	if f.origins.Check(&asked) != nil {
		return fmt.Errorf("a page of another site asks, of origin %.100q; expected one of this server, or of Hub.Origins", r.Header.Get("Origin"))
	}
	if f.hub.Users == nil && remoteAddr(r).IsLoopback() && !f.isOwnHost(r.Host) {
		return fmt.Errorf("the hub has no users, and is asked on this machine as %.100q; expected localhost, an address, or the host of one of Hub.Origins", r.Host)
	}
	return nil
}

// isOwnHost says whether a host is no name that somebody else may have given this machine: a site
// whose name means 127.0.0.1 (DNS rebinding) is, for a browser, where its own pages come from.
func (f *httpAPI) isOwnHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil || strings.EqualFold(name, "localhost") || f.originHosts[strings.ToLower(name)]
}

// parseParams are those of a request, which has no others than token and those named, and comes
// from a page that may ask. If ok is false, it is answered.
func (f *httpAPI) parseParams(w http.ResponseWriter, r *http.Request, allowed ...string) (q url.Values, ok bool) {
	if err := f.checkOrigin(r); err != nil {
		writeHTTPError(w, http.StatusForbidden, err)
		return nil, false
	}
	f.setCORSHeaders(w, r)
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeHTTPError(w, http.StatusBadRequest, err)
		return nil, false
	}
	allowed = append(allowed, "token")
	for name := range q {
		if !slices.Contains(allowed, name) {
			writeHTTPError(w, http.StatusBadRequest, fmt.Errorf("unknown parameter %.40q; expected one of %s", name, strings.Join(allowed, ", ")))
			return nil, false
		}
	}
	return q, true
}

// authenticate is parameters, and who asks.
func (f *httpAPI) authenticate(w http.ResponseWriter, r *http.Request, allowedParams ...string) (u *user, q url.Values, ok bool) {
	if q, ok = f.parseParams(w, r, allowedParams...); !ok {
		return nil, nil, false
	}
	u, err := f.requestUser(r, q)
	if u == nil && err == nil {
		err = errNotAuthenticated
	}
	if err != nil {
		f.rejectLogin(w, r, err)
		return nil, nil, false
	}
	return u, q, true
}

// rejectLogin answers a request of nobody who is known, and closes the connection after too many failed logins.
func (f *httpAPI) rejectLogin(w http.ResponseWriter, r *http.Request, err error) {
	if srv := f.hub.server.Load(); srv != nil && errors.Is(err, errWrongCredentials) && f.hub.recordFailedLogin(srv, nil, remoteAddr(r)) != nil {
		w.Header().Set("Connection", "close")
	}
	writeHTTPError(w, http.StatusUnauthorized, err)
}

// setCORSHeaders lets a page of an origin that may ask read the answer.
func (f *httpAPI) setCORSHeaders(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Origin")
	if origin := r.Header.Get("Origin"); origin != "" {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Allow-Credentials", "true")
	}
}

// servePreflight answers what a browser asks before it sends what a form could not.
func (f *httpAPI) servePreflight(w http.ResponseWriter, r *http.Request) {
	if err := f.checkOrigin(r); err != nil {
		writeHTTPError(w, http.StatusForbidden, err)
		return
	}
	f.setCORSHeaders(w, r)
	w.Header().Set("Access-Control-Allow-Methods", "GET, POST")
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID")
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

var errNotAuthenticated = errors.New("the client has not said who it is; expected Authorization: Bearer TOKEN or Basic, or the parameter token")

// requestUser is who sends a request; nil if that is yet to be said.
func (f *httpAPI) requestUser(r *http.Request, q url.Values) (*user, error) {
	h := f.hub
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
		return nil, fmt.Errorf("%w: Authorization: %.20q; expected Bearer or Basic", errWrongCredentials, scheme)
	case q.Has("token"):
		return h.authenticateToken(q.Get("token"))
	}
	return h.initialUser(r.TLS), nil
}

// writeHTTPError answers with an error.
func writeHTTPError(w http.ResponseWriter, status int, err error) {
	switch status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="myriad hub"`)
	}
	writeJSON(w, status, map[string]string{"error": err.Error()})
}

// httpStatus is the status of an error of the hub.
func httpStatus(err error) int {
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
	p, _ := json.Marshal(v) // of structs and maps, which can't fail
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(append(p, '\n'))
}

// singleParam is the parameter of a name, which has to be there once.
func singleParam(q url.Values, name string) (string, error) {
	if n := len(q[name]); n != 1 {
		return "", fmt.Errorf("%w: the parameter %s is there %d times; expected it once", errEmptyName, name, n)
	}
	return q.Get(name), nil
}

func (f *httpAPI) servePublish(w http.ResponseWriter, r *http.Request) {
	u, q, ok := f.authenticate(w, r, "topic")
	if !ok {
		return
	}
	name, err := singleParam(q, "topic")
	if err != nil {
		writeHTTPError(w, httpStatus(err), err)
		return
	}
	maxBytes := int64(f.hub.Limits.maxMessage())
	message, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBytes))
	var tooLong *http.MaxBytesError
	switch {
	case errors.As(err, &tooLong):
		writeHTTPError(w, http.StatusRequestEntityTooLarge, f.hub.countRefusal(fmt.Errorf("%w: at most %d bytes are allowed", errMessageTooLong, maxBytes)))
		return
	case err != nil:
		writeHTTPError(w, http.StatusBadRequest, fmt.Errorf("the body did not come as a whole: %w", err))
		return
	}
	withinRate := func(now time.Time, rate int) bool {
		return f.hub.httpPublishRates.allow(remoteAddr(r), now, rate, time.Second)
	}
	receivers, err := 0, f.hub.authorizePublish(u, withinRate, Topic, name, message)
	if err == nil {
		receivers, err = f.hub.fanOut(Topic, name, message)
	}
	if err != nil {
		writeHTTPError(w, httpStatus(err), err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"receivers": receivers})
}

// remoteAddr is where a request comes from; the zero Addr by a unix socket.
func remoteAddr(r *http.Request) netip.Addr {
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	return from.Addr()
}

// topicSubscribers is a topic with how many are subscribed to it by its name.
type topicSubscribers struct {
	Topic       string `json:"topic"`
	Subscribers int    `json:"subscribers"`
}

func (f *httpAPI) serveTopic(w http.ResponseWriter, r *http.Request) {
	u, _, ok := f.authenticate(w, r)
	if !ok {
		return
	}
	name := r.PathValue("name")
	if err := f.hub.checkCountAllowed(u, name); err != nil {
		writeHTTPError(w, httpStatus(err), err)
		return
	}
	writeJSON(w, http.StatusOK, topicSubscribers{name, f.hub.clusterSubscriberCounts(r.Context(), Topic, []string{name})[0]})
}

// checkCountAllowed says why a user may not know how many subscribers a topic has.
func (h *Hub) checkCountAllowed(u *user, name string) error {
	if err := h.checkName(name); err != nil {
		return h.countRefusal(err)
	}
	if !u.mayRun("pubsub|numsub") {
		return h.countRefusal(errDenied)
	}
	return nil
}

var errTooManyHTTPScans = fmt.Errorf("%d questions about topics are being answered; expected fewer at a time", maxHTTPScans)

// limitScans is a handler of which few run at a time.
func (f *httpAPI) limitScans(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		late := time.NewTimer(httpScanWait)
		defer late.Stop()
		select {
		case f.scanSlots <- struct{}{}:
			defer func() { <-f.scanSlots }()
			next(w, r)
		case <-late.C:
			writeHTTPError(w, http.StatusServiceUnavailable, errTooManyHTTPScans)
		}
	}
}

func (f *httpAPI) serveTopics(w http.ResponseWriter, r *http.Request) {
	u, q, ok := f.authenticate(w, r, "prefix", "limit")
	if !ok {
		return
	}
	if !u.mayRun("pubsub|channels") {
		writeHTTPError(w, http.StatusForbidden, f.hub.countRefusal(errDenied))
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
	list.Topics, list.Total = f.hub.largestClusterTopics(r.Context(), q.Get("prefix"), limit)
	writeJSON(w, http.StatusOK, list)
}

// largestLocalTopics are the topics with the most subscribers here, of those that begin with a prefix, and how
// many of these there are.
func (h *Hub) largestLocalTopics(prefix string, limit int) (largest []topicSubscribers, total int) {
	largest = []topicSubscribers{} // in JSON not null
	h.topics.eachName(func(name string, subscribers int) bool {
		if strings.HasPrefix(name, prefix) {
			total++
			if largest = append(largest, topicSubscribers{name, subscribers}); len(largest) >= 2*limit {
				largest = topBySubscribers(largest, limit)
			}
		}
		return true
	})
	return topBySubscribers(largest, limit), total
}

// topBySubscribers leaves those with the most subscribers, in order.
func topBySubscribers(topics []topicSubscribers, limit int) []topicSubscribers {
	slices.SortFunc(topics, func(a, b topicSubscribers) int {
		return cmp.Or(cmp.Compare(b.Subscribers, a.Subscribers), cmp.Compare(a.Topic, b.Topic))
	})
	return topics[:min(len(topics), limit)]
}

// largestClusterTopics is largest of all hubs: of the topics that are among the largest of one of them. A topic that
// no hub has told of counts once for each hub that has it.
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
	for i, n := range h.clusterSubscriberCounts(ctx, Topic, names) {
		largest = append(largest, topicSubscribers{names[i], n})
	}
	return topBySubscribers(largest, limit), total
}

// Largest are the topics with the most subscribers on this hub, of those that begin with a prefix, at most
// limit or 10,000, the largest first; total is how many begin with it.
func (h *Hub) Largest(prefix string, limit int) (names []string, total int) {
	largest, total := h.largestLocalTopics(prefix, min(max(limit, 0), maxTopicLimit))
	for _, p := range largest {
		names = append(names, p.Topic)
	}
	return names, total
}
