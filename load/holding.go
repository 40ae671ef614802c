package load

import (
	"time"

	"github.com/myriad-go/myriad/internal/engine"
)

// holdsOnly says whether connections are only held open: then they have no links,
// so that a million of them costs the generator no more than the engine's entries.
func (t *traffic) holdsOnly() bool {
	return t.mode == holding && t.cfg.Lifetime == 0 && t.cfg.ReceiveLimit == 0
}

// hold counts a connection that is only held. Its value is its shard.
func (t *traffic) hold(c *engine.Conn, s *shard, now, began time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shut {
		c.Kill(errLate)
		return
	}
	s.sum.opened++
	s.sum.lastOpened = now
	s.times.connect.record(now-began, 1)
	c.SetValue(s)
}

// receivedElse takes what arrives on a connection that has no link.
func (t *traffic) receivedElse(c *engine.Conn, in []byte) int {
	switch v := c.Value().(type) {
	case *upgrade:
		return t.upgrade(c, v, in)
	case *shard:
		v.mu.Lock()
		defer v.mu.Unlock()
		v.add(tally{bytesIn: int64(len(in))}, t.measured(t.now()))
	}
	return len(in)
}

// closedElse counts the end of a connection that has no link.
func (t *traffic) closedElse(c *engine.Conn, why error) {
	switch v := c.Value().(type) {
	case *upgrade:
		t.notUpgraded(v, why)
	case *shard:
		v.mu.Lock()
		v.sum.closed++
		v.mu.Unlock()
		if !t.closing.Load() {
			t.faults.gone(why)
		}
	}
}
