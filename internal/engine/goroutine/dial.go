package goroutine

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Limits of queued dial requests and concurrent dials, and the default timeout of a dial.
const (
	maxDialRequests    = 1024
	maxDials           = 512
	defaultDialTimeout = 30 * time.Second
)

// Dial starts to dial the requested connections and does not wait. Each connection gets its own goroutine. If too many
// requests are in progress, Dial returns engine.ErrFull.
func (e *goroutineEngine) Dial(request engine.DialRequest) error {
	if err := request.Validate(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return engine.ErrClosed
	}
	select {
	case e.dialRequests <- struct{}{}:
	default:
		return engine.ErrFull
	}
	e.running.Go(func() {
		defer func() { <-e.dialRequests }()
		engine.RerunAfterGoexitThenExit(func() { e.startDialsOrNotifyStopped(&request) })
	})
	return nil
}

func (e *goroutineEngine) startDialsOrNotifyStopped(request *engine.DialRequest) {
	for request.Count > 0 {
		request.Count--
		select {
		case e.dialSlots <- struct{}{}:
			one := *request
			e.running.Go(func() {
				defer func() { <-e.dialSlots }()
				e.dialOne(one)
			})
		case <-e.stopCtx.Done():
			e.host.NotifyDialFailed(request.Handler, engine.ErrClosed)
		}
	}
}

func (e *goroutineEngine) dialOne(request engine.DialRequest) {
	if !e.admission.AcquireConn() {
		e.host.NotifyDialFailed(request.Handler, engine.ErrFull)
		return
	}
	start := engine.MonotonicNow()
	nc, err := e.connectTo(request)
	if err != nil {
		e.releaseAdmissionAndWakeWaiters()
		if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() && request.Timeout > 0 {
			err = engine.ErrDialTimeout
		}
		if e.stopCtx.Err() != nil {
			err = engine.ErrClosed
		}
		e.host.NotifyDialFailed(request.Handler, err)
		return
	}
	if !e.startConnOrReportFailure(nc, -1, request.Handler, func(c *conn) { c.openConn(start, nil) }) {
		e.releaseAdmissionAndWakeWaiters()
	}
}

func (e *goroutineEngine) connectTo(request engine.DialRequest) (net.Conn, error) {
	options := e.cfg.SocketOptions(true)
	dialer := net.Dialer{Timeout: cmp.Or(request.Timeout, defaultDialTimeout), Control: options.DialControl}
	if request.Path != "" {
		return dialer.DialContext(e.stopCtx, "unix", request.Path)
	}
	if request.Source.IsValid() {
		dialer.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(request.Source, 0))
		dialer.Control = func(network, address string, raw syscall.RawConn) error {
			if err := options.DialControl(network, address, raw); err != nil {
				return err
			}
			return sock.SetBindAddressNoPort(network, address, raw)
		}
	}
	nc, err := dialer.DialContext(e.stopCtx, "tcp", request.Target.String())
	if tcp, ok := nc.(*net.TCPConn); ok && options.KeepNagle {
		_ = tcp.SetNoDelay(false) // after an error, the next read reports that the connection has failed
	}
	return nc, err
}
