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

// front is the hub as browsers, and programs that speak HTTP, see it:
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
type front struct {
	once    sync.Once
	http    web.HTTP
	hub     *Hub
	origins http.CrossOriginProtection
	names   map[string]bool // hosts of origins
	sockets web.WebSocket
	streams web.Events
	scans   chan struct{}
}

const (
	// bodyTimeout is the most time for the body of a request.
	bodyTimeout = 30 * time.Second
	// maxScans is how many lists of topics are made, or the other hubs of a cluster asked, at a time; others
	// wait for scanTime at most.
	maxScans = 4
	scanTime = othersTime
	// The topics of a list, and the most bytes of those that the other hubs of a cluster tell of.
	defaultListed, maxListed = 100, 10_000
	maxListedBytes           = 4 << 20
)

// http serves browsers.
func (h *Hub) http() *web.HTTP {
	f := &h.front
	f.once.Do(func() { f.begin(h) })
	return &f.http
}

func (f *front) begin(h *Hub) {
	f.hub = h
	f.scans = make(chan struct{}, maxScans)
	if err := f.trust(h.Origins); err != nil {
		panic(err)
	}
	f.sockets = web.WebSocket{
		Handler:      socketHandler{f},
		Subprotocols: []string{subprotocol},
		CheckOrigin:  func(*http.Request) bool { return true }, // parameters has
		MaxMessage:   2*h.Limits.maxMessage() + 4<<10,          // JSON takes more
	}
	f.streams = web.Events{Opened: f.streamOpened, Closed: f.streamClosed, Save: f.streamSave, Restore: f.streamRestore}
	f.http.Endpoints = map[string]web.Endpoint{"ws": &f.sockets, "events": &f.streams}

	mux := http.NewServeMux()
	quick := func(pattern string, h http.HandlerFunc) { mux.Handle(pattern, web.Quick(h)) }
	quick("GET /{$}", servePage)
	quick("GET /ws", f.socket)
	quick("GET /events", f.events)
	for _, path := range []string{"/events", "/publish", "/topics", "/topics/{name...}"} {
		quick("OPTIONS "+path, f.preflight)
	}
	if h.Cluster == nil {
		quick("GET /topics/{name...}", f.topic)
	} else {
		mux.HandleFunc("GET /topics/{name...}", f.scanned(f.topic))
	}
	mux.HandleFunc("GET /topics", f.scanned(f.topics))
	mux.HandleFunc("POST /publish", f.publish)
	f.http.Handler, f.http.ReadTimeout = mux, bodyTimeout
}

// trust lets the pages of origins use the hub.
func (f *front) trust(origins []string) error {
	f.names = make(map[string]bool)
	for _, origin := range origins {
		if err := f.origins.AddTrustedOrigin(origin); err != nil {
			return fmt.Errorf("hub: Origins: %w: %w; expected such as https://example.com", tcp.ErrBadConfig, err)
		}
		u, _ := url.Parse(origin) // as AddTrustedOrigin has
		f.names[strings.ToLower(u.Hostname())] = true
	}
	return nil
}

// mayAsk says why a page of the request's origin may not use the hub.
func (f *front) mayAsk(r *http.Request) error {
	asked := *r
	asked.Method = http.MethodPost // to GET it has no objection
	if f.origins.Check(&asked) != nil {
		return fmt.Errorf("a page of another site asks, of origin %.100q; expected one of this server, or of Hub.Origins", r.Header.Get("Origin"))
	}
	if f.hub.Users == nil && addressOf(r).IsLoopback() && !f.isOurs(r.Host) {
		return fmt.Errorf("the hub has no users, and is asked on this machine as %.100q; expected localhost, an address, or the host of one of Hub.Origins", r.Host)
	}
	return nil
}

// isOurs says whether a host is no name that somebody else may have given this machine: a site
// whose name means 127.0.0.1 (DNS rebinding) is, for a browser, where its own pages come from.
func (f *front) isOurs(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	_, err := netip.ParseAddr(strings.Trim(name, "[]"))
	return err == nil || strings.EqualFold(name, "localhost") || f.names[strings.ToLower(name)]
}

// parameters are those of a request, which has no others than token and those named, and comes
// from a page that may ask. If ok is false, it is answered.
func (f *front) parameters(w http.ResponseWriter, r *http.Request, named ...string) (q url.Values, ok bool) {
	if err := f.mayAsk(r); err != nil {
		refuse(w, http.StatusForbidden, err)
		return nil, false
	}
	f.share(w, r)
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return nil, false
	}
	named = append(named, "token")
	for name := range q {
		if !slices.Contains(named, name) {
			refuse(w, http.StatusBadRequest, fmt.Errorf("unknown parameter %.40q; expected one of %s", name, strings.Join(named, ", ")))
			return nil, false
		}
	}
	return q, true
}

