package agents

import "time"

// roundTrip is a round trip: when the request left and the reply came by our clock, and when the request came and the
// reply left by the other one.
type roundTrip struct {
	sent, received         time.Time
	peerReceived, peerSent time.Time
}

// clockOffset returns by how much the other clock is ahead of ours. The error is at most uncertainty, however the trip
// divides into its two ways.
func (t roundTrip) clockOffset() (offset, uncertainty time.Duration) {
	there, back := t.peerReceived.Sub(t.sent), t.peerSent.Sub(t.received)
	around := t.received.Sub(t.sent) - t.peerSent.Sub(t.peerReceived)
	return (there + back) / 2, max(around, 0) / 2
}

// bestOffset returns the offset of the shortest trip.
func bestOffset(trips []roundTrip) (offset, uncertainty time.Duration) {
	for i, t := range trips {
		if o, u := t.clockOffset(); i == 0 || u < uncertainty {
			offset, uncertainty = o, u
		}
	}
	return offset, uncertainty
}

// toLocalTime converts a time by the other clock to ours.
func toLocalTime(nanoseconds int64, offset time.Duration) time.Time {
	return time.Unix(0, nanoseconds).Add(-offset)
}
