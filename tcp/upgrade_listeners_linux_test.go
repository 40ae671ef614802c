package tcp

import (
	"fmt"
	"syscall"
	"testing"
)

type taggedListener struct{ Tag, Name, Addr string }

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
				return tag
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
