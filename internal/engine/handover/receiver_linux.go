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
	mu            sync.Mutex
	totalCredit   int          // credit of all inlets
	withoutCredit []*InChannel // without credit while others have some
}

// InChannel is a channel at its receiver. It is not safe for concurrent use.
type InChannel struct {
	FD                int32
	receiver          *Receiver
	owner             Owner
	credit            int // that has been given and not used
	countedCredit     int // what of it the receiver counts
	unconfirmed       int // connections that are not confirmed
	closedOrExhausted bool
}

// Owner is the loop or engine that an inlet belongs to.
type Owner interface {
	// ReserveConns keeps up to n places for connections free, and returns how many it has kept.
	ReserveConns(n int) int
	// ReleaseConns gives n places back.
	ReleaseConns(n int)
	// ScheduleConfirm has the owner call in.Confirm, unless it has closed in, because others have given
	// places back. It is called from the goroutine of any inlet.
	ScheduleConfirm(in *InChannel)
}

// NewInChannel returns a channel's end. Confirm sends the first message.
func (r *Receiver) NewInChannel(fd int32, owner Owner) *InChannel {
	return &InChannel{FD: fd, receiver: r, owner: owner}
}

// Credit returns for how many connections the inlet keeps places.
func (in *InChannel) Credit() int { return in.credit }

// Confirm tells the sender how many connections have arrived, and gives it credit.
func (in *InChannel) Confirm() {
	r := in.receiver
	r.mu.Lock()
	credit := uint32(0)
	if !in.closedOrExhausted { // or closed
		credit = uint32(in.owner.ReserveConns(maxCredit - in.credit))
	}
	in.credit += int(credit)
	r.updateCredit(in)
	switch {
	case in.credit > 0 || in.closedOrExhausted:
	case r.totalCredit > 0:
		r.withoutCredit = append(r.withoutCredit, in)
	default:
		in.closedOrExhausted, credit = true, noMoreCredit
	}
	if in.unconfirmed > 0 || credit > 0 {
		in.sendConfirmation(credit)
	}
	var others []*InChannel
	if r.totalCredit == 0 {
		others, r.withoutCredit = r.withoutCredit, nil
	}
	r.mu.Unlock()
	scheduleConfirms(others)
}

// updateCredit counts the credit of an inlet, which does not wait any more.
func (r *Receiver) updateCredit(in *InChannel) {
	r.totalCredit += in.credit - in.countedCredit
	in.countedCredit = in.credit
	r.withoutCredit = slices.DeleteFunc(r.withoutCredit, func(w *InChannel) bool { return w == in })
}

func scheduleConfirms(inlets []*InChannel) {
	for _, in := range inlets {
		in.owner.ScheduleConfirm(in)
	}
}

// sendConfirmation sends a message. There is room for as many as connections can be under way. So an error
// is the end of the channel, which Receive returns.
func (in *InChannel) sendConfirmation(credit uint32) {
	p := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(in.unconfirmed)), credit)
	_ = sock.SendRights(in.FD, p, nil)
	in.unconfirmed = 0
}

// ReceiveBatch takes what waits at the channel, about a batch, and calls join for each connection, which
// owns the descriptor and the record then, and for which a place is promised. It reports whether
// Confirm is to be called. The end of the sender is io.EOF. buffer has sock.MaxRightsMessage bytes.
func (in *InChannel) ReceiveBatch(buffer []byte, importConn func(fd int32, r *engine.Record)) (needsConfirm bool, err error) {
	needsConfirm = in.unconfirmed > 0 // a handler has ended the goroutine before they were confirmed
	for limit := in.unconfirmed + MaxBatch; in.unconfirmed < limit; {
		n, fds, errno := sock.ReceiveRights(in.FD, buffer)
		switch {
		case errno == syscall.EAGAIN:
			return needsConfirm, nil
		case errno != 0:
			return needsConfirm, errno
		case n == 0:
			return needsConfirm, io.EOF
		}
		needsConfirm = true
		err = importBatch(slices.Clone(buffer[:n]), fds, in.credit, func(fd int32, r *engine.Record) {
			in.credit--
			in.unconfirmed++
			importConn(fd, r)
		})
		if err != nil {
			return needsConfirm, err
		}
	}
	return needsConfirm, nil
}

// Close gives the credit back. The descriptor stays the caller's.
func (in *InChannel) Close() {
	r := in.receiver
	r.mu.Lock()
	in.owner.ReleaseConns(in.credit)
	in.credit, in.closedOrExhausted = 0, true
	r.updateCredit(in)
	others := r.withoutCredit
	r.withoutCredit = nil
	r.mu.Unlock()
	scheduleConfirms(others)
}
