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

// The bounds of Serve.
const (
	headerTimeout   = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = (maxRecordingSeconds + 15) * time.Second // the longest recording, and time to send it
	idleTimeout     = time.Minute
	shutdownTimeout = 5 * time.Second
	maxHeaderBytes  = 16 << 10
	maxConns        = 64
)

// Serve serves Handler(cfg) on addr, host:port as for net.Listen, until ctx
// ends; it returns nil then, when everything that it started has ended. Without
// a host, as in ":9090", it listens on 127.0.0.1: only programs of this machine
// reach it. Another host is listened on as said, with a warning in the log,
// because nobody is asked who they are. listening, if not nil, is called once
// with the address.
//
// On loopback it refuses requests for any host but an IP address and localhost
// (403): otherwise a page in a browser on this machine could read what is here,
// by a name of its own that it lets point to 127.0.0.1 (DNS rebinding).
//
// It holds at most 64 connections, further ones wait; a request has 5 s for its
// header of at most 16 KiB, an answer 75 s, and an idle connection is closed
// after a minute. A goroutine looks at the server once a second, for the page's last 10
// minutes: 600 points at most, of some 200 bytes each. When ctx ends, recordings end
// too, and answers under way have 5 s. To show that a server drains, let ctx end after the server has ended.
func Serve(ctx context.Context, addr string, cfg Config, listening func(net.Addr)) error {
	if err := validateConfig(&cfg); err != nil {
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
	handler, known := newHandlerAndState(cfg)
	if isLoopback(ln.Addr()) {
		handler = rejectForeignHosts(handler)
	} else {
		cfg.Log.Warn("admin: profiles, traces and the command line are open to everybody who reaches this address", "address", ln.Addr().String())
	}
	if listening != nil {
		listening(ln.Addr())
	}
	stop := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() { known.sampleEverySecond(stop) })
	defer watching.Wait()
	defer close(stop)
	return serveUntilDone(ctx, netutil.LimitListener(ln, maxConns), handler, shutdownTimeout, cfg.Log)
}

// serveUntilDone serves until ctx ends, and then ends in order: what is not answered within
// shutdownTimeout is cut off. Requests share the lock running; the end takes it for itself,
// which waits for them, and keeps it.
func serveUntilDone(ctx context.Context, ln net.Listener, handler http.Handler, endTime time.Duration, log *slog.Logger) error {
	var running sync.RWMutex
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !running.TryRLock() {
				writeText(w, http.StatusServiceUnavailable, "this has ended")
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
			_ = server.Close() // what is left is cut off
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

func isLoopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// rejectForeignHosts refuses requests whose Host a browser could have from a name that
// others made. No Host at all is let through: no browser sends that, but health
// checks with HTTP/1.0 do.
func rejectForeignHosts(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "" && !isLocalHost(r.Host) {
			writeText(w, http.StatusForbidden, fmt.Sprintf("the Host is %q; expected an IP address or localhost", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isLocalHost says whether host, with or without a port, is an address or
// localhost.
func isLocalHost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}
