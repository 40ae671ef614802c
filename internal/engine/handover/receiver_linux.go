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

// CreditDistributor counts the credit of all channels on which an engine imports connections. The credit of a channel
// is the number of connections that the sender may still send on it. A CreditDistributor is safe for concurrent use.
type CreditDistributor struct {
	mu            sync.Mutex
	totalCredit   int              // of all channels
	withoutCredit []*ImportChannel // channels without credit, which wait because others have credit
}

// ImportChannel receives connections that another engine exports. It is not safe for concurrent use.
type ImportChannel struct {
	FD                int32
	receiver          *CreditDistributor
	owner             Owner
	credit            int // granted and not yet used
	countedCredit     int // the part of credit that is included in CreditDistributor.totalCredit
	unconfirmed       int // connections that arrived since the last confirmation
	closedOrExhausted bool
}

// Owner is the loop or engine that owns an ImportChannel.
type Owner interface {
	// ReserveConns reserves capacity for up to n connections. It returns the number reserved.
	ReserveConns(n int) int
	ReleaseConns(n int)
	// ScheduleConfirmArrivals makes the owner call ConfirmArrivalsAndGrantCredit, unless the owner has closed the
	// channel. It may be called on any goroutine, for example when another channel has released capacity.
	ScheduleConfirmArrivals(in *ImportChannel)
}

// NewImportChannel returns an ImportChannel that receives on fd. The caller keeps ownership of fd. To start the import,
// the caller must call ConfirmArrivalsAndGrantCredit.
func (r *CreditDistributor) NewImportChannel(fd int32, owner Owner) *ImportChannel {
	return &ImportChannel{FD: fd, receiver: r, owner: owner}
}

// Credit returns the number of connections that the sender may still send. The owner of the channel has already
// reserved capacity for these connections.
func (in *ImportChannel) Credit() int { return in.credit }

// ConfirmArrivalsAndGrantCredit reserves capacity for more connections. It then sends a message to the sender. The
// message states how many connections have arrived since the previous message, and how many more connections the sender
// may send.
func (in *ImportChannel) ConfirmArrivalsAndGrantCredit() {
	r := in.receiver
	r.mu.Lock()
	credit := uint32(0)
	if !in.closedOrExhausted { // otherwise the channel is closed, or the engine has no capacity
		credit = uint32(in.owner.ReserveConns(maxCredit - in.credit))
	}
	in.credit += int(credit)
	r.recountAndRemoveWaitingLocked(in)
	switch {
	case in.credit > 0 || in.closedOrExhausted:
	case r.totalCredit > 0:
		r.withoutCredit = append(r.withoutCredit, in)
	default:
		in.closedOrExhausted, credit = true, noMoreCredit
	}
	if in.unconfirmed > 0 || credit > 0 {
		in.sendConfirmationLocked(credit)
	}
	var others []*ImportChannel
	if r.totalCredit == 0 {
		others, r.withoutCredit = r.withoutCredit, nil
	}
	r.mu.Unlock()
	scheduleArrivalConfirmations(others)
}

// recountAndRemoveWaitingLocked updates r.totalCredit after in.credit has changed. It also removes in from
// r.withoutCredit, the channels that wait for credit. The caller must hold r.mu.
func (r *CreditDistributor) recountAndRemoveWaitingLocked(in *ImportChannel) {
	r.totalCredit += in.credit - in.countedCredit
	in.countedCredit = in.credit
	r.withoutCredit = slices.DeleteFunc(r.withoutCredit, func(w *ImportChannel) bool { return w == in })
}

func scheduleArrivalConfirmations(channels []*ImportChannel) {
	for _, in := range channels {
		in.owner.ScheduleConfirmArrivals(in)
	}
}

func (in *ImportChannel) sendConfirmationLocked(newCredit uint32) {
	p := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(in.unconfirmed)), newCredit)
	_ = sock.SendFDs(in.FD, p, nil) // ReceiveAndImportBatch reports a failure of the channel
	in.unconfirmed = 0
}

// ReceiveAndImportBatch receives connections and calls importConn for each connection. It returns when no more messages
// are available, or after about MaxBatch connections. importConn takes ownership of fd and r. Each connection uses
// capacity that was reserved with Owner.ReserveConns. If needsConfirm is true, the caller must call
// ConfirmArrivalsAndGrantCredit. After the sender has shut the channel, ReceiveAndImportBatch returns io.EOF. The
// length of buffer must be sock.MaxFDMessageSize.
func (in *ImportChannel) ReceiveAndImportBatch(buffer []byte, importConn func(fd int32, r *engine.Record)) (needsConfirm bool, err error) {
	needsConfirm = in.unconfirmed > 0 // a Goexit may have prevented the confirmation of these connections
	for limit := in.unconfirmed + MaxBatch; in.unconfirmed < limit; {
		n, fds, errno := sock.ReceiveFDs(in.FD, buffer)
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

// ReleaseUnusedReservation releases the capacity that is reserved for connections that have not arrived, and sets the
// channel's credit to 0. It does not close the descriptor.
func (in *ImportChannel) ReleaseUnusedReservation() {
	r := in.receiver
	r.mu.Lock()
	in.owner.ReleaseConns(in.credit)
	in.credit, in.closedOrExhausted = 0, true
	r.recountAndRemoveWaitingLocked(in)
	others := r.withoutCredit
	r.withoutCredit = nil
	r.mu.Unlock()
	scheduleArrivalConfirmations(others)
}
