package natsd

import (
	"fmt"
	"regexp"
	"sync"
)

type logger struct {
	warn func(line string)

	mu        sync.Mutex
	fatalText string // text of the first fatal error
}

func (l *logger) warnRewordedf(format string, v ...any) {
	if l.warn != nil {
		l.warn(rewordAuthErrors(fmt.Sprintf(format, v...)))
	}
}

// authErrors contains clearer texts for the lines that the NATS server logs when another server or a client sends a
// wrong secret.
var authErrors = []struct {
	line *regexp.Regexp
	text string
}{
	{regexp.MustCompile(`^(\S+) - rid:\d+ - Route Error 'Authorization Violation'`),
		"the server at %s rejected this server: their cluster secrets differ; expected the same secret on all servers"},
	{regexp.MustCompile(`^(\S+):\d+ - rid:\d+ - authentication error`),
		"rejected a server from %s: its cluster secret differs from that of this server; expected the same secret on all servers"},
	{regexp.MustCompile(`^(\S+):\d+ - cid:\d+ .*authentication error`),
		"rejected a client from %s: its token is wrong or missing; expected the same secret on both sides"},
}

func rewordAuthErrors(line string) string {
	for _, e := range authErrors {
		if m := e.line.FindStringSubmatch(line); m != nil {
			return fmt.Sprintf(e.text, m[1])
		}
	}
	return line
}

func (l *logger) firstFatalError() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fatalText
}

// Fatalf implements server.Logger. It records the error and does not end the process.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fatalText == "" {
		l.fatalText = fmt.Sprintf(format, v...)
	}
}

// Warnf implements server.Logger.
func (l *logger) Warnf(format string, v ...any)  { l.warnRewordedf(format, v...) }
func (l *logger) Errorf(format string, v ...any) { l.warnRewordedf(format, v...) }
func (l *logger) Noticef(string, ...any)         {}
func (l *logger) Debugf(string, ...any)          {}
func (l *logger) Tracef(string, ...any)          {}
