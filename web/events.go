package web

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/myriad-go/myriad/tcp"
)

// Event is a server-sent event, as the EventSource of a browser knows it (HTML, 9.2).
type Event struct {
	// ID is what the browser sends as Last-Event-ID when it connects again; "" leaves it
	// as it was.
	ID string
	// Name is the event's type; "" is "message".
	Name string
	// Data is the event's data, of any number of lines.
	Data string
	// Retry, if set, is how long the browser is to wait before it connects again.
	Retry time.Duration
}

// Bytes is the event as it goes over the wire, to any number of streams: for Ref.Send,
// Group.Broadcast and the like. Line ends in ID and Name are left out.
func (e Event) Bytes() []byte {
	b := make([]byte, 0, len(e.ID)+len(e.Name)+len(e.Data)+40)
	if e.ID != "" {
		b = append(append(append(b, "id: "...), removeLineEnds(e.ID)...), '\n')
	}
	if e.Name != "" {
		b = append(append(append(b, "event: "...), removeLineEnds(e.Name)...), '\n')
	}
	if e.Retry > 0 {
		b = append(strconv.AppendInt(append(b, "retry: "...), e.Retry.Milliseconds(), 10), '\n')
	}
	data := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(e.Data)
	for line := range strings.SplitSeq(data, "\n") {
		b = append(append(append(b, "data: "...), line...), '\n')
	}
	return append(b, '\n')
}

func removeLineEnds(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return -1
		}
		return r
	}, s)
}

// Events makes the connections of requests streams of server-sent events. It is an
// [http.Handler], to be registered as it is; a handler that decides for itself calls
// Subscribe. Mark it as [Quick], and a subscription takes no goroutine either.
//
// A stream has no goroutine. It takes what an idle connection takes, and some 50 bytes, and
// gets what its Ref, groups and broadcasts are sent: Event.Bytes. It ends when the client
// goes, when it is closed, and when the server is told to end. With Server.Heartbeat it is
// sent a comment as often, which keeps proxies from closing it, and which browsers ignore.
type Events struct {
	// Opened, if set, is called when a stream begins, on the connection's owner by the
	// rules of a tcp.Handler: to keep c.Ref(), or add it to a tcp.Group.
	Opened func(c *tcp.Conn)
	// Closed, if set, is called when it has ended, as tcp.Handler.Closed is.
	Closed func(c *tcp.Conn, why error)
	// Save and Restore, if set, are as those of a tcp.Migrator, for streams that move to
	// another process: see HTTP.Endpoints. Restore is called instead of Opened. Without Save
	// streams that have a Value stay in the old process, and without Restore all do if
	// Opened is set.
	Save    func(c *tcp.Conn, to []byte) (state []byte, err error)
	Restore func(c *tcp.Conn, state []byte) error
}

// ErrNoStream says that a request can't get a stream of events. It has been answered.
var ErrNoStream = errors.New("web: the request can't become a stream of events")

// ServeHTTP implements http.Handler.
func (e *Events) ServeHTTP(w http.ResponseWriter, r *http.Request) { _ = e.Subscribe(w, r, nil) }

// Subscribe makes the request's connection a stream of events, with a Value, when its
// handler has returned. What is in w's header is sent, too. A request that can't have one
// is answered, and the error wraps ErrNoStream; see WebSocket.Upgrade.
func (e *Events) Subscribe(w http.ResponseWriter, r *http.Request, value any) error {
	res, status, why := unwrapResponse(w), 0, ""
	switch {
	case res == nil:
		status, why = http.StatusInternalServerError, "the request is not served by package web"
	case res.state != responsePending:
		return fmt.Errorf("%w: it is answered already", ErrNoStream)
	case r.Method != http.MethodGet || r.ContentLength != 0:
		status, why = http.StatusMethodNotAllowed, "expected GET, without a body"
	}
	if status != 0 {
		http.Error(w, why, status)
		return fmt.Errorf("%w: %s", ErrNoStream, why)
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	if h["Cache-Control"] == nil {
		h.Set("Cache-Control", "no-cache")
	}
	h.Set("Connection", "close")
	out := appendStatusLine(res.out, r.ProtoMinor, http.StatusOK)
	out = appendHeader(out, h, contentLength|transferEncoding)
	res.out = append(appendField(out, "Date", currentDate()), "\r\n"...)
	res.setHandler(eventStream{e}, value, func(c *tcp.Conn) {
		if e.Opened != nil {
			e.Opened(c)
		}
	})
	return nil
}

// setHandler gives the connection to another tcp.Handler when this one has returned, behind the
// head in out.
func (w *response) setHandler(h tcp.Handler, value any, opened func(c *tcp.Conn)) {
	w.setState(responseSwitching)
	w.x.switchHandler = func(c *tcp.Conn) {
		_ = c.SetHandler(h)
		c.SetValue(value)
		opened(c)
		if d, ok := h.(tcp.DrainingHandler); ok && w.x.draining {
			d.Draining(c) // HTTP was told meanwhile
		}
	}
}

// eventStream is the tcp.Handler of streams of events.
type eventStream struct{ events *Events }

// Opened implements tcp.Handler. It is never called: the connection was HTTP's.
func (s eventStream) Opened(*tcp.Conn) {}

// Received implements tcp.Handler: a client has nothing to say.
func (s eventStream) Received(_ *tcp.Conn, in []byte) int { return len(in) }

// Ended implements tcp.Handler.
func (s eventStream) Ended(_ *tcp.Conn, rest []byte) int { return len(rest) }

// Heartbeat implements tcp.HeartbeatHandler with a comment.
func (s eventStream) Heartbeat(c *tcp.Conn) (answers bool) {
	_, _ = c.WriteString(":\n\n")
	return false
}

// Closed implements tcp.Handler.
func (s eventStream) Closed(c *tcp.Conn, why error) {
	if f := s.events.Closed; f != nil {
		f(c, why)
	}
}
