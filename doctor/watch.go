package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// The bounds of WatchConfig.Interval, and its default.
const (
	MinWatchInterval     = 100 * time.Millisecond
	MaxWatchInterval     = time.Hour
	DefaultWatchInterval = 5 * time.Second
)

// ErrEnded is what Watch returns when the process that it follows has ended.
var ErrEnded = errors.New("doctor: the process that is followed has ended")

// WatchConfig says what Watch follows. With the zero value it is the machine.
type WatchConfig struct {
	// PID is a process whose descriptors and control groups are followed too.
	// Default 0: those that listen at Target, if any do.
	PID int
	// Target is an address and port. Where it is this machine's and somebody
	// listens there, the processes that do are followed, and the queue of
	// connections that wait to be accepted. In any case the ports are followed
	// that connections from this machine to it hold. Default: none.
	Target netip.AddrPort
	// Interval is the time between two readings, MinWatchInterval to
	// MaxWatchInterval. Default DefaultWatchInterval.
	Interval time.Duration
}

// Validate says what is wrong with the configuration.
func (c *WatchConfig) Validate() error {
	if c.PID < 0 {
		return fmt.Errorf("doctor: WatchConfig.PID is %d; expected a process, or 0 for none", c.PID)
	}
	if c.Target != (netip.AddrPort{}) && (!c.Target.Addr().IsValid() || c.Target.Port() == 0) {
		return fmt.Errorf("doctor: WatchConfig.Target is %s; expected an address and a port", c.Target)
	}
	if c.Interval != 0 && (c.Interval < MinWatchInterval || c.Interval > MaxWatchInterval) {
		return fmt.Errorf("doctor: WatchConfig.Interval is %v; expected %v to %v", c.Interval, MinWatchInterval, MaxWatchInterval)
	}
	return nil
}

// Watch follows the machine, and a live server or client on it, until ctx ends:
// then it returns nil. It calls told with a Reading at once and after each interval,
// on the caller's goroutine; while told runs there are no readings.
//
// A Reading takes what Reading.Took says: a few milliseconds on a machine with a
// million connections, none of which is looked at, but for the ports of
// WatchConfig.Target: these are counted less often, so that it takes one
// hundredth of the time at most, and not at all on a machine with more than
// 262,144 TCP sockets. Rates are of the last minute, so at most 600 readings are
// kept.
//
// It fails if the configuration is wrong, if the process can't be looked at or is in
// another network namespace, and with ErrEnded after the last Reading of a process
// that has ended; processes that were found by Target are looked for anew instead.
func Watch(ctx context.Context, cfg WatchConfig, told func(Reading)) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if cfg.Interval == 0 {
		cfg.Interval = DefaultWatchInterval
	}
	w, err := newWatcher(cfg)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(cfg.Interval)
	defer ticker.Stop()
	var o outlook
	for {
		s, err := w.sample(time.Now())
		if err != nil && !errors.Is(err, ErrEnded) {
			return err
		}
		r := o.next(s)
		r.Took = time.Since(s.at)
		told(r)
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}
