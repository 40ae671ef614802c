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

// faultRecorder counts the failures of a run. It is safe for concurrent use.
type faultRecorder struct {
	mu              sync.Mutex
	causes          [nFaults]causeCounts
	connectsEnded   bool // failed connection attempts no longer count
	wrongAnswers    int64
	firstMismatch   *Mismatch
	firstUnexpected string
	exhausted       map[syscall.Errno]int64 // connection attempts that failed because this machine ran out of a resource
}

type faultKind uint8

const (
	failedConnect faultKind = iota
	lostConn
	wrongAnswer
	badStatus // status of an HTTP response
	strayLine // unexpected line on a held connection
	nFaults
)

// String returns the kind of fault as a prefix for texts in Interval.Errors, such as "connect: ".
func (f faultKind) String() string {
	return [...]string{"connect: ", "lost: ", "answer: ", "answer: ", "line: "}[f]
}

type causeCounts map[string]int64

// maxCauses is the maximum number of different causes that are counted separately for each kind of failure. All other
// causes together count as "other causes".
const maxCauses = 64

// countFaultLocked counts n failures with the same cause. The caller holds f.mu.
func (f *faultRecorder) countFaultLocked(kind faultKind, cause string, n int64) {
	if f.causes[kind] == nil {
		f.causes[kind] = causeCounts{}
	}
	if _, known := f.causes[kind][cause]; !known && len(f.causes[kind]) >= maxCauses {
		cause = "other causes"
	}
	f.causes[kind][cause] += n
}

func (f *faultRecorder) causesWithKindPrefix() causeCounts {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := causeCounts{}
	for what, causes := range f.causes {
		for cause, n := range causes {
			sum[faultKind(what).String()+cause] += n
		}
	}
	return sum
}

func (f *faultRecorder) recordStatusIfHTTPError(status int) {
	if status < 400 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countFaultLocked(badStatus, "HTTP status "+strconv.Itoa(status), 1)
}

func (f *faultRecorder) recordConnectFailureUnlessEnded(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.connectsEnded {
		return
	}
	f.countFaultLocked(failedConnect, describeCause(err), 1)
	f.recordIfExhaustionLocked(err)
}

func (f *faultRecorder) recordLostAfterReconnectFailure(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countFaultLocked(lostConn, "reconnecting: "+describeCause(err), 1)
	f.recordIfExhaustionLocked(err)
}

// recordIfExhaustionLocked counts err if it shows an exhausted resource of this machine. The caller holds f.mu.
func (f *faultRecorder) recordIfExhaustionLocked(err error) {
	var errno syscall.Errno
	if !errors.As(err, &errno) || exhaustionErrnos[errno] == "" {
		return
	}
	if f.exhausted == nil {
		f.exhausted = make(map[syscall.Errno]int64)
	}
	f.exhausted[errno]++
}

// stopCountingConnectsAndFailPending ends the counting of failed connection attempts. Attempts are pending if they have
// neither succeeded nor failed. If pendingCauseOrEmpty is not empty, pending attempts count as failed with this cause.
func (f *faultRecorder) stopCountingConnectsAndFailPending(attempted, opened int64, pendingCauseOrEmpty string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.connectsEnded = true
	if missing := attempted - opened - sumCountsByCause(f.causes[failedConnect]); missing > 0 && pendingCauseOrEmpty != "" {
		f.countFaultLocked(failedConnect, pendingCauseOrEmpty, missing)
	}
}

func (f *faultRecorder) countConnectFailures() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sumCountsByCause(f.causes[failedConnect])
}

func (f *faultRecorder) recordLostConn(reason error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.countFaultLocked(lostConn, describeCause(reason), 1)
}

func (f *faultRecorder) countMismatchAndKeepFirst(reason error, m Mismatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrongAnswers++
	f.countFaultLocked(wrongAnswer, describeCause(reason), 1)
	if f.firstMismatch == nil {
		m.Why = reason.Error()
		f.firstMismatch = &m
	}
}

// recordUnexpectedOrRepeatedLine counts an unexpected line. It also stores the first unexpected line of the run. If
// lineOrNilIfRepeated is nil, it counts a broadcast that a connection has received again.
func (f *faultRecorder) recordUnexpectedOrRepeatedLine(lineOrNilIfRepeated []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if lineOrNilIfRepeated == nil {
		f.countFaultLocked(strayLine, "repeated broadcast", 1)
		return
	}
	if f.firstUnexpected == "" {
		f.firstUnexpected = quoteTruncated(lineOrNilIfRepeated)
	}
	f.countFaultLocked(strayLine, "not expected", 1)
}

func (f *faultRecorder) recordUnansweredVerificationLines(n int64) {
	if n > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.countFaultLocked(wrongAnswer, "missing in the verification", n)
	}
}

func (f *faultRecorder) countFailedAndLostConns() (failed, lostOrWrong int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return sumCountsByCause(f.causes[failedConnect]), sumCountsByCause(f.causes[lostConn]) + f.wrongAnswers
}

func (f *faultRecorder) fillFaultFields(r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.ConnectErrors, r.Lost, r.BadStatus = maps.Clone(f.causes[failedConnect]), maps.Clone(f.causes[lostConn]), maps.Clone(f.causes[badStatus])
	r.Mismatched, r.FirstMismatch = f.wrongAnswers, f.firstMismatch
	r.FirstUnexpected = f.firstUnexpected
}

// describeCause describes why a connection failed or was lost. The text contains no addresses, so failures with the
// same cause have the same text.
func describeCause(err error) string {
	var errno syscall.Errno
	var op *net.OpError
	var timeout net.Error
	var handshake handshakeError
	switch {
	case err == nil:
		return "closed"
	case errors.As(err, &handshake):
		return "TLS handshake: " + describeCause(handshake.error)
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

const maxQuoted = 32

func quoteTruncated(p []byte) string {
	if len(p) > maxQuoted {
		return strconv.Quote(string(p[:maxQuoted])) + "..."
	}
	return strconv.Quote(string(p))
}
