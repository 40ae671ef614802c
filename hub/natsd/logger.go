package natsd

import (
	"fmt"
	"regexp"
	"sync"
)

type logger struct {
	warn func(line string)

	mu        sync.Mutex
	fatalText string // of the first fatal error
}

func (l *logger) warnRewordedf(format string, v ...any) {
	if l.warn != nil {
		l.warn(rewordAuthErrors(fmt.Sprintf(format, v...)))
	}
}

var (
	// routeRejected and routeRefused match the server's log lines about another server that has a different secret. The
	// port of an incoming connection means nothing to users.
	routeRejected = regexp.MustCompile(`^(\S+) - rid:\d+ - Route Error 'Authorization Violation'`)
	routeRefused  = regexp.MustCompile(`^(\S+):\d+ - rid:\d+ - authentication error`)
	// clientRefused matches the server's log line about a client with a wrong or missing token.
	clientRefused = regexp.MustCompile(`^(\S+):\d+ - cid:\d+ .*authentication error`)
)

func rewordAuthErrors(line string) string {
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

func (l *logger) firstFatalError() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatalText
}

// Fatalf implements server.Logger. It only records the error. The process does not exit.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatalText == "" {
		l.fatalText = fmt.Sprintf(format, v...)
	}
}

// Warnf and the methods below implement server.Logger.
func (l *logger) Warnf(format string, v ...any)  { l.warnRewordedf(format, v...) }
func (l *logger) Errorf(format string, v ...any) { l.warnRewordedf(format, v...) }
func (l *logger) Noticef(string, ...any)         {}
func (l *logger) Debugf(string, ...any)          {}
func (l *logger) Tracef(string, ...any)          {}
