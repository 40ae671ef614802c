package natsd

import (
	"fmt"
	"regexp"
	"sync"
)

// logger passes on what a server warns of.
type logger struct {
	warn func(line string)

	mu        sync.Mutex
	fatalText string // it has given up
}

func (l *logger) warnf(format string, v ...any) {
	if l.warn != nil {
		l.warn(explainServerLine(fmt.Sprintf(format, v...)))
	}
}

var (
	// routeRejected and refused are what a server says of another one, of which it knows the address, when their
	// secrets differ. Who connects does so from a port that means nothing.
	routeRejected = regexp.MustCompile(`^(\S+) - rid:\d+ - Route Error 'Authorization Violation'`)
	routeRefused  = regexp.MustCompile(`^(\S+):\d+ - rid:\d+ - authentication error`)
	// clientRefused is what a server says of a client whose token is wrong or missing.
	clientRefused = regexp.MustCompile(`^(\S+):\d+ - cid:\d+ .*authentication error`)
)

// explainServerLine returns what a line of nats-server means, where that does not say so.
func explainServerLine(line string) string {
	if m := routeRejected.FindStringSubmatch(line); m != nil {
		return "the server at " + m[1] + " refuses this one: their cluster secrets differ; expected the same secret on all"
	}
	if m := routeRefused.FindStringSubmatch(line); m != nil {
		return "a server from " + m[1] + " is refused: its cluster secret differs from that of this one; expected the same secret on all"
	}
	if m := clientRefused.FindStringSubmatch(line); m != nil {
		return "a client from " + m[1] + " is refused: its token is wrong or missing; expected the same secret on both sides"
	}
	return line
}

func (l *logger) fatalError() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatalText
}

// Fatalf implements server.Logger: of a server in a program it ends nothing.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatalText == "" {
		l.fatalText = fmt.Sprintf(format, v...)
	}
}

// The others of server.Logger.
func (l *logger) Warnf(format string, v ...any)  { l.warnf(format, v...) }
func (l *logger) Errorf(format string, v ...any) { l.warnf(format, v...) }
func (l *logger) Noticef(string, ...any)         {}
func (l *logger) Debugf(string, ...any)          {}
func (l *logger) Tracef(string, ...any)          {}
