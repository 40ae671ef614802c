package tcp

import (
	"fmt"
	"io"
	"syscall"
	"testing"
)

// taggedListener has a taggedHandler.
type taggedListener struct{ Tag, Name, Addr string }

// taggedHandler answers a line with its tag, the state that it has got, the line, and the number of the line.
type taggedHandler struct {
	MessageFunc // for Opened and Closed
	tag, state  string
}

func (h *taggedHandler) Message(c *Conn, line []byte) {
	n, _ := c.Value().(int)
	c.SetValue(n + 1)
	fmt.Fprintf(c, "%s[%s] %s %d\n", h.tag, h.state, line, n+1)
}

func (h *taggedHandler) Save(c *Conn, to []byte) ([]byte, error) {
	n, _ := c.Value().(int)
	return fmt.Appendf(to, "%s %d", h.tag, n), nil
}

func (h *taggedHandler) Restore(c *Conn, state []byte) error {
	var tag string
	var n int
	if _, err := fmt.Sscan(string(state), &tag, &n); err != nil || tag != h.tag {
		return fmt.Errorf("state %q for handler %s", state, h.tag)
	}
	c.SetValue(n)
	return nil
}

func (h *taggedHandler) SaveState(w io.Writer) error {
	_, err := io.WriteString(w, "state of "+h.tag)
	return err
}

func (h *taggedHandler) RestoreState(r io.Reader) error {
	state, err := io.ReadAll(r)
	h.state = string(state)
	return err
}

// In an upgrade, connections and states continue with the handler of their listener, wherever that is in the new
// process.
func TestUpgradeListenerHandlers(t *testing.T) {
	const other, a, b, renamed, gone = "127.0.0.1:0", "127.0.0.2:0", "127.0.0.3:0", "127.0.0.4:0", "127.0.0.5:0"
	for _, c := range []struct {
		from, to string
		workers  int
	}{{Epoll, Goroutine, 0}, {Goroutine, Uring, 0}, {Uring, Epoll, 0}, {Uring, Epoll, 2}, {Goroutine, Goroutine, 2}} {
		t.Run(fmt.Sprintf("%s to %s with %d workers", c.from, c.to, c.workers), func(t *testing.T) {
			s, _ := startUpgradable(t,
				successorConfig{Addr: other, Model: c.from, Processes: c.workers, Tagged: []taggedListener{{"a", "", a}, {"gone", "", gone}, {"b", "b", b}, {"c", "c", renamed}}},
				successorConfig{Model: c.to, Processes: c.workers, Tagged: []taggedListener{{"c", "c", "127.0.0.6:0"}, {"b", "new name", b}, {"a", "", a}}})
			at := s.listenerAddrs()
			onServer, onA, onGone, onB, onC := dial(t, at[0]), dial(t, at[1]), dial(t, at[2]), dial(t, at[3]), dial(t, at[4])
			onServer.ExchangeLine("x", "x 1")
			onA.ExchangeLine("x", "a[] x 1")
			onB.ExchangeLine("x", "b[] x 1")
			onC.ExchangeLine("x", "c[] x 1")
			onGone.ExchangeLine("x", "gone[] x 1")
			u := s.upgradeMoving(t, 5, nil)
			expectNoError(t, s.waitResult(t))
			state := func(tag string) string {
				if c.workers > 0 { // workers have none
					return ""
				}
				return "state of " + tag
			}
			onServer.ExchangeLine("x", "x 2")
			onA.ExchangeLine("x", "a["+state("a")+"] x 2")
			onB.ExchangeLine("x", "b["+state("b")+"] x 2")
			onC.ExchangeLine("x", "c["+state("c")+"] x 2")
			onGone.ExpectClosed()
			dial(t, at[1]).ExchangeLine("x", "a["+state("a")+"] x 1")
			dial(t, at[3]).ExchangeLine("x", "b["+state("b")+"] x 1")
			if c.workers > 0 {
				requireNoError(t, syscall.Kill(u.PID, syscall.SIGTERM))
			} else {
				stopServerAt(t, at[0])
			}
			waitProcessEnd(t, u.PID)
		})
	}
}
