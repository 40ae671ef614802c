package engine

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// All simulations share two files: one with content that depends on the offset, and one of zeros
// that is truncated occasionally while it is sent.

const simFileSize = 256

var simFiles = sync.OnceValue(func() (files [2]*os.File) {
	for i := range files {
		f, err := os.CreateTemp("", "sim")
		if err != nil {
			panic(err)
		}
		_ = os.Remove(f.Name()) // where that can be done
		files[i] = f
	}
	if _, err := files[0].WriteAt(simContent(0), 0); err != nil {
		panic(err)
	}
	return files
})

func simContent(which int) []byte {
	p := make([]byte, simFileSize)
	for i := range p {
		if which == 0 {
			p[i] = byte('A' + i%26 + i/26)
		}
	}
	return p
}

func (s *sim) handlerSendsFile(l *life) {
	c, which := l.conn, s.dice.intN(4)/3
	f, cut := simFiles()[which], which == 1 && s.dice.intN(2) == 0
	if which == 1 {
		s.truncateFile(f, simFileSize)
	}
	from := s.dice.intN(simFileSize)
	n := s.dice.intN(simFileSize - from)
	if s.dice.intN(8) == 0 {
		n = s.dice.intN(2)
	}
	closed := l.hasStoppedWriting()
	small := n < s.host.MinDirectSend && c.unsentInMemoryBytes()-c.postedBytesInOutput()+s.host.directSent+n <= simMaxUnsent
	full := n > 0 && !small && len(c.fileQueueOrNil().entriesOrNil()) == MaxQueuedFiles
	if fits := !closed && !l.upgrading && !full; fits {
		l.expectWritten(s, simContent(which)[from:from+n]) // before it is sent at once
	}
	err := c.SendFile(f, int64(from), int64(n))
	call := fmt.Sprintf("SendFile of %d bytes of file %d from %d on", n, which, from)
	switch {
	case full && !closed && !l.upgrading:
		s.check(errors.Is(err, ErrFull), "%v: %s, one too many, gives %v", l, call, err)
	case s.checkCall(l, call, err, closed, l.upgrading):
		l.high = l.high || c.UnsentAndDroppedBytes()+s.host.directSent > simHigh
		l.filed = true
		if which == 1 {
			l.allowReasons(ErrShortFile)
		}
	}
	if cut {
		s.truncateFile(f, 0)
	}
}

func (s *sim) truncateFile(f *os.File, size int64) {
	s.check(f.Truncate(size) == nil, "can't truncate a file")
}

func (s *sim) kernelSendFile(l *life) {
	c := l.conn
	f, from, n := c.NextFilePartUnlessLayered()
	s.check(c.out == nil && !l.shut, "%v: sends a file before its time", l)
	s.check((f == nil) == (l.layer != nil), "%v: a file would get past the layer, or not be sent", l)
	if f == nil || s.dice.intN(3) == 0 {
		s.log("%v: loads of a file", l)
		c.LoadFilePieceIntoOutput()
		return
	}
	if l.reset && s.dice.intN(2) == 0 {
		s.log("%v: sending a file fails", l)
		s.breakTransport(l)
		return
	}
	p := make([]byte, min(n, l.room))
	n, _ = f.ReadAt(p, from)
	if p = p[:n]; n == 0 && l.room > 0 {
		s.log("%v: a file has ended too early", l)
		c.LoadFilePieceIntoOutput()
		return
	}
	c.OnSent(s.kernelTakes(l, p))
	if c.is(blocked) || c.UnsentAndDroppedBytes() <= simLow { // otherwise more is sent now
		s.checkHighWater(l)
	}
}
