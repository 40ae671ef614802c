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

// Event is a server-sent event for the EventSource of a browser (HTML standard, section 9.2).
type Event struct {
	// ID, if set, is the ID of the event. A browser that reconnects sends the last ID in the header Last-Event-ID.
	ID string
	// Name is the type of the event. The default, "", means the type "message".
	Name string
	// Data is the event's data. It may have several lines.
	Data string
	// Retry, if set, is the time for which the browser waits before it reconnects.
	Retry time.Duration
}

// Bytes returns the encoded event. It removes line ends from ID and Name. The result can be sent to any number of
// streams, for example with tcp.Ref.Send or tcp.Group.Broadcast.
func (e Event) Bytes() []byte {
	b := make([]byte, 0, len(e.ID)+len(e.Name)+len(e.Data)+40)
	if e.ID != "" {
		b = append(append(append(b, "id: "...), removeLineEndsAndNUL(e.ID)...), '\n')
	}
	if e.Name != "" {
		b = append(append(append(b, "event: "...), removeLineEndsAndNUL(e.Name)...), '\n')
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

func removeLineEndsAndNUL(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\r' || r == 0 {
			return -1
		}
		return r
	}, s)
}

// Events turns the connections of requests into streams of server-sent events. Register an Events as an [http.Handler],
// or call Subscribe in another handler. If that handler is marked as [Quick], opening a stream does not need a
// goroutine.
//
// An open stream has no goroutine and takes about 50 bytes more than an idle connection. To send an event to streams,
// pass the result of Event.Bytes to tcp.Ref.Send, tcp.Group.Broadcast or tcp.Server.Broadcast. A stream ends when the
// connection closes or the server shuts down. If Server.Heartbeat is set, the server regularly sends comments, which
// browsers ignore. The comments prevent proxies from closing a silent stream.
//
// Over HTTP/2, a stream also takes a goroutine and a local unix socket. The tcp.Conn of such a stream is the connection
// over the unix socket, not the client's connection. It counts towards Limits.MaxConns in addition to the client's
// connection. In an upgrade, a stream over HTTP/2 stays in the old process.
type Events struct {
	// Opened, if set, is called when a stream begins; see tcp.Handler.Opened. It can add c.Ref() to a tcp.Group.
	Opened func(c *tcp.Conn)
	// Closed, if set, is called when a stream has ended; see tcp.Handler.Closed.
	Closed func(c *tcp.Conn, reason error)
	// Save and Restore, if set, move the state of a stream to the new process in an upgrade, like the methods of a
	// tcp.Migrator; see HTTP.Endpoints. In the new process, Restore is called for the stream instead of Opened.
	//
	// If Save is nil, streams with a Value stay in the old process. If Opened is set but Restore is nil, all streams
	// stay in the old process.
	Save    func(c *tcp.Conn, to []byte) (state []byte, err error)
	Restore func(c *tcp.Conn, state []byte) error
}

// ErrNoStream reports that a request can't become a stream of events. Such a request has already been answered.
var ErrNoStream = errors.New("web: the request can't become an event stream")

// ServeHTTP implements http.Handler. It calls Subscribe with a nil value.
func (e *Events) ServeHTTP(w http.ResponseWriter, r *http.Request) { _ = e.Subscribe(w, r, nil) }

// Subscribe turns the connection of r into a stream of events after the handler of r has returned. value becomes the
// connection's Value. The response contains the header fields of w. If middleware wraps w, the requirement of
// WebSocket.Upgrade for middleware applies.
//
// If r can't become a stream, Subscribe answers r and returns an error that wraps ErrNoStream. Over HTTP/2, Subscribe
// does not return before the stream has ended.
func (e *Events) Subscribe(w http.ResponseWriter, r *http.Request, value any) error {
	status, http2 := 0, http2ConnOf(r)
	res, reason := unwrapResponse(w)
	switch {
	case res == nil && http2 == nil:
		status = http.StatusInternalServerError
	case res != nil && res.state != responsePending:
		return fmt.Errorf("%w: the request was already answered", ErrNoStream)
	case r.Method != http.MethodGet || r.ContentLength != 0:
		status, reason = http.StatusMethodNotAllowed, fmt.Sprintf("the request is %s; expected GET without a body", describeMethodAndBody(r))
	}
	if status != 0 {
		http.Error(w, reason, status)
		return fmt.Errorf("%w: %s", ErrNoStream, reason)
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	if h["Cache-Control"] == nil {
		h.Set("Cache-Control", "no-cache")
	}
	if http2 != nil {
		return e.relayOverHTTP2(w, r, http2.tcpServer, value)
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

// scheduleHandlerSwitch makes h the tcp.Handler of the connection as soon as the HTTP handler has returned and its
// output has been sent. value becomes the connection's Value. The function opened is called after the switch.
func (w *response) scheduleHandlerSwitch(h tcp.Handler, value any, opened func(c *tcp.Conn)) {
	w.setState(responseSwitching)
	w.x.switchHandler = func(c *tcp.Conn) {
		_ = c.SetHandler(h)
		c.SetValue(value)
		opened(c)
		if d, ok := h.(tcp.DrainingHandler); ok && w.x.draining {
			d.Draining(c) // the server called Draining of HTTP before the switch
		}
	}
}

type eventStream struct{ events *Events }

// Opened is never called, because the connection is already open when the stream begins.
func (s eventStream) Opened(*tcp.Conn) {}

func (s eventStream) Received(_ *tcp.Conn, in []byte) int { return len(in) }

func (s eventStream) Ended(_ *tcp.Conn, rest []byte) int { return len(rest) }

func (s eventStream) Heartbeat(c *tcp.Conn) (answers bool) {
	_, _ = c.WriteString(":\n\n")
	return false
}

func (s eventStream) Closed(c *tcp.Conn, reason error) {
	if f := s.events.Closed; f != nil {
		f(c, reason)
	}
}
