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
	Channels []*Outlet
	next     int // the channel by which the next batch goes
	stage    stage
	gone     int
	err      error
}

// Outlet is a channel at its sender.
type Outlet struct {
	FD      int32
	Ended   bool // by the receiver, after the sender has shut it
	credit  int
	unknown int  // connections that have gone and are not confirmed
	full    bool // no more credit will come
}

type stage uint8

const (
	asking  stage = iota // connections may go
	stopped              // no more go
	shut                 // and the channels are shut
	broken               // nothing more will be known
)

// NewSender returns a sender by channels, whose descriptors stay the caller's.
func NewSender(fds []int32) Sender {
	s := Sender{}
	for _, fd := range fds {
		s.Channels = append(s.Channels, &Outlet{FD: fd})
	}
	return s
}

// Asking reports whether connections may go.
func (s *Sender) Asking() bool { return s.stage == asking }

// Stop has no more connections go.
func (s *Sender) Stop() { s.stage = max(s.stage, stopped) }

// Fail stops for an error, the first of which counts.
func (s *Sender) Fail(err error) {
	s.err = cmp.Or(s.err, err)
	s.Stop()
}

// Abort ends the hand-over at once: of connections that are not confirmed nothing will be known.
func (s *Sender) Abort(err error) {
	s.Fail(err)
	s.stage = broken
}

// Credit returns how many connections may go.
func (s *Sender) Credit() (sum int) {
	for _, o := range s.Channels {
		sum += o.credit
	}
	return sum
}

// Result returns what has become of the connections, and the first error.
func (s *Sender) Result() (engine.Handover, error) {
	result := engine.Handover{Gone: s.gone}
	for _, o := range s.Channels {
		result.Unknown += o.unknown
	}
	return result, s.err
}

// Step does what the answers of the receivers allow. It reports whether the hand-over is over:
// all channels have ended in order, or one has not.
func (s *Sender) Step() (over bool) {
	unconfirmed := func(o *Outlet) bool { return o.unknown > 0 }
	hasRoom := func(o *Outlet) bool { return !o.full || o.credit > 0 }
	open := func(o *Outlet) bool { return !o.Ended }
	if s.stage == broken || slices.ContainsFunc(s.Channels, unconfirmed) {
		return s.stage == broken
	}
	if !slices.ContainsFunc(s.Channels, hasRoom) {
		s.Stop()
	}
	if s.stage == stopped {
		s.stage = shut
		for _, o := range s.Channels {
			_ = sock.ShutdownWrite(o.FD) // an error is the other side's end, which is what is waited for
		}
	}
	return s.stage == shut && !slices.ContainsFunc(s.Channels, open)
}

// Receive reads what the receiver has sent by a channel. An error has aborted the hand-over.
func (s *Sender) Receive(o *Outlet) error {
	for !o.Ended {
		var p [8]byte
		n, errno := sock.Recv(o.FD, p[:])
		switch {
		case errno == syscall.EAGAIN:
			return nil
		case errno == syscall.ECONNRESET: // what was sent before, and the end, come after it
		case errno == 0 && n == len(p):
			o.unknown -= int(binary.BigEndian.Uint32(p[:]))
			if more := binary.BigEndian.Uint32(p[4:]); more == noRoom {
				o.full = true
			} else {
				o.credit += int(min(more, maxCredit))
			}
		case errno == 0 && n == 0 && s.stage == shut:
			o.Ended = true
		case errno == 0:
			s.Abort(failed(io.ErrUnexpectedEOF))
			return s.err
		default:
			s.Abort(failed(errno))
			return s.err
		}
	}
	return nil
}

// Next returns a channel with credit, and its credit; nil if there is none. Channels take turns,
// so that each receiver gets its share.
func (s *Sender) Next() (o *Outlet, credit int) {
	for range s.Channels {
		o = s.Channels[s.next%len(s.Channels)]
		if s.next++; o.credit > 0 {
			return o, o.credit
		}
	}
	return nil, 0
}

// Send sends a batch, at most as many connections as the channel has credit for. It reports false
// if the batch may fit later, or if it has stopped the hand-over for an error.
func (s *Sender) Send(o *Outlet, records []byte, fds []int) (sent bool) {
	errno, err := sendBatch(o.FD, records, fds)
	switch {
	case err == nil && errno == 0:
		o.credit -= len(fds)
		o.unknown += len(fds)
		s.gone += len(fds)
		return true
	case err != nil:
		s.Fail(failed(err))
	case errno != syscall.EAGAIN && errno != syscall.ETOOMANYREFS && errno != syscall.ENOBUFS:
		s.Fail(failed(errno))
	}
	return false
}

func sendBatch(channel int32, records []byte, fds []int) (syscall.Errno, error) {
	head := binary.AppendUvarint([]byte{inMessage}, uint64(len(fds)))
	if len(head)+len(records) <= sock.MaxFDMessageSize {
		return sock.SendFDs(channel, append(head, records...), fds), nil
	}
	head[0] = inFile
	file, err := sock.NewMemoryFile(records)
	if err != nil {
		return 0, err
	}
	defer sock.Close(file)
	return sock.SendFDs(channel, head, append([]int{int(file)}, fds...)), nil
}
