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

// ExportSender sends the connections of one owner, a loop or an engine, to another engine. While
// [ExportSender.IsExporting] returns true, the owner sends connections with [ExportSender.TrySendBatchOrFail]. When a
// channel becomes readable, the owner calls [ExportSender.ReceiveConfirmationsOrAbortExport] and then
// [ExportSender.ShutChannelsWhenConfirmed]. An ExportSender is not safe for concurrent use.
type ExportSender struct {
	Channels    []*ExportChannel
	nextChannel int // index of the channel for the next batch
	stage       senderStage
	exported    int
	err         error
}

type ExportChannel struct {
	FD          int32
	Ended       bool // the sender has shut the channel, and the receiver has closed it
	credit      int
	unconfirmed int  // connections sent and not confirmed
	exhausted   bool // no more credit will follow
}

type senderStage uint8

const (
	exporting     senderStage = iota
	exportStopped             // no more connections are sent
	channelsShut
	aborted // it stays unknown whether unconfirmed connections have arrived
)

// NewSender returns an ExportSender that sends on channelFDs. The caller keeps ownership of these descriptors.
func NewSender(channelFDs []int32) ExportSender {
	s := ExportSender{}
	for _, fd := range channelFDs {
		s.Channels = append(s.Channels, &ExportChannel{FD: fd})
	}
	return s
}

func (s *ExportSender) IsExporting() bool { return s.stage == exporting }

// Stop ends the export. The owner sends no more connections, but still receives confirmations.
func (s *ExportSender) Stop() { s.stage = max(s.stage, exportStopped) }

// Fail ends the export like Stop and records err. Result returns the first recorded error.
func (s *ExportSender) Fail(err error) {
	s.err = cmp.Or(s.err, err)
	s.Stop()
}

// Abort ends the export immediately and records err. Each unconfirmed connection may or may not have arrived.
func (s *ExportSender) Abort(err error) {
	s.Fail(err)
	s.stage = aborted
}

// TotalCredit returns the number of connections that may now be sent, summed over all channels.
func (s *ExportSender) TotalCredit() (sum int) {
	for _, o := range s.Channels {
		sum += o.credit
	}
	return sum
}

func (s *ExportSender) Result() (engine.ExportResult, error) {
	result := engine.ExportResult{Exported: s.exported}
	for _, o := range s.Channels {
		result.Unconfirmed += o.unconfirmed
	}
	return result, s.err
}

// ShutChannelsWhenConfirmed shuts all channels if the export has stopped and all sent connections are confirmed. If the
// receivers grant no more credit, it first stops the export. It returns true when all channels have ended or the export
// was aborted.
func (s *ExportSender) ShutChannelsWhenConfirmed() (allEndedOrAborted bool) {
	unconfirmed := func(o *ExportChannel) bool { return o.unconfirmed > 0 }
	hasRoom := func(o *ExportChannel) bool { return !o.exhausted || o.credit > 0 }
	open := func(o *ExportChannel) bool { return !o.Ended }
	if s.stage == aborted || slices.ContainsFunc(s.Channels, unconfirmed) {
		return s.stage == aborted
	}
	if !slices.ContainsFunc(s.Channels, hasRoom) {
		s.Stop()
	}
	if s.stage == exportStopped {
		s.stage = channelsShut
		for _, o := range s.Channels {
			_ = sock.ShutdownWrite(o.FD) // fails only if the receiver has ended
		}
	}
	return s.stage == channelsShut && !slices.ContainsFunc(s.Channels, open)
}

// ReceiveConfirmationsOrAbortExport reads the receiver's confirmations and credit. After an error, the export is
// aborted.
func (s *ExportSender) ReceiveConfirmationsOrAbortExport(o *ExportChannel) error {
	for !o.Ended {
		var p [8]byte
		n, errno := sock.Recv(o.FD, p[:])
		switch {
		case errno == syscall.EAGAIN:
			return nil
		case errno == syscall.ECONNRESET: // earlier data and then EOF follow
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
			s.Abort(wrapExportError(io.ErrUnexpectedEOF))
			return s.err
		default:
			s.Abort(wrapExportError(errno))
			return s.err
		}
	}
	return nil
}

// NextChannelWithCredit returns the next channel with credit, in round-robin order, and the credit of this channel. If
// no channel has credit, o is nil.
func (s *ExportSender) NextChannelWithCredit() (o *ExportChannel, credit int) {
	for range s.Channels {
		o = s.Channels[s.nextChannel%len(s.Channels)]
		if s.nextChannel++; o.credit > 0 {
			return o, o.credit
		}
	}
	return nil, 0
}

// TrySendBatchOrFail sends a batch of connections on o. The batch must not contain more connections than o has credit.
// If the socket is full, TrySendBatchOrFail returns false, and the caller may retry. After any other error, it returns
// false and stops the export.
func (s *ExportSender) TrySendBatchOrFail(o *ExportChannel, records []byte, fds []int) (sent bool) {
	errno, err := sendBatch(o.FD, records, fds)
	switch {
	case err == nil && errno == 0:
		o.credit -= len(fds)
		o.unconfirmed += len(fds)
		s.exported += len(fds)
		return true
	case err != nil:
		s.Fail(wrapExportError(err))
	case errno != syscall.EAGAIN && errno != syscall.ETOOMANYREFS && errno != syscall.ENOBUFS:
		s.Fail(wrapExportError(errno))
	}
	return false
}

func sendBatch(channel int32, records []byte, fds []int) (sendErrno syscall.Errno, fileErr error) {
	head := binary.AppendUvarint([]byte{recordsInline}, uint64(len(fds)))
	if len(head)+len(records) <= sock.MaxFDMessageSize {
		return sock.SendFDs(channel, append(head, records...), fds), nil
	}
	head[0] = recordsInFile
	file, err := sock.WriteToNewMemoryFile(records)
	if err != nil {
		return 0, err
	}
	defer sock.Close(file)
	return sock.SendFDs(channel, head, append([]int{int(file)}, fds...)), nil
}
