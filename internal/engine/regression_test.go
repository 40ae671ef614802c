package engine

import (
	"errors"
	"testing"
	"time"
)

// Each test here reproduces a failure that the simulation has found.

func (o *mailboxOwner) deliverAll() {
	for o.box.HasRequests() {
		o.takeByConn()
	}
}

func (o *mailboxOwner) openRelayPair(t *testing.T) (a, b *Conn) {
	a, b = o.open(1), o.open(2)
	wantErr(t, "Relay", a.RequestRelayWith(b.Ref()), nil)
	return a, b
}

func wantCloseReason(t *testing.T, what string, c *Conn, why error) {
	t.Helper()
	if !c.is(closing) || !errors.Is(c.CloseReason(), why) {
		t.Errorf("%s: closing is %v, want that, because of %v; state %b", what, c.is(closing), why, c.state)
	}
}

// Relayed data counts as activity of both peers.
func TestFoundRelayIdle(t *testing.T) {
	o := newMailboxOwner(10, 100)
	o.host.Limits.IdleTimeout = time.Minute
	a, b := o.openRelayPair(t)
	o.deliverAll()
	o.host.SetClock(2 * time.Minute)
	a.OnRead([]byte("news"))
	o.deliverAll()
	if why, _ := b.exceededTimeLimit(2*time.Minute + time.Second); why != nil {
		t.Errorf("the receiving side of a relay is closed a second after its last byte: %v", why)
	}
}

// A relay request to a connection that is in another relay must not send data into that.
func TestFoundRelayWithRelayed(t *testing.T) {
	o := newMailboxOwner(10, 100)
	a, b := o.openRelayPair(t)
	o.deliverAll()
	c := o.open(3)
	wantErr(t, "Relay", c.RequestRelayWith(b.Ref()), nil)
	c.OnRead([]byte("foreign"))
	o.deliverAll()
	if n := b.UnsentAndDroppedBytes(); n != 0 {
		t.Errorf("%d bytes came into another one's relay", n)
	}
	wantCloseReason(t, "one that was late", c, ErrBadUse)
	a.OnRead([]byte("own"))
	if o.deliverAll(); b.UnsentAndDroppedBytes() != 3 {
		t.Errorf("%d bytes came by the relay, want 3", b.UnsentAndDroppedBytes())
	}
}

// Timers and deadlines must work long after EOF while reading is off.
func TestFoundTimerAfterEnd(t *testing.T) {
	for _, want := range []string{"timer", "deadline"} {
		o, rang := newMailboxOwner(10, 100), false
		o.host.Timer = func(*Conn) { rang = true }
		o.host.Limits.CloseTimeout = time.Second
		c := o.open(1)
		c.SetReading(false)
		c.OnEOF()
		if want == "timer" {
			c.SetTimer(time.Minute)
		} else {
			c.SetDeadline(time.Minute)
		}
		if c.CheckTimeouts(time.Minute); rang != (want == "timer") || c.is(closing) != (want == "deadline") {
			t.Errorf("%s: Timer was called: %v, closing: %v", want, rang, c.is(closing))
		}
	}
}

// Requests deferred for a layer must be limited and must not bypass it.
func TestFoundMuchMailForLayer(t *testing.T) {
	o := newMailboxOwner(100, 100)
	o.host.Limits.MaxMail = 1
	c := o.open(1)
	c.ensureRare().pendingLayer = &pendingLayer{}
	for range 3 {
		wantErr(t, "Send", c.Ref().Send([]byte("secret")), nil)
	}
	o.deliverAll()
	wantCloseReason(t, "with more mail than is kept", c, ErrFull)
	if n := c.UnsentAndDroppedBytes(); n != 0 {
		t.Errorf("%d bytes went past the layer", n)
	}
}

// A handshake must count as an answer to earlier heartbeats.
func TestFoundHeartbeatBeforeLayer(t *testing.T) {
	o := newMailboxOwner(10, 100)
	c := o.open(1)
	c.state += oneUnanswered
	c.ensureRare().pendingLayer = &pendingLayer{}
	c.state |= handshaking
	if c.OnHandshakeDone(); c.unansweredHeartbeats() != 0 {
		t.Errorf("%d heartbeats count as unanswered behind a handshake", c.unansweredHeartbeats())
	}
}
