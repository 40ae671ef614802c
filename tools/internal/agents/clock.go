package agents

import "time"

// trip is a round trip: when the request left and the reply came by our clock, and when the request came and the
// reply left by the other one.
type trip struct {
	left, came           time.Time
	otherCame, otherLeft time.Time
}

// offset returns by how much the other clock is ahead of ours. The error is at most uncertainty, however the trip
// divides into its two ways.
func (t trip) offset() (offset, uncertainty time.Duration) {
	there, back := t.otherCame.Sub(t.left), t.otherLeft.Sub(t.came)
	around := t.came.Sub(t.left) - t.otherLeft.Sub(t.otherCame)
	return (there + back) / 2, max(around, 0) / 2
}

// compare returns the offset of the shortest trip.
func compare(trips []trip) (offset, uncertainty time.Duration) {
	for i, t := range trips {
		if o, u := t.offset(); i == 0 || u < uncertainty {
			offset, uncertainty = o, u
		}
	}
	return offset, uncertainty
}

// ours converts a time by the other clock to ours.
func ours(nanoseconds int64, offset time.Duration) time.Time {
	return time.Unix(0, nanoseconds).Add(-offset)
}
