package natsd

import (
	"fmt"
	"sync"
)

// logger passes on what a server warns of.
type logger struct {
	warn func(line string)

	mu  sync.Mutex
	why string // it has given up
}

func (l *logger) say(format string, v ...any) {
	if l.warn != nil {
		l.warn(fmt.Sprintf(format, v...))
	}
}

func (l *logger) fatal() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// Fatalf implements server.Logger: of a server in a program it ends nothing.
func (l *logger) Fatalf(format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why == "" {
		l.why = fmt.Sprintf(format, v...)
	}
}

// The others of server.Logger.
func (l *logger) Warnf(format string, v ...any)  { l.say(format, v...) }
func (l *logger) Errorf(format string, v ...any) { l.say(format, v...) }
func (l *logger) Noticef(string, ...any)         {}
func (l *logger) Debugf(string, ...any)          {}
func (l *logger) Tracef(string, ...any)          {}
