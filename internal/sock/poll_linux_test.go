package sock

import (
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

func TestPollWait(t *testing.T) {
	for name, coarse := range map[string]bool{"epoll_pwait2": false, "epoll_pwait": true} {
		t.Run(name, func(t *testing.T) {
			p, err := NewEpoll(4)
			testkit.RequireNoError(t, err)
			defer p.Close()
			p.noPwait2 = coarse
			eventfd, err := NewEventfd()
			testkit.RequireNoError(t, err)
			defer eventfd.Close()
			const token, wait = 7, 1500 * time.Microsecond
			if errno := p.Add(eventfd.FD, token, In); errno != 0 {
				t.Fatal(errno)
			}
			start := time.Now()
			if n := p.Wait(wait); n != 0 || time.Since(start) < wait {
				t.Errorf("Wait(%v) without an event gives %d after %v; want 0 when the time is over", wait, n, time.Since(start))
			}
			if n := p.Wait(0); n != 0 {
				t.Errorf("Wait(0) without an event gives %d, want 0", n)
			}
			eventfd.Signal()
			for _, most := range []time.Duration{-1, time.Hour} {
				if n := p.Wait(most); n != 1 {
					t.Fatalf("Wait(%v) with an event gives %d, want 1", most, n)
				}
				if got, events := p.Event(0); got != token || events&In == 0 {
					t.Errorf("the event is %#x of %d, want input of %d", events, got, token)
				}
			}
		})
	}
}
