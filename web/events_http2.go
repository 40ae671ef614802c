package web

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/myriad-go/myriad/tcp"
)

// localEventStream is the tcp.Handler of an event stream to an HTTP/2 client.
type localEventStream struct {
	eventStream
	failed context.CancelCauseFunc
}

func (s localEventStream) Opened(c *tcp.Conn) {
	if f := s.events.Opened; f != nil {
		f(c)
	}
}

func (s localEventStream) DialFailed(_ tcp.Dial, err error) { s.failed(err) }

// relayOverHTTP2 serves a stream of events to an HTTP/2 client until the stream ends. All requests of an HTTP/2 client
// share one tcp.Conn. Therefore the stream gets a tcp.Conn of its own, and relayOverHTTP2 copies the output of this
// tcp.Conn to w.
func (e *Events) relayOverHTTP2(w http.ResponseWriter, r *http.Request, s *tcp.Server, value any) error {
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	nc, err := newPipeToServer(ctx, s, tcp.Dial{Handler: localEventStream{eventStream{e}, cancel}, Value: value})
	if err != nil {
		http.Error(w, "the stream can't be opened", http.StatusServiceUnavailable)
		return fmt.Errorf("%w: %w", ErrNoStream, err)
	}
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	w.WriteHeader(http.StatusOK)
	flush := http.NewResponseController(w).Flush
	buf := make([]byte, 4<<10)
	for err = flush(); err == nil; err = flush() {
		n, err := nc.Read(buf)
		if err == nil {
			_, err = w.Write(buf[:n])
		}
		if err != nil {
			break
		}
	}
	return nil
}

// newPipeToServer makes s connect to a new unix socket in a temporary directory, and returns the other end of the
// connection. In s, d.Handler handles the connection.
func newPipeToServer(ctx context.Context, s *tcp.Server, d tcp.Dial) (net.Conn, error) {
	dir, err := os.MkdirTemp("", "web") // only this user may enter it
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	d.Network, d.Addr = "unix", l.Addr().String()
	if err := s.Dial(d); err != nil {
		return nil, err
	}
	nc, err := l.Accept()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return nc, err
}
