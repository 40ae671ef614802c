package engine

import (
	"math"
	"time"
)

// This file passes input to the handler and buffers unused input.

// OnRead handles bytes that were received from the transport. p is valid only during the call.
func (c *Conn) OnRead(p []byte) {
	n := c.runtime.Counters.Add(Reads, 1)
	c.runtime.Counters.Add(BytesIn, int64(len(p)))
	if sample := n%timingSampleRate == 0; (sample || c.runtime.TimeAllCalls) && !c.runtime.OnWorkers {
		start := c.runtime.Now()
		c.runtime.SetClock(start)
		c.feedLayerOrHandlerUnlessClosing(p)
		end := c.runtime.Now()
		c.runtime.SetClock(end)
		c.runtime.recordTimeAndExtendTimeouts(c, end-start, sample)
		return
	}
	c.feedLayerOrHandlerUnlessClosing(p)
}

func (c *Conn) feedLayerOrHandlerUnlessClosing(p []byte) {
	switch {
	case c.is(closing | failed):
		// Lingering: input is discarded.
	case c.layer() != nil:
		c.feedLayer(p)
	default:
		c.OnPlaintext(p)
	}
	if c.is(finalReadPending) {
		c.clearFinalReadUnlessNeeded()
	}
	c.startPendingLayerAndUpdatePause()
}

// OnPlaintext handles input that the layer has decoded. Without a layer, it handles the bytes received from the
// transport. p is valid only during the call. Input resets the idle timeout only when it reaches OnPlaintext. For
// example, an incomplete TLS record does not reset the timeout.
func (c *Conn) OnPlaintext(p []byte) {
	if c.extra != nil {
		c.extra.layerPartialSince = 0
	}
	c.lastHeard = c.runtime.coarseNow()
	c.state &^= neverHeard | unansweredMask
	if c.is(closing|failed|relayed) || c.runtime.OnWorkers || c.in != nil {
		c.relayFeedOrBufferInput(p)
	} else if rest := c.passInputToReceivedOrShed(p, nil); len(rest) > 0 && !c.is(closing|failed) {
		c.bufferUnusedInput(rest)
	}
	if c.mayHaveReadRate() {
		c.useAllowanceAndPauseIfExceeded(len(p), 0)
	}
}

func (c *Conn) relayFeedOrBufferInput(p []byte) {
	switch {
	case c.is(closing | failed):
	case c.is(relayed):
		if c.in != nil {
			c.bufferUnusedInput(p)
		} else {
			c.forwardToPartner(p)
		}
	case c.runtime.OnWorkers:
		c.bufferUnusedInput(p)
		c.state |= inputHeld
	default:
		c.runtime.appendToInputBuffer(c.in, p)
		c.feedOrShedBuffered(nil)
	}
}

func (c *Conn) bufferUnusedInput(p []byte) {
	if c.in == nil {
		c.in = c.runtime.getOrNewCountedBuffer(len(p))
	}
	c.runtime.appendToInputBuffer(c.in, p)
}

// MakeDeferredHandlerCalls makes all handler calls that are pending. The order of the calls is Opened, Missed, Drained,
// Draining, Received with the buffered input, and Ended.
func (c *Conn) MakeDeferredHandlerCalls() {
	c.state &^= yielded
	if c.is(relayed) {
		c.state &^= drainedPending | drainingPending
		c.forwardBufferedInputAndEOF()
		c.startPendingLayerAndUpdatePause()
		return
	}
	if c.is(openPending) {
		c.state &^= openPending
		c.callOpened()
	}
	if c.is(drainedPending) {
		c.state &^= drainedPending
		c.callPendingMissedAndDrained()
	}
	if c.is(drainingPending) && !c.is(closing|failed) {
		c.callDraining()
	}
	c.state &^= drainingPending
	if c.is(inputHeld) {
		c.feedOrShedBuffered(nil)
	}
	if c.is(peerEOF) && !c.is(eofDelivered|inputHeld|readPaused|closing|failed) && !c.isMessageRateExceeded() {
		c.callEndedWithUnusedInput()
	}
	c.startPendingLayerAndUpdatePause()
}

func (c *Conn) callEndedWithUnusedInput() {
	var rest []byte
	if c.in != nil {
		rest = c.in.Bytes()
	}
	used := c.callEnded(rest)
	if used > 0 && used < len(rest) && c.updateAndReportInputPaused() && !c.is(closing|failed) {
		c.in.discardFrontBytes(used)
		c.refusedBytes = 0
		c.state |= inputHeld
		return
	}
	c.state |= eofDelivered
	c.dropInput()
}

