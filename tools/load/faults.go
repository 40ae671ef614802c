package load

import (
	"errors"
	"io"
	"maps"
	"net"
	"strconv"
	"sync"
	"syscall"
)

// faults is what went wrong in a run. It is safe for concurrent use; none of it is on
// the way of a message.
type faults struct {
	mu      sync.Mutex
	by      [nFaults]causes
	settled bool // attempts to connect are no longer counted
	wrongs  int64
	first   *Mismatch
	// firstUnexpected is the first line that a connection which is held did not expect.
	firstUnexpected string
	scarce          map[syscall.Errno]int64 // attempts that failed because this machine ran out
}

// fault is what can go wrong.
type fault uint8

const (
	failedConnect fault = iota
	lostConn
	wrongAnswer
	badStatus // of an HTTP response
	strayLine // on a connection that is held
	nFaults
)

// String begins the causes of a fault in an interval.
func (f fault) String() string {
	return [...]string{"connect: ", "lost: ", "answer: ", "answer: ", "line: "}[f]
}

// causes counts by cause.
type causes map[string]int64

// maxCauses bounds how many causes of a fault are counted apart.
const maxCauses = 64

// count counts a fault. The caller holds the lock.
func (f *faults) count(what fault, cause string, n int64) {
	if f.by[what] == nil {
		f.by[what] = causes{}
	}
	if _, known := f.by[what][cause]; !known && len(f.by[what]) >= maxCauses {
		cause = "other causes"
	}
	f.by[what][cause] += n
}

func (f *faults) all() causes {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := causes{}
	for what, causes := range f.by {
		for cause, n := range causes {
			sum[fault(what).String()+cause] += n
		}
	}
	return sum
}

// status counts an HTTP response whose status says that it is an error.
func (f *faults) status(status int) {
	if status < 400 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(badStatus, "HTTP status "+strconv.Itoa(status), 1)
}

func (f *faults) refused(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.settled {
		return
	}
	f.count(failedConnect, cause(err), 1)
	f.noteScarcity(err)
}

// notReconnected counts a connection that was lost because it could not be replaced.
func (f *faults) notReconnected(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(lostConn, "reconnecting: "+cause(err), 1)
	f.noteScarcity(err)
}

// noteScarcity counts an error that says that this machine ran out of something. The
// caller holds the lock.
func (f *faults) noteScarcity(err error) {
	var errno syscall.Errno
	if !errors.As(err, &errno) || scarcities[errno] == "" {
		return
	}
	if f.scarce == nil {
		f.scarce = make(map[syscall.Errno]int64)
	}
	f.scarce[errno]++
}

// settle ends the counting of attempts. Of those that were asked for, what has
// neither opened nor failed failed for the given cause, if there is one.
func (f *faults) settle(asked, opened int64, cause string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.settled = true
	if missing := asked - opened - sumCauses(f.by[failedConnect]); missing > 0 && cause != "" {
		f.count(failedConnect, cause, missing)
	}
}

func (f *faults) failures() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sumCauses(f.by[failedConnect])
}

func (f *faults) gone(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count(lostConn, cause(why), 1)
}

// wrong counts a connection whose answer was wrong and keeps the first.
func (f *faults) wrong(why error, m Mismatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrongs++
	f.count(wrongAnswer, cause(why), 1)
	if f.first == nil {
		m.Why = why.Error()
		f.first = &m
	}
}

// unexpected counts a line that nobody expected, nil for a broadcast that came again,
// and keeps the first.
func (f *faults) unexpected(line []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if line == nil {
		f.count(strayLine, "the broadcast again", 1)
		return
	}
	if f.firstUnexpected == "" {
		f.firstUnexpected = quote(line)
	}
	f.count(strayLine, "not expected", 1)
}

// unanswered counts lines of a verification that have no answer.
func (f *faults) unanswered(n int64) {
	if n > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.count(wrongAnswer, "none to the verification", n)
	}
}

// totals counts failed attempts, and connections that were lost or had a wrong answer.
func (f *faults) totals() (failed, lost int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sumCauses(f.by[failedConnect]), sumCauses(f.by[lostConn]) + f.wrongs
}

func (f *faults) fill(r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.ConnectErrors, r.Lost, r.BadStatus = maps.Clone(f.by[failedConnect]), maps.Clone(f.by[lostConn]), maps.Clone(f.by[badStatus])
	r.Mismatched, r.FirstMismatch = f.wrongs, f.first
	r.FirstUnexpected = f.firstUnexpected
}

// cause says why a connection failed or was lost, in words that are the same
// for each connection, so without addresses.
func cause(err error) string {
	var errno syscall.Errno
	var op *net.OpError
	var timeout net.Error
	var handshake handshakeError
	switch {
	case err == nil:
		return "closed"
	case errors.As(err, &handshake):
		return "TLS handshake: " + cause(handshake.error)
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF):
		return "closed by the server"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "cut off by the server"
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timed out"
	case errors.As(err, &op):
		return op.Err.Error()
	}
	return err.Error()
}

// quoted is how many bytes of a mismatch are kept.
const quoted = 32

func quote(p []byte) string {
	if len(p) > quoted {
		return strconv.Quote(string(p[:quoted])) + "..."
	}
	return strconv.Quote(string(p))
}
