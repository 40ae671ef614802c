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

const (
	headerTimeout   = 5 * time.Second
	readTimeout     = 10 * time.Second
	writeTimeout    = (maxRecordingSeconds + 15) * time.Second // the longest recording plus the time to send it
	idleTimeout     = time.Minute
	shutdownTimeout = 5 * time.Second
	maxHeaderBytes  = 16 << 10
	maxConns        = 64
)

// Serve serves Handler(cfg) on addr until ctx ends. After ctx has ended, Serve returns nil.
//
// addr is a host:port as for net.Listen. Without a host, as in ":9090", Serve listens on 127.0.0.1, which only local
// programs can reach. If addr is not on loopback, Serve logs a warning, because most requests need no token. Serve
// calls the function listening, if it is not nil, once with the address.
//
// On loopback, Serve rejects requests whose Host is a name other than localhost, with status 403. This prevents DNS
// rebinding: a web page in a local browser could otherwise read answers through a name that resolves to 127.0.0.1.
//
// Serve keeps at most 64 connections open; further connections wait. A request header may take 5 s to arrive and have
// 16 KiB. Sending an answer may take 75 s. Idle connections are closed after a minute. Serve records a point for the
// page once a second, and stores at most 600 points of about 200 bytes.
//
// When ctx ends, Serve ends all recordings. Other pending answers may take 5 s more. All goroutines of Serve have ended
// when it returns. To let clients see that the server drains, end ctx only after the server has ended.
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
	handler, known := mustNewHandlerAndPageState(cfg)
	if isLoopbackAddr(ln.Addr()) {
		handler = rejectHostNamesExceptLocalhost(handler)
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

// serveUntilContextEnds serves until ctx ends, and then waits up to gracePeriod for pending requests. After that, it
// closes their connections and waits for their handlers. No handler runs after it returns.
func serveUntilContextEnds(ctx context.Context, ln net.Listener, handler http.Handler, gracePeriod time.Duration, log *slog.Logger) error {
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
		BaseContext:    func(net.Listener) context.Context { return ctx }, // recordings end with ctx
	}
	ended := make(chan struct{})
	stopped := context.AfterFunc(ctx, func() {
		defer close(ended)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), gracePeriod)
		defer cancel()
		if server.Shutdown(limited) != nil {
			_ = server.Close() // cut off remaining requests
		}
	})
	err := server.Serve(ln)
	if stopped() {
		_ = server.Close() // the listener failed
	} else {
		<-ended
	}
	running.Lock() // waits for the handlers, and rejects later requests because it is never unlocked
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("admin: %w", err)
}

func isLoopbackAddr(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// rejectHostNamesExceptLocalhost rejects requests whose Host is neither an IP address nor localhost.
func rejectHostNamesExceptLocalhost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// An attacker can choose another name. Browsers never send an empty Host.
		if r.Host != "" && !isIPOrLocalhost(r.Host) {
			replyText(w, http.StatusForbidden, fmt.Sprintf("host is %q; expected an IP address or localhost", r.Host))
			return
		}
		next.ServeHTTP(w, r)
	})
}

func isIPOrLocalhost(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	_, err := netip.ParseAddr(host)
	return err == nil || strings.EqualFold(host, "localhost")
}
