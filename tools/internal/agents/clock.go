package agents

import "time"

type roundTrip struct {
	sent, received         time.Time
	peerReceived, peerSent time.Time
}

// clockOffset returns how far the peer's clock is ahead of the local one, with an error of at most uncertainty.
func (t roundTrip) clockOffset() (offset, uncertainty time.Duration) {
	there, back := t.peerReceived.Sub(t.sent), t.peerSent.Sub(t.received)
	around := t.received.Sub(t.sent) - t.peerSent.Sub(t.peerReceived)
	return (there + back) / 2, max(around, 0) / 2
}

func mostCertainOffset(trips []roundTrip) (offset, uncertainty time.Duration) {
	for i, t := range trips {
		if o, u := t.clockOffset(); i == 0 || u < uncertainty {
			offset, uncertainty = o, u
		}
	}
	return offset, uncertainty
}

func peerTimeToLocal(peerUnixNano int64, peerAhead time.Duration) time.Time {
	return time.Unix(0, peerUnixNano).Add(-peerAhead)
}
