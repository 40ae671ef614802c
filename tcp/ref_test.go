package tcp

import (
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// outside are methods to call outside of a call for the connection.
var outside = map[string]func(c *Conn) error{
	"Write":       func(c *Conn) error { return errorOf(c.Write([]byte("lost"))) },
	"WriteString": func(c *Conn) error { return errorOf(c.WriteString("lost")) },
	"Writev":      func(c *Conn) error { return errorOf(c.Writev([]byte("lost"), []byte("too"))) },
	"ReadFrom":    func(c *Conn) error { _, err := c.ReadFrom(strings.NewReader("lost")); return err },
	"SendFile":    func(c *Conn) error { return c.SendFile(nil, 0, 1) },
	"Close":       (*Conn).Close,
	"CloseWrite":  (*Conn).CloseWrite,
	"Relay":       func(c *Conn) error { return c.Relay(c.Ref()) },
	"Dial":        func(c *Conn) error { return c.Dial(Dial{}) },
	"Detach":      func(c *Conn) error { return c.Detach(func(net.Conn, []byte) {}) },
	"StartTLS":    func(c *Conn) error { return c.StartTLS(&tls.Config{}) },
	"SetHandler":  func(c *Conn) error { return c.SetHandler(Base{}) },
}

// outsideLogged are those without an error result.
var outsideLogged = map[string]func(c *Conn){
	"CloseWith":   func(c *Conn) { c.CloseWith(io.EOF) },
	"Pause":       (*Conn).Pause,
	"Resume":      (*Conn).Resume,
	"Retain":      (*Conn).Retain,
	"Release":     (*Conn).Release,
	"SetTimer":    func(c *Conn) { c.SetTimer(1) },
	"SetReadRate": func(c *Conn) { c.SetReadRate(1, 1) },
	"SetDeadline": func(c *Conn) { c.SetDeadline(1) },
	"SetValue":    func(c *Conn) { c.SetValue("lost") },
}

func errorOf(_ int, err error) error { return err }

// A kept Conn does nothing outside of calls for it, and reports that.
func TestOutsideCall(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string) {
		var log logRecorder
		var kept *Conn
		s := startServer(t, &Server{Model: model, Loops: 1, Log: log.newLogger(), Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
			if string(line) == "keep" {
				kept = c
				echoLine(c, line)
				return
			}
			for range 2 {
				for name, use := range outside {
					expectError(t, name, use(kept), ErrOutsideCall)
				}
				for _, use := range outsideLogged {
					use(kept)
				}
			}
			expectEqual(t, "the value", kept.Value(), nil)
			echoLine(c, line)
		}))})
		first := dial(t, s.addr)
		first.ExchangeLine("keep", "keep")
		dial(t, s.addr).ExchangeLine("use it", "use it")
		for name := range outsideLogged {
			if n := strings.Count(log.String(), "method=Conn."+name+" "); n != 1 {
				t.Errorf("%s is in the log %d times, want once:\n%s", name, n, log.String())
			}
		}
		if n := strings.Count(log.String(), "method=Conn."); n != len(outsideLogged) {
			t.Errorf("%d methods are in the log, want %d:\n%s", n, len(outsideLogged), log.String())
		}
		first.ExchangeLine("keep", "keep") // nothing came of it
	})
}

// A handler on a loop may use SendWait as long as it does not have to wait.
func TestSendWaitOnLoop(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string) {
		answer := make(chan error, 1)
		s := startServer(t, &Server{Model: model, Loops: 2, Handler: Lines(MessageFunc(func(c *Conn, _ []byte) {
			var err error
			for err == nil {
				err = c.Ref().SendWait(t.Context(), make([]byte, 1000))
			}
			answer <- err
		}))})
		dial(t, s.addr).Send("x\n")
		expectError(t, "SendWait", testkit.Receive(t, answer, "SendWait waits on a loop"), ErrBadUse, "expected")
	})
}
