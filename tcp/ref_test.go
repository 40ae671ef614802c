package tcp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// outside are methods to call outside of a call for the connection. logs is set for those without
// an error result.
var outside = map[string]struct {
	use  func(c *Conn) error
	logs bool
}{
	"Write":       {use: func(c *Conn) error { return errorOf(c.Write([]byte("lost"))) }},
	"WriteString": {use: func(c *Conn) error { return errorOf(c.WriteString("lost")) }},
	"Writev":      {use: func(c *Conn) error { return errorOf(c.Writev([]byte("lost"), []byte("too"))) }},
	"ReadFrom":    {use: func(c *Conn) error { _, err := c.ReadFrom(strings.NewReader("lost")); return err }},
	"SendFile":    {use: func(c *Conn) error { return c.SendFile(nil, 0, 1) }},
	"Close":       {use: (*Conn).Close},
	"CloseWrite":  {use: (*Conn).CloseWrite},
	"Relay":       {use: func(c *Conn) error { return c.Relay(c.Ref()) }},
	"Dial":        {use: func(c *Conn) error { return c.Dial(Dial{}) }},
	"Detach":      {use: func(c *Conn) error { return c.Detach(func(net.Conn, []byte) {}) }},
	"StartTLS":    {use: func(c *Conn) error { return c.StartTLS(&tls.Config{}) }},
	"SetHandler":  {use: func(c *Conn) error { return c.SetHandler(Base{}) }},
	"CloseWith":   {func(c *Conn) error { c.CloseWith(io.EOF); return nil }, true},
	"Pause":       {func(c *Conn) error { c.Pause(); return nil }, true},
	"Resume":      {func(c *Conn) error { c.Resume(); return nil }, true},
	"Retain":      {func(c *Conn) error { c.Retain(); return nil }, true},
	"Release":     {func(c *Conn) error { c.Release(); return nil }, true},
	"SetTimer":    {func(c *Conn) error { c.SetTimer(1); return nil }, true},
	"SetDeadline": {func(c *Conn) error { c.SetDeadline(1); return nil }, true},
	"SetValue":    {func(c *Conn) error { c.SetValue("lost"); return nil }, true},
}

func errorOf(_ int, err error) error { return err }

// A kept Conn does nothing outside of calls for it, and reports that. The test uses one loop,
// because between goroutines it would be a data race.
func TestOutsideCall(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string, loops int) {
		if loops > 1 {
			return
		}
		var log logRecorder
		var kept *Conn
		done := make(chan struct{})
		s := startServer(t, &Server{Model: model, Loops: 1, Log: slog.New(slog.NewTextHandler(&log, nil)), Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
			if string(line) == "keep" {
				kept = c
				echoLine(c, line)
				return
			}
			defer close(done)
			for name, m := range outside {
				for range 2 {
					if err := m.use(kept); errors.Is(err, ErrOutsideCall) == m.logs {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
			if kept.Value() != nil {
				t.Errorf("the value is %v", kept.Value())
			}
			if errorOf(c.WriteString("fine\n")) != nil {
				t.Error("a write in its own call fails")
			}
		}))})
		first := dial(t, s.addr)
		first.Exchange("keep", "keep")
		other := dial(t, s.addr)
		io.WriteString(other, "use it\n")
		<-done
		for name, m := range outside {
			if n := strings.Count(log.String(), "method=Conn."+name+" "); m.logs != (n == 1) {
				t.Errorf("%s is in the log %d times:\n%s", name, n, log.String())
			}
		}
		first.Exchange("keep", "keep") // nothing came of it
	})
}

// Log messages about a connection contain its ID.
func TestIDInLog(t *testing.T) {
	var log logRecorder
	ids := make(chan uint64, 1)
	s := startServer(t, &Server{Log: slog.New(slog.NewTextHandler(&log, nil)), Handler: Lines(MessageFunc(func(c *Conn, _ []byte) {
		ids <- c.Ref().ID()
		panic("wrong")
	}))})
	io.WriteString(dial(t, s.addr), "x\n")
	if line, want := log.waitForLine(t, "handler panicked"), fmt.Sprintf("conn=%d ", <-ids); !strings.Contains(line, want) {
		t.Errorf("the log has no %q:\n%s", want, line)
	}
}

// A handler on a loop may use SendWait as long as it does not have to wait.
func TestSendWaitOnLoop(t *testing.T) {
	forEachLoopModel(t, func(t *testing.T, model string, loops int) {
		answer := make(chan error, 1)
		s := startServer(t, &Server{Model: model, Loops: loops, Handler: Lines(MessageFunc(func(c *Conn, _ []byte) {
			for {
				if err := c.Ref().SendWait(context.Background(), make([]byte, 1000)); err != nil {
					answer <- err
					return
				}
			}
		}))})
		io.WriteString(dial(t, s.addr), "x\n")
		err := testkit.Receive(t, answer, "SendWait waits on a loop")
		if !errors.Is(err, ErrBadUse) || !strings.Contains(err.Error(), "expected") {
			t.Errorf("SendWait in a handler: %v", err)
		}
	})
}

func TestSetHandlerNil(t *testing.T) {
	answer := make(chan error, 1)
	s := startServer(t, &Server{Handler: Lines(MessageFunc(func(c *Conn, line []byte) {
		answer <- c.SetHandler(nil)
		echoLine(c, line)
	}))})
	dial(t, s.addr).Exchange("still here", "still here")
	if err := <-answer; !errors.Is(err, ErrBadUse) || !strings.Contains(err.Error(), "SetHandler is nil; expected") {
		t.Errorf("SetHandler(nil): %v", err)
	}
}
