package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/netutil"
)

// The limits of Serve.
const (
	headerTimeout   = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = (maxRecordingSeconds + 15) * time.Second // the longest recording plus time to send it
	idleTimeout     = time.Minute
	shutdownTimeout = 5 * time.Second
	maxHeaderBytes  = 16 << 10
	maxConns        = 64
)

// Serve serves Handler(cfg) on addr, host:port as for net.Listen, until ctx ends; then it returns
// nil when everything that it started has ended. Without a host, as in ":9090", it listens on
// 127.0.0.1, which only programs of this machine can reach. Other hosts cause a warning in the log,
// because there is no authentication. listening, if not nil, is called once with the address.
//
// On loopback it rejects requests (403) for any host other than an IP address or localhost:
// otherwise a page in a local browser could read the answers through a name that points to
// 127.0.0.1 (DNS rebinding).
//
// It holds at most 64 connections, further ones wait. A request has 5 s for its header of at most
// 16 KiB, an answer 75 s, and an idle connection is closed after a minute. A goroutine samples the
// server once a second for the page's last 10 minutes: at most 600 points of some 200 bytes each.
// When ctx ends, recordings end, too, and pending answers have 5 s. To show that a server drains,
// end ctx after the server has ended.
func Serve(ctx context.Context, addr string, cfg Config, listening func(net.Addr)) error {
	if err := validateConfigAndSetLog(&cfg); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("admin: address %q: %w; expected host:port, or :port for 127.0.0.1", addr, err)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort(host, port))
	if err != nil {
		return fmt.Errorf("admin: %w", err)
	}
	handler, known := newHandlerAndPageState(cfg)
	if isLoopbackAddr(ln.Addr()) {
		handler = rejectNonLocalHostHeader(handler)
	} else {
		cfg.Log.Warn("admin: profiles, traces and the command line are readable by anyone who can reach this address", "address", ln.Addr().String())
	}
	if listening != nil {
		listening(ln.Addr())
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { known.sampleEverySecond(stop) })
	defer watching.Wait()
	defer close(stop)
	return serveUntilContextEnds(ctx, netutil.LimitListener(ln, maxConns), handler, shutdownTimeout, cfg.Log)
}

// serveUntilContextEnds serves until ctx ends, then shuts down: what is not answered within
// shutdownTimeout is cut off. Requests share the read lock running; the shutdown takes the write
// lock, which waits for them, and keeps it.
func serveUntilContextEnds(ctx context.Context, ln net.Listener, handler http.Handler, endTime time.Duration, log *slog.Logger) error {
	var running sync.RWMutex
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !running.TryRLock() {
				replyText(w, http.StatusServiceUnavailable, "this has ended")
				return
			}
			defer running.RUnlock()
			handler.ServeHTTP(w, r)
		}),
		ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout,
		MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:       slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		BaseContext:    func(net.Listener) context.Context { return ctx }, // so recordings end with it
	}
	ended := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTime)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // cut off the rest
		}
	})
	err := server.Serve(ln)
	if stopped() {
		_ = server.Close() // the listener failed
	} else {
		<-ended
	}
	running.Lock()
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("admin: %w", err)
}

func isLoopbackAddr(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// rejectNonLocalHostHeader rejects requests whose Host may be a name made by others. An empty Host
// passes: browsers never send that, but HTTP/1.0 health checks do.
func rejectNonLocalHostHeader(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "" && !isIPOrLocalhost(r.Host) {
			replyText(w, http.StatusForbidden, fmt.Sprintf("the Host is %q; expected an IP address or localhost", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isIPOrLocalhost reports whether host, with or without a port, is an IP address or localhost.
func isIPOrLocalhost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}