// admit is parameters, and who asks.
func (f *front) admit(w http.ResponseWriter, r *http.Request, named ...string) (u *user, q url.Values, ok bool) {
	if q, ok = f.parameters(w, r, named...); !ok {
		return nil, nil, false
	}
	u, err := f.userOf(r, q)
	if u == nil && err == nil {
		err = errUnknown
	}
	if err != nil {
		f.refuseLogin(w, r, err)
		return nil, nil, false
	}
	return u, q, true
}

// refuseLogin answers a request of nobody who is known, and closes the connection after too many failed logins.
func (f *front) refuseLogin(w http.ResponseWriter, r *http.Request, err error) {
	if srv := f.hub.server.Load(); srv != nil && errors.Is(err, errCredential) && f.hub.failedLogin(srv, nil, addressOf(r)) != nil {
		w.Header().Set("Connection", "close")
	}
	refuse(w, http.StatusUnauthorized, err)
}

// share lets a page of an origin that may ask read the answer.
func (f *front) share(w http.ResponseWriter, r *http.Request) {
	w.Header().Add("Vary", "Origin")
	if origin := r.Header.Get("Origin"); origin != "" {
		w.Header().Set("Access-Control-Allow-Origin", origin)
		w.Header().Set("Access-Control-Allow-Credentials", "true")
	}
}

// preflight answers what a browser asks before it sends what a form could not.
func (f *front) preflight(w http.ResponseWriter, r *http.Request) {
	if err := f.mayAsk(r); err != nil {
		refuse(w, http.StatusForbidden, err)
		return
	}
	f.share(w, r)
	w.Header().Set("Access-Control-Allow-Methods", "GET, POST")
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Last-Event-ID")
	w.Header().Set("Access-Control-Max-Age", "600")
	w.WriteHeader(http.StatusNoContent)
}

var errUnknown = errors.New("the client has not said who it is; expected Authorization: Bearer TOKEN or Basic, or the parameter token")

