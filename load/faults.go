package load

import (
	"errors"
	"io"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// faults is what went wrong in a run, by cause. It is safe for concurrent use;
// none of it is on the way of a message.
type faults struct {
	mu              sync.Mutex
	failed          int64  // attempts to connect
	connects        causes // why they failed
	settled         bool   // attempts are no longer counted
	lost            causes // connections
	wrongs          int64  // connections with a wrong answer
	first           *Mismatch
	whys            causes                  // why they were wrong
	lines           causes                  // that connections which are held did not expect
	statuses        causes                  // of HTTP responses that are errors
	firstUnexpected string                  // of lines
	scarce          map[syscall.Errno]int64 // attempts that failed because this machine ran out
}

// status counts an HTTP response whose status says that it is an error.
func (f *faults) status(status int) {
	if status < 400 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statuses.add("HTTP status "+strconv.Itoa(status), 1)
}

// all counts everything that went wrong, by cause.
func (f *faults) all() causes {
	f.mu.Lock()
	defer f.mu.Unlock()
	sum := causes{}
	for _, of := range []struct {
		what   string
		causes causes
	}{{"connect: ", f.connects}, {"lost: ", f.lost}, {"answer: ", f.whys}, {"answer: ", f.statuses}, {"line: ", f.lines}} {
		for cause, n := range of.causes {
			sum[of.what+cause] += n
		}
	}
	return sum
}

// scarcities are the errors that say that this machine has run out of something, and
// their names.
var scarcities = map[syscall.Errno]string{
	syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.EADDRINUSE: "EADDRINUSE",
	syscall.EMFILE: "EMFILE", syscall.ENFILE: "ENFILE",
	syscall.ENOBUFS: "ENOBUFS", syscall.ENOMEM: "ENOMEM",
}

// met counts attempts that failed with one of some scarcities, and names those that
// did.
func (f *faults) met(errnos ...syscall.Errno) (n int64, names string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var seen []string
	for _, errno := range errnos {
		if f.scarce[errno] > 0 {
			n += f.scarce[errno]
			seen = append(seen, scarcities[errno])
		}
	}
	return n, strings.Join(seen, ", ")
}

// totals counts failed attempts, lost connections and wrong answers.
func (f *faults) totals() (failed, lost, wrong int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range f.lost {
		lost += n
	}
	return f.failed, lost, f.wrongs
}

// causes counts by cause.
type causes map[string]int64

// maxCauses bounds how many causes are told apart.
const maxCauses = 64

func (c *causes) add(cause string, n int64) {
	if *c == nil {
		*c = causes{}
	}
	if _, known := (*c)[cause]; !known && len(*c) >= maxCauses {
		cause = "other causes"
	}
	(*c)[cause] += n
}

// refused counts a failed attempt to connect.
func (f *faults) refused(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.settled {
		return
	}
	f.failed++
	f.connects.add(cause(err), 1)
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
	if missing := asked - opened - f.failed; missing > 0 && cause != "" {
		f.failed += missing
		f.connects.add(cause, missing)
	}
}

// failures counts failed attempts to connect.
func (f *faults) failures() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failed
}

// gone counts a connection that was lost.
func (f *faults) gone(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lost.add(cause(why), 1)
}

// wrong counts a connection whose answer was wrong and keeps the first.
func (f *faults) wrong(why error, m Mismatch) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrongs++
	f.whys.add(cause(why), 1)
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
	switch {
	case line == nil:
		f.lines.add("the broadcast again", 1)
		return
	case f.firstUnexpected == "":
		f.firstUnexpected = quote(line)
	}
	f.lines.add("not expected", 1)
}

// unanswered counts lines of a verification that have no answer.
func (f *faults) unanswered(n int64) {
	if n > 0 {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.whys.add("none to the verification", n)
	}
}

// fill writes the faults into a result.
func (f *faults) fill(r *Result) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r.ConnectErrors = maps.Clone(map[string]int64(f.connects))
	r.Lost = maps.Clone(map[string]int64(f.lost))
	r.Mismatched = f.wrongs
	r.FirstMismatch = f.first
	r.FirstUnexpected = f.firstUnexpected
	r.BadStatus = maps.Clone(map[string]int64(f.statuses))
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

// quote quotes the start of p as in Go.
func quote(p []byte) string {
	if len(p) > quoted {
		return strconv.Quote(string(p[:quoted])) + "..."
	}
	return strconv.Quote(string(p))
}
