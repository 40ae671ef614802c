package handover

import (
	"cmp"
	"encoding/binary"
	"io"
	"slices"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/sock"
)

// Sender hands the connections of one owner over. While it is [Sender.Asking] the owner asks
// connections to leave, and sends those that are at rest. It calls [Sender.Receive] when a channel
// is readable, and [Sender.Step] afterwards. A Sender is not safe for concurrent use.
type Sender struct {
	Channels    []*OutChannel
	nextChannel int // the channel by which the next batch goes
	stage       senderStage
	exported    int
	err         error
}

// OutChannel is a channel at its sender.
type OutChannel struct {
	FD          int32
	Ended       bool // by the receiver, after the sender has shut it
	credit      int
	unconfirmed int  // connections that have gone and are not confirmed
	exhausted   bool // no more credit will come
}

type senderStage uint8

const (
	exporting     senderStage = iota // connections may go
	exportStopped                    // no more go
	channelsShut                     // and the channels are shut
	aborted                          // nothing more will be known
)

// NewSender returns a sender by channels, whose descriptors stay the caller's.
func NewSender(fds []int32) Sender {
	s := Sender{}
	for _, fd := range fds {
		s.Channels = append(s.Channels, &OutChannel{FD: fd})
	}
	return s
}

// IsExporting reports whether connections may go.
func (s *Sender) IsExporting() bool { return s.stage == exporting }

// Stop has no more connections go.
func (s *Sender) Stop() { s.stage = max(s.stage, exportStopped) }

// Fail stops for an error, the first of which counts.
func (s *Sender) Fail(err error) {
	s.err = cmp.Or(s.err, err)
	s.Stop()
}

// Abort ends the hand-over at once: of connections that are not confirmed nothing will be known.
func (s *Sender) Abort(err error) {
	s.Fail(err)
	s.stage = aborted
}

// TotalCredit returns how many connections may go.
func (s *Sender) TotalCredit() (sum int) {
	for _, o := range s.Channels {
		sum += o.credit
	}
	return sum
}

// Result returns what has become of the connections, and the first error.
func (s *Sender) Result() (engine.ExportResult, error) {
	result := engine.ExportResult{Exported: s.exported}
	for _, o := range s.Channels {
		result.Unconfirmed += o.unconfirmed
	}
	return result, s.err
}

// AdvanceStage does what the answers of the receivers allow. It reports whether the hand-over is over:
// all channels have ended in order, or one has not.
func (s *Sender) AdvanceStage() (over bool) {
	unconfirmed := func(o *OutChannel) bool { return o.unconfirmed > 0 }
	hasRoom := func(o *OutChannel) bool { return !o.exhausted || o.credit > 0 }
	open := func(o *OutChannel) bool { return !o.Ended }
	if s.stage == aborted || slices.ContainsFunc(s.Channels, unconfirmed) {
		return s.stage == aborted
	}
	if !slices.ContainsFunc(s.Channels, hasRoom) {
		s.Stop()
	}
	if s.stage == exportStopped {
		s.stage = channelsShut
		for _, o := range s.Channels {
			_ = sock.ShutWrite(o.FD) // an error is the other side's end, which is what is waited for
		}
	}
	return s.stage == channelsShut && !slices.ContainsFunc(s.Channels, open)
}

// ReceiveConfirmations reads what the receiver has sent by a channel. An error has aborted the hand-over.
func (s *Sender) ReceiveConfirmations(o *OutChannel) error {
	for !o.Ended {
		var p [8]byte
		n, errno := sock.Recv(o.FD, p[:])
		switch {
		case errno == syscall.EAGAIN:
			return nil
		case errno == syscall.ECONNRESET: // what was sent before, and the end, come after it
		case errno == 0 && n == len(p):
			o.unconfirmed -= int(binary.BigEndian.Uint32(p[:]))
			if more := binary.BigEndian.Uint32(p[4:]); more == noMoreCredit {
				o.exhausted = true
			} else {
				o.credit += int(min(more, maxCredit))
			}
		case errno == 0 && n == 0 && s.stage == channelsShut:
			o.Ended = true
		case errno == 0:
			s.Abort(wrapTransferError(io.ErrUnexpectedEOF))
			return s.err
		default:
			s.Abort(wrapTransferError(errno))
			return s.err
		}
	}
	return nil
}

// NextChannelWithCredit returns a channel with credit, and its credit; nil if there is none. Channels take turns,
// so that each receiver gets its share.
func (s *Sender) NextChannelWithCredit() (o *OutChannel, credit int) {
	for range s.Channels {
		o = s.Channels[s.nextChannel%len(s.Channels)]
		if s.nextChannel++; o.credit > 0 {
			return o, o.credit
		}
	}
	return nil, 0
}

// SendBatch sends a batch, at most as many connections as the channel has credit for. It reports false
// if the batch may fit later, or if it has stopped the hand-over for an error.
func (s *Sender) SendBatch(o *OutChannel, records []byte, fds []int) (sent bool) {
	errno, err := sendBatch(o.FD, records, fds)
	switch {
	case err == nil && errno == 0:
		o.credit -= len(fds)
		o.unconfirmed += len(fds)
		s.exported += len(fds)
		return true
	case err != nil:
		s.Fail(wrapTransferError(err))
	case errno != syscall.EAGAIN && errno != syscall.ETOOMANYREFS && errno != syscall.ENOBUFS:
		s.Fail(wrapTransferError(errno))
	}
	return false
}

func sendBatch(channel int32, records []byte, fds []int) (syscall.Errno, error) {
	head := binary.AppendUvarint([]byte{recordsInline}, uint64(len(fds)))
	if len(head)+len(records) <= sock.MaxRightsMessage {
		return sock.SendRights(channel, append(head, records...), fds), nil
	}
	head[0] = recordsInFile
	file, err := sock.MemoryFile(records)
	if err != nil {
		return 0, err
	}
	defer sock.Close(file)
	return sock.SendRights(channel, head, append([]int{int(file)}, fds...)), nil
}
