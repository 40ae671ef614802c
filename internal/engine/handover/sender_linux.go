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

// ExportSender sends connections to another engine. It belongs to one owner, which is a loop or an engine. While
// [ExportSender.IsExporting] returns true, the owner sends connections with [ExportSender.TrySendBatchOrFail]. When a
// channel becomes readable, the owner calls [ExportSender.ReceiveConfirmationsOrAbortExport] and then
// [ExportSender.TryFinish]. An ExportSender is not safe for concurrent use.
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

// NewExportSender returns an ExportSender that sends on channelFDs. The caller keeps ownership of these descriptors.
func NewExportSender(channelFDs []int32) ExportSender {
	s := ExportSender{}
	for _, fd := range channelFDs {
		s.Channels = append(s.Channels, &ExportChannel{FD: fd})
	}
	return s
}

func (s *ExportSender) IsExporting() bool { return s.stage == exporting }

// Stop ends the export in an orderly way. The owner sends no more connections, but must continue to receive
// confirmations of the connections already sent.
func (s *ExportSender) Stop() { s.stage = max(s.stage, exportStopped) }

// Fail ends the export like Stop and records err. Result returns the first recorded error.
func (s *ExportSender) Fail(err error) {
	s.err = cmp.Or(s.err, err)
	s.Stop()
}

// Abort ends the export immediately, without waiting for confirmations, and records err. For each unconfirmed
// connection, it stays unknown whether the connection has arrived.
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

// TryFinish ends the export step by step. While sent connections are unconfirmed, it does nothing. If
// no channel has credit or can get more credit, it stops the export. If the export has stopped, it shuts all channels
// for writing. It returns true when the receiver has closed all channels, or if the export was aborted.
func (s *ExportSender) TryFinish() (allEndedOrAborted bool) {
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

// ReceiveConfirmationsOrAbortExport reads all available confirmations and credit messages from the channel o. If
// reading fails, it aborts the export and returns the error.
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

// NextChannelWithCredit selects a channel that has credit, in round-robin order. It returns the channel and the
// channel's credit. If no channel has credit, o is nil.
func (s *ExportSender) NextChannelWithCredit() (o *ExportChannel, credit int) {
	for range s.Channels {
		o = s.Channels[s.nextChannel%len(s.Channels)]
		if s.nextChannel++; o.credit > 0 {
			return o, o.credit
		}
	}
	return nil, 0
}

// TrySendBatchOrFail sends a batch of connections on the channel o. The number of connections in the batch must not
// exceed the credit of o. If the kernel cannot accept the batch at present, TrySendBatchOrFail returns false, and the
// caller may try again. After any other error, it returns false and stops the export.
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