func (c *Conn) feedOrShedBuffered(shedReason error) {
	c.state &^= inputHeld
	if c.in == nil {
		return
	}
	rest := c.passInputToReceivedOrShed(c.in.Bytes(), shedReason)
	if c.is(closing | failed) {
		c.dropInput()
		return
	}
	if used := c.in.Len() - len(rest); used > 0 {
		c.in.discardFrontBytes(used)
		c.in.waitingSince = c.runtime.Clock() // a new message begins
	}
	if c.in.Len() == 0 {
		c.dropInput()
	}
}

// passInputToReceivedOrShed calls Received with the input or, if shedReason is not nil, calls Shed. It repeats the call
// until the input is used, the handler needs more input, or the handler is paused. It returns the unused input.
func (c *Conn) passInputToReceivedOrShed(in []byte, shedReason error) (unused []byte) {
	for len(in) > 0 && !c.is(closing|failed) {
		if c.updateAndReportInputPaused() {
			c.state |= inputHeld
			break
		}
		part := in[:min(len(in), int(c.refusedBytes)+ReadSize)]
		used := c.callReceivedOrShed(part, shedReason)
		switch {
		case used < 0 || used > len(part):
			c.abortForInvalidUsedCount(used, len(part), shedReason)
		case used > 0:
			in, c.refusedBytes = in[used:], 0
		case c.updateAndReportInputPaused():
		case len(part) >= c.runtime.Limits.MaxMessage:
			c.CloseMessageTooLong(uint64(len(part)))
		default:
			c.refusedBytes = uint32(len(part))
			if len(part) == len(in) {
				return in
			}
		}
	}
	return in
}

// updateAndReportInputPaused pauses reading if too much output is unsent. It then reports whether the handler must get
// no input at the moment, for this reason or another.
func (c *Conn) updateAndReportInputPaused() bool {
	return c.pauseReadingAtHighWater() || c.is(readPaused|yielded) || c.isMessageRateExceeded()
}

// pauseReadingAtHighWater pauses reading if more than HighWater bytes are unsent. It reports whether reading is paused
// because of unsent output.
func (c *Conn) pauseReadingAtHighWater() (isPaused bool) {
	if !c.is(overHighWater|relayed) && c.UnsentAndDroppedBytes()+c.directSentInEvent() > c.runtime.currentHighWater() {
		c.state |= overHighWater
		c.runtime.Counters.Add(Paused, 1)
	}
	return c.is(overHighWater) && !c.runtime.IgnoreHighWater && !c.ReadsDespiteUnsentOutput()
}

// resumeAndScheduleDrainedIfLow is called after output has been sent. If reading was paused because of unsent output
// and at most LowWater bytes are still unsent, it ends the pause and schedules a call of the handler's Drained. It also
// resumes a relay partner that waits, and schedules a call of Missed if messages were missed.
func (c *Conn) resumeAndScheduleDrainedIfLow() {
	if c.remotePartner() != nil {
		c.reopenFastPathAndResumePartner()
	}
	if c.extra != nil && c.extra.droppedMessages > c.extra.reportedMissed {
		c.scheduleMissedIfLow()
	}
	if !c.is(overHighWater) || c.UnsentAndDroppedBytes() > c.runtime.currentUnsentLowWater() {
		return
	}
	c.endHighWaterPause()
	if c.is(relayed) {
		c.resumeLocalPartnerReading()
		return
	}
	if (c.callbacks().Drained != nil || c.is(ownHandler)) && !c.is(closing|failed) {
		c.state |= drainedPending
		if c.hasRare() {
			c.extra.onlyMissedPending = false
		}
	}
}

// scheduleMissedIfLow schedules the handler's Missed if at most LowWater bytes are unsent. c must have a rareState.
func (c *Conn) scheduleMissedIfLow() {
	if c.callbacks().Missed == nil && !c.is(ownHandler) || c.is(drainedPending|relayed|closing|failed) || c.UnsentAndDroppedBytes() > c.runtime.Limits.LowWater {
		return
	}
	c.state |= drainedPending
	c.extra.onlyMissedPending = true
}

func (c *Conn) endHighWaterPause() {
	c.state &^= overHighWater
	c.runtime.Counters.Add(Paused, -1)
	c.restartPeerTimeouts()
}

func (c *Conn) restartPeerTimeouts() {
	c.lastHeard = c.runtime.coarseNow()
	if c.in != nil {
		c.in.waitingSince = c.runtime.Clock()
	}
	if c.extra != nil && c.extra.handlerPartialSince > 0 {
		c.extra.handlerPartialSince = c.runtime.Clock()
	}
}

// The rest of this file limits the rates at which connections are read: Limits.ReadRate and MessageRate, or
// Conn.SetReadRate.
//
// A connection that exceeds its byte rate is not read. If it exceeds its message rate, the handler also gets none of
// the input that has been read. In both cases, the connection waits as after SetReading(false), until CheckTimeouts
// finds that the rate permits more. Input of relays and layers' handshakes is not limited.

