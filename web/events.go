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

// Event is a server-sent event for the EventSource of a browser (HTML, 9.2).
type Event struct {
	// ID is sent back as Last-Event-ID when the browser reconnects. "" leaves the browser's value unchanged.
	ID string
	// Name is the event's type; "" means "message".
	Name string
	// Data is the event's data. It may have several lines.
	Data string
	// Retry, if set, is the delay after which the browser reconnects.
	Retry time.Duration
}

// Bytes returns the encoded event, which can be sent to any number of streams, for example with Ref.Send or
// Group.Broadcast. Line ends in ID and Name are removed.
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

// Events turns the connections of requests into streams of server-sent events. It is an [http.Handler] that can be
// registered directly; another handler can also call Subscribe. A [Quick] handler does so without a goroutine.
//
// A stream has no goroutine and takes about 50 bytes more than an idle connection. Send events (Event.Bytes) with its
// Ref, groups or broadcasts. A stream ends when the client disconnects, when it is closed, or when the server shuts
// down. With Server.Heartbeat, the server sends comments, which browsers ignore, so that proxies keep the stream open.
type Events struct {
	// Opened, if set, is called when a stream begins, like tcp.Handler.Opened. It can add c.Ref() to a tcp.Group.
	Opened func(c *tcp.Conn)
	// Closed, if set, is called when a stream has ended, like tcp.Handler.Closed.
	Closed func(c *tcp.Conn, why error)
	// Save and Restore, if set, work like the methods of a tcp.Migrator for streams that move to another process; see
	// HTTP.Endpoints. Restore is called instead of Opened. Without Save, streams with a Value stay in the old process.
	// If Opened is set but Restore is not, all streams stay.
	Save    func(c *tcp.Conn, to []byte) (state []byte, err error)
	Restore func(c *tcp.Conn, state []byte) error
}

// ErrNoStream reports that a request can't become a stream of events. The server has already answered the request.
var ErrNoStream = errors.New("web: the request can't become a stream of events")

// ServeHTTP implements http.Handler.
func (e *Events) ServeHTTP(w http.ResponseWriter, r *http.Request) { _ = e.Subscribe(w, r, nil) }

// Subscribe turns the request's connection into a stream of events after the request's handler has returned. value
// becomes the connection's Value. The response includes the fields of w's header. If the request can't become a stream,
// Subscribe answers it with an error and returns an error that wraps ErrNoStream. For middleware see WebSocket.Upgrade.
func (e *Events) Subscribe(w http.ResponseWriter, r *http.Request, value any) error {
	res, status, why := unwrapResponse(w), 0, ""
	switch {
	case res == nil:
		status, why = http.StatusInternalServerError, "the request is not served by package web"
	case res.state != responsePending:
		return fmt.Errorf("%w: it was already answered", ErrNoStream)
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
	res.out = append(appendSanitizedField(out, "Date", currentHTTPDate()), "\r\n"...)
	res.scheduleHandlerSwitch(eventStream{e}, value, func(c *tcp.Conn) {
		if e.Opened != nil {
			e.Opened(c)
		}
	})
	return nil
}

// scheduleHandlerSwitch makes h the connection's handler after the HTTP handler has returned and w.out has been sent.
func (w *response) scheduleHandlerSwitch(h tcp.Handler, value any, opened func(c *tcp.Conn)) {
	w.setState(responseSwitching)
	w.x.switchHandler = func(c *tcp.Conn) {
		_ = c.SetHandler(h)
		c.SetValue(value)
		opened(c)
		if d, ok := h.(tcp.DrainingHandler); ok && w.x.draining {
			d.Draining(c) // HTTP was told before the switch
		}
	}
}

type eventStream struct{ events *Events }

// Opened is never called, because the connection was opened for HTTP.
func (s eventStream) Opened(*tcp.Conn) {}

// Received ignores input of the client.
func (s eventStream) Received(_ *tcp.Conn, in []byte) int { return len(in) }

func (s eventStream) Ended(_ *tcp.Conn, rest []byte) int { return len(rest) }

func (s eventStream) Heartbeat(c *tcp.Conn) (answers bool) {
	_, _ = c.WriteString(":\n\n")
	return false
}

func (s eventStream) Closed(c *tcp.Conn, why error) {
	if f := s.events.Closed; f != nil {
		f(c, why)
	}
}