// userOf is who sends a request; nil if that is yet to be said.
func (f *front) userOf(r *http.Request, q url.Values) (*user, error) {
	h := f.hub
	scheme, credential, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		return h.token(strings.TrimSpace(credential))
	case strings.EqualFold(scheme, "Basic"):
		name, password, ok := r.BasicAuth()
		if !ok {
			return nil, fmt.Errorf("%w: Authorization: Basic is not USER:PASSWORD in base64", errCredential)
		}
		return h.login(name, password)
	case scheme != "":
		return nil, fmt.Errorf("%w: Authorization: %.20q; expected Bearer or Basic", errCredential, scheme)
	case q.Has("token"):
		return h.token(q.Get("token"))
	}
	return h.arrival(r.TLS), nil
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, status int, err error) {
	switch status {
	case http.StatusServiceUnavailable:
		w.Header().Set("Retry-After", "1")
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="myriad hub"`)
	}
	writeJSON(w, status, map[string]string{"error": err.Error()})
}

// statusOf is the status of an error of the hub.
func statusOf(err error) int {
	switch {
	case errors.Is(err, errNoName), errors.Is(err, errLongName), errors.Is(err, errPosition):
		return http.StatusBadRequest
	case errors.Is(err, errCredential):
		return http.StatusUnauthorized
	case errors.Is(err, errDenied):
		return http.StatusForbidden
	case errors.Is(err, errRate):
		return http.StatusTooManyRequests
	case errors.Is(err, errLongMessage):
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

// only is the parameter of a name, which has to be there once.
func only(q url.Values, name string) (string, error) {
	if n := len(q[name]); n != 1 {
		return "", fmt.Errorf("%w: the parameter %s is there %d times; expected it once", errNoName, name, n)
	}
	return q.Get(name), nil
}

func (f *front) publish(w http.ResponseWriter, r *http.Request) {
	u, q, ok := f.admit(w, r, "topic")
	if !ok {
		return
	}
	name, err := only(q, "topic")
	if err != nil {
		refuse(w, statusOf(err), err)
		return
	}
	most := int64(f.hub.Limits.maxMessage())
	message, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		refuse(w, http.StatusRequestEntityTooLarge, f.hub.refuse(fmt.Errorf("%w: at most %d bytes are allowed", errLongMessage, most)))
		return
	case err != nil:
		refuse(w, http.StatusBadRequest, fmt.Errorf("the body did not come as a whole: %w", err))
		return
	}
	withinRate := func(now time.Time, rate int) bool { return f.hub.posts.take(addressOf(r), now, rate, time.Second) }
	receivers, err := 0, f.hub.authorise(u, withinRate, Topic, name, message)
	if err == nil {
		receivers, err = f.hub.fanOut(Topic, name, message)
	}
	if err != nil {
		refuse(w, statusOf(err), err)
		return
	}
	writeJSON(w, http.StatusOK, map[string]int{"receivers": receivers})
}

// addressOf is where a request comes from; the zero Addr by a unix socket.
func addressOf(r *http.Request) netip.Addr {
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	return from.Addr()
}

// presence is a topic with how many are subscribed to it by its name.
type presence struct {
	Topic       string `json:"topic"`
	Subscribers int    `json:"subscribers"`
}

func (f *front) topic(w http.ResponseWriter, r *http.Request) {
	u, _, ok := f.admit(w, r)
	if !ok {
		return
	}
	name := r.PathValue("name")
	if err := f.hub.mayCount(u, name); err != nil {
		refuse(w, statusOf(err), err)
		return
	}
	writeJSON(w, http.StatusOK, presence{name, f.hub.allSubscribers(r.Context(), Topic, []string{name})[0]})
}

// mayCount says why a user may not know how many subscribers a topic has.
func (h *Hub) mayCount(u *user, name string) error {
	if err := h.checkName(name); err != nil {
		return h.refuse(err)
	}
	if !u.mayRun("pubsub|numsub") {
		return h.refuse(errDenied)
	}
	return nil
}

var errScans = fmt.Errorf("%d questions about topics are being answered; expected fewer at a time", maxScans)

// scanned is a handler of which few run at a time.
func (f *front) scanned(do http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		late := time.NewTimer(scanTime)
		defer late.Stop()
		select {
		case f.scans <- struct{}{}:
			defer func() { <-f.scans }()
			do(w, r)
		case <-late.C:
			refuse(w, http.StatusServiceUnavailable, errScans)
		}
	}
}

func (f *front) topics(w http.ResponseWriter, r *http.Request) {
	u, q, ok := f.admit(w, r, "prefix", "limit")
	if !ok {
		return
	}
	if !u.mayRun("pubsub|channels") {
		refuse(w, http.StatusForbidden, f.hub.refuse(errDenied))
		return
	}
	limit := defaultListed
	if q.Has("limit") {
		var err error
		if limit, err = strconv.Atoi(q.Get("limit")); err != nil || limit < 1 || limit > maxListed {
			refuse(w, http.StatusBadRequest, fmt.Errorf("limit is %.20q; expected 1 to %d", q.Get("limit"), maxListed))
			return
		}
	}
	var list struct {
		Topics []presence `json:"topics"`
		Total  int        `json:"total"`
	}
	list.Topics, list.Total = f.hub.largestOfAll(r.Context(), q.Get("prefix"), limit)
	writeJSON(w, http.StatusOK, list)
}

// largest are the topics with the most subscribers here, of those that begin with a prefix, and how
// many of these there are.
func (h *Hub) largest(prefix string, limit int) (largest []presence, total int) {
	largest = []presence{} // in JSON not null
	h.topics.each(func(name string, subscribers int) bool {
		if strings.HasPrefix(name, prefix) {
			total++
			if largest = append(largest, presence{name, subscribers}); len(largest) >= 2*limit {
				largest = cut(largest, limit)
			}
		}
		return true
	})
	return cut(largest, limit), total
}

// cut leaves those with the most subscribers, in order.
func cut(topics []presence, limit int) []presence {
	slices.SortFunc(topics, func(a, b presence) int {
		return cmp.Or(cmp.Compare(b.Subscribers, a.Subscribers), cmp.Compare(a.Topic, b.Topic))
	})
	return topics[:min(len(topics), limit)]
}

// largestOfAll is largest of all hubs: of the topics that are among the largest of one of them. A topic that
// no hub has told of counts once for each hub that has it.
func (h *Hub) largestOfAll(ctx context.Context, prefix string, limit int) (largest []presence, total int) {
	largest, total = h.largest(prefix, limit)
	if h.Cluster == nil {
		return largest, total
	}
	asking, cancel := context.WithTimeout(ctx, othersTime)
	names, more := h.Cluster.Largest(asking, prefix, limit, maxListedBytes)
	cancel()
	slices.Sort(names)
	names = slices.Compact(names)
	total += more + h.notHere(Topic, names)
	for _, p := range largest {
		names = append(names, p.Topic)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	largest = largest[:0]
	for i, n := range h.allSubscribers(ctx, Topic, names) {
		largest = append(largest, presence{names[i], n})
	}
	return cut(largest, limit), total
}

// Largest are the topics with the most subscribers on this hub, of those that begin with a prefix, at most
// limit or 10,000, the largest first; total is how many begin with it.
func (h *Hub) Largest(prefix string, limit int) (names []string, total int) {
	largest, total := h.largest(prefix, min(max(limit, 0), maxListed))
	for _, p := range largest {
		names = append(names, p.Topic)
	}
	return names, total
}
