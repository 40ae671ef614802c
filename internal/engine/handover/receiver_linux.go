package handover

import (
	"encoding/binary"
	"io"
	"slices"
	"sync"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Receiver is what the channels of an engine share that takes connections over. Its lock guards
// who has credit.
type Receiver struct {
	mu      sync.Mutex
	granted int      // credit of all inlets
	waiting []*Inlet // without credit while others have some
}

// Inlet is a channel at its receiver. It is not safe for concurrent use.
type Inlet struct {
	FD       int32
	receiver *Receiver
	owner    Owner
	credit   int // that has been given and not used
	granted  int // what of it the receiver counts
	arrived  int // connections that are not confirmed
	full     bool
}

// Owner is the loop or engine that an inlet belongs to.
type Owner interface {
	// Promise keeps up to n places for connections free, and returns how many it has kept.
	Promise(n int) int
	// Unpromise gives n places back.
	Unpromise(n int)
	// ConfirmLater has the owner call in.Confirm, unless it has closed in, because others have given
	// places back. It is called from the goroutine of any inlet.
	ConfirmLater(in *Inlet)
}

// NewInlet returns a channel's end. Confirm sends the first message.
func (r *Receiver) NewInlet(fd int32, owner Owner) *Inlet {
	return &Inlet{FD: fd, receiver: r, owner: owner}
}

// Credit returns for how many connections the inlet keeps places.
func (in *Inlet) Credit() int { return in.credit }

// Confirm tells the sender how many connections have arrived, and gives it credit.
func (in *Inlet) Confirm() {
	r := in.receiver
	r.mu.Lock()
	more := uint32(0)
	if !in.full { // or closed
		more = uint32(in.owner.Promise(maxCredit - in.credit))
	}
	in.credit += int(more)
	r.count(in)
	switch {
	case in.credit > 0 || in.full:
	case r.granted > 0:
		r.waiting = append(r.waiting, in)
	default:
		in.full, more = true, noRoom
	}
	if in.arrived > 0 || more > 0 {
		in.send(more)
	}
	var others []*Inlet
	if r.granted == 0 {
		others, r.waiting = r.waiting, nil
	}
	r.mu.Unlock()
	confirmLater(others)
}

// count counts the credit of an inlet, which does not wait any more.
func (r *Receiver) count(in *Inlet) {
	r.granted += in.credit - in.granted
	in.granted = in.credit
	r.waiting = slices.DeleteFunc(r.waiting, func(w *Inlet) bool { return w == in })
}

func confirmLater(inlets []*Inlet) {
	for _, in := range inlets {
		in.owner.ConfirmLater(in)
	}
}

// send sends a message. There is room for as many as connections can be under way. So an error
// is the end of the channel, which Receive returns.
func (in *Inlet) send(more uint32) {
	p := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(in.arrived)), more)
	_ = sock.SendFDs(in.FD, p, nil)
	in.arrived = 0
}

// Receive takes what waits at the channel, about a batch, and calls join for each connection, which
// owns the descriptor and the record then, and for which a place is promised. It reports whether
// Confirm is to be called. The end of the sender is io.EOF. buffer has sock.MaxRightsMessage bytes.
func (in *Inlet) Receive(buffer []byte, join func(fd int32, r *engine.Record)) (some bool, err error) {
	some = in.arrived > 0 // a handler has ended the goroutine before they were confirmed
	for limit := in.arrived + MaxBatch; in.arrived < limit; {
		n, fds, errno := sock.ReceiveFDs(in.FD, buffer)
		switch {
		case errno == syscall.EAGAIN:
			return some, nil
		case errno != 0:
			return some, errno
		case n == 0:
			return some, io.EOF
		}
		some = true
		err = readBatch(slices.Clone(buffer[:n]), fds, in.credit, func(fd int32, r *engine.Record) {
			in.credit--
			in.arrived++
			join(fd, r)
		})
		if err != nil {
			return some, err
		}
	}
	return some, nil
}

// Close gives the credit back. The descriptor stays the caller's.
func (in *Inlet) Close() {
	r := in.receiver
	r.mu.Lock()
	in.owner.Unpromise(in.credit)
	in.credit, in.full = 0, true
	r.count(in)
	others := r.waiting
	r.waiting = nil
	r.mu.Unlock()
	confirmLater(others)
}
