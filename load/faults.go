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

// faults is what went wrong in a run, by cause. It is safe for concurrent use;
// none of it is on the way of a message.
type faults struct {
	mu       sync.Mutex
	failed   int64  // attempts to connect
	connects causes // why they failed
	settled  bool   // attempts are no longer counted
	lost     causes // connections
	wrongs   int64  // connections with a wrong answer
	first    *Mismatch
	whys     causes // why they were wrong
	statuses causes // of HTTP responses that are errors
	ports    int64  // attempts that failed for want of a port
	files    int64  // of a descriptor
	memory   int64  // or of memory
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
	}{{"connect: ", f.connects}, {"lost: ", f.lost}, {"answer: ", f.whys}, {"answer: ", f.statuses}} {
		for cause, n := range of.causes {
			sum[of.what+cause] += n
		}
	}
	return sum
}

// walls counts attempts that failed because of the generator's machine.
func (f *faults) walls() (files, ports, memory int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.files, f.ports, f.memory
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
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.EADDRINUSE):
		f.ports++
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		f.files++
	case errors.Is(err, syscall.ENOBUFS), errors.Is(err, syscall.ENOMEM):
		f.memory++
	}
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
func (f *faults) wrong(l *link, want, got []byte, why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrongs++
	f.whys.add(cause(why), 1)
	if f.first == nil {
		f.first = &Mismatch{
			Connection: int64(l.number),
			Message:    int64(l.answered),
			Byte:       int(l.pos),
			Want:       quote(want),
			Got:        quote(got),
			Why:        why.Error(),
		}
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
