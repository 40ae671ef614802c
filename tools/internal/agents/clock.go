package agents

import "time"

// trip is a round trip: when the question left and the answer came by our clock, and when the
// question came and the answer left by the other one.
type trip struct {
	left, came           time.Time
	otherCame, otherLeft time.Time
}

// offset is by how much the other clock is ahead of ours: within uncertainty of that,
// however long either way took.
func (t trip) offset() (offset, uncertainty time.Duration) {
	there, back := t.otherCame.Sub(t.left), t.otherLeft.Sub(t.came)
	around := t.came.Sub(t.left) - t.otherLeft.Sub(t.otherCame)
	return (there + back) / 2, max(around, 0) / 2
}

// compare is the offset by the trip that says it best: the shortest.
func compare(trips []trip) (offset, uncertainty time.Duration) {
	for i, t := range trips {
		if o, u := t.offset(); i == 0 || u < uncertainty {
			offset, uncertainty = o, u
		}
	}
	return offset, uncertainty
}

// ours is a time by the other clock as one by ours.
func ours(nanoseconds int64, offset time.Duration) time.Time {
	return time.Unix(0, nanoseconds).Add(-offset)
}