// readRate is the state of a connection's rate limits for input. Only the connection's owner accesses it.
type readRate struct {
	isOwn           bool // set by SetReadRate
	bytes, messages allowance
}

// allowance is a token bucket for bytes or messages. It permits a burst of one second's amount.
type allowance struct {
	perSecond   int           // 0 means no limit
	fullAt      time.Duration // when the allowance will be full again
	pausedUntil time.Duration // when the pause of the connection ends; 0 if it is not paused
}

// use subtracts n bytes or messages from the allowance. If the allowance is then used up, the connection is paused.
// pauseStarted reports whether the pause has begun with this call.
func (a *allowance) use(n int, now time.Duration) (pauseStarted bool) {
	if a.perSecond == 0 || n == 0 {
		return false
	}
	rate := time.Duration(a.perSecond)
	a.fullAt = max(a.fullAt, now) + time.Duration(n)*time.Second/rate
	nextUnit := a.fullAt - time.Second + (time.Second+rate-1)/rate
	if nextUnit <= now {
		return false
	}
	pauseStarted = a.pausedUntil == 0
	a.pausedUntil = nextUnit
	return pauseStarted
}

func (a *allowance) endPauseIfDue(now time.Duration) (ended bool) {
	if ended = a.pausedUntil != 0 && now >= a.pausedUntil; ended {
		a.pausedUntil = 0
	}
	return ended
}

// mayHaveReadRate is a quick check for rate limits. If it returns false, the connection has none.
func (c *Conn) mayHaveReadRate() bool {
	return c.extra != nil || c.runtime.Limits.ReadRate|c.runtime.Limits.MessageRate != 0
}

func (c *Conn) ensureReadRateIfLimited() *readRate {
	l := &c.runtime.Limits
	switch {
	case c.extra != nil && c.extra.readRate != nil:
		return c.extra.readRate
	case l.ReadRate|l.MessageRate == 0:
		return nil
	}
	r := &readRate{bytes: allowance{perSecond: l.ReadRate}, messages: allowance{perSecond: l.MessageRate}}
	c.ensureRare().readRate = r
	return r
}

// SetReadRate sets the rate limits of this connection, which replace Limits.ReadRate and Limits.MessageRate. 0 means no
// limit. After the call, the connection may at once use the bytes and messages of one second.
func (c *Conn) SetReadRate(bytesPerSecond, messagesPerSecond int) {
	if c.is(open) && !c.is(closing) {
		c.ensureRare().readRate = &readRate{true, allowance{perSecond: bytesPerSecond}, allowance{perSecond: messagesPerSecond}}
	}
}

func (c *Conn) useAllowanceAndPauseIfExceeded(bytes, messages int) {
	r := c.ensureReadRateIfLimited()
	if r == nil || c.is(relayed|closing|failed) {
		return
	}
	now := c.runtime.Now()
	pauses := r.bytes.use(bytes, now)
	if r.messages.use(messages, now) || pauses {
		c.runtime.Counters.Add(ReadLimited, 1)
	}
}

// AllowedMessages returns the number of messages that the handler may use now under the message rate limit. The result
// is at least 1. Without a message rate limit, the result is math.MaxInt.
func (c *Conn) AllowedMessages() int {
	r := c.ensureReadRateIfLimited()
	if r == nil || r.messages.perSecond == 0 {
		return math.MaxInt
	}
	left := time.Second - max(r.messages.fullAt-c.runtime.Now(), 0)
	return max(int(left*time.Duration(r.messages.perSecond)/time.Second), 1)
}

func (c *Conn) isReadRateExceeded() bool {
	return c.extra != nil && c.extra.readRate != nil && c.extra.readRate.bytes.pausedUntil|c.extra.readRate.messages.pausedUntil != 0 && !c.is(relayed)
}

// isMessageRateExceeded reports whether the message rate limit keeps input from the handler.
func (c *Conn) isMessageRateExceeded() bool {
	return c.extra != nil && c.extra.readRate != nil && c.extra.readRate.messages.pausedUntil != 0 && !c.is(relayed)
}

func (c *Conn) resumeReadingIfRateAllows(now time.Duration) (resumed bool) {
	if c.extra == nil || c.extra.readRate == nil {
		return false
	}
	r := c.extra.readRate
	resumed = r.bytes.endPauseIfDue(now)
	if r.messages.endPauseIfDue(now) || resumed {
		c.restartPeerTimeouts()
		return true
	}
	if !r.isOwn && max(r.bytes.fullAt, r.messages.fullAt) <= now {
		c.extra.readRate = nil
		c.freeExtraIfZero()
	}
	return false
}
