package main

import (
	"bufio"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// wanderer is a subscriber that goes to another node when its own ends.
type wanderer struct {
	*tally
	refused  atomic.Int64
	repeated atomic.Int64 // messages, by the next node: it may be behind the last one
	mu       sync.Mutex
	moved    []time.Time     // when it had subscribed again
	gaps     []time.Duration // from its last message of a connection to the first of the next
	last     time.Time       // message
	stopping atomic.Bool
	conn     net.Conn
}

// wander stays subscribed until stop, to one of the nodes at a time.
func (w *wanderer) wander(addrs []string, at int, subscribed *atomic.Int64) {
	for first := true; !w.stopping.Load(); at, first = at+1, false {
		c, err := net.DialTimeout("tcp", addrs[at%len(addrs)], patience)
		if err != nil {
			w.refused.Add(1)
			continue
		}
		w.mu.Lock()
		w.conn = c
		w.mu.Unlock()
		w.listen(c, first, subscribed)
		c.Close()
	}
}

// listen subscribes, and notes messages until the connection ends.
func (w *wanderer) listen(c net.Conn, first bool, subscribed *atomic.Int64) {
	fmt.Fprint(c, "SUBSCRIBE t\r\n")
	in := bufio.NewReader(c)
	here := newTally(w.name + ", connected once")
	defer func() { w.blame(here.wrong) }()
	for n := 0; ; n++ { // the confirmation has 6 lines, and a message 7
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		switch {
		case n == 5:
			subscribed.Add(1)
			if !first {
				w.mu.Lock()
				w.moved = append(w.moved, time.Now())
				w.mu.Unlock()
			}
		case n > 5 && (n-5)%7 == 0:
			now := time.Now()
			w.mu.Lock()
			if n == 12 && !first {
				w.gaps = append(w.gaps, now.Sub(w.last))
			}
			w.last = now
			w.mu.Unlock()
			text := strings.TrimSpace(line)
			here.note(text)
			from, _, _ := strings.Cut(text, " ")
			newest, _ := w.of(from)
			if now, _ := here.of(from); now > newest {
				w.note(text)
			} else {
				w.repeated.Add(1)
			}
		}
	}
}

// blame adds to what is wrong.
func (w *wanderer) blame(wrong []string) {
	w.tally.mu.Lock()
	defer w.tally.mu.Unlock()
	w.wrong = append(w.wrong, wrong...)
}

// TestRollingRestart ends three nodes one after the other, and starts each again, while messages
// are published and subscribers listen. Each subscriber is told to go, at the rate of the drain,
// and finds another node at once; none is refused, and on no connection
// does anything come twice or out of order.
func TestRollingRestart(t *testing.T) {
	slow(t)
	const (
		clients = 300
		rate    = 50 // clients that are told to go in a second
	)
	t.Setenv(secretVariable, "s3cret")
	var addrs, joined []string
	for i := range 3 {
		addrs, joined = append(addrs, ownAddress(9091+i)), append(joined, ownAddress(6222+i))
	}
	start := func(i int) *server {
		return startProcess(t, process(t, "hub", "--addr", addrs[i], "--cluster", joined[i], "--join", strings.Join(joined, ","),
			"--node", fmt.Sprint("hub", i+1), "--drain-rate", fmt.Sprint(rate)))
	}
	var nodes [3]*server
	for i := range nodes {
		nodes[i] = start(i)
	}
	var subscribed atomic.Int64
	var all sync.WaitGroup
	wanderers := make([]*wanderer, clients)
	for i := range wanderers {
		w := &wanderer{tally: newTally(fmt.Sprint("client ", i))}
		wanderers[i] = w
		all.Go(func() { w.wander(addrs, i%len(addrs), &subscribed) })
	}
	t.Cleanup(func() {
		for _, w := range wanderers {
			w.stopping.Store(true)
			w.mu.Lock()
			if w.conn != nil {
				w.conn.Close()
			}
			w.mu.Unlock()
		}
		all.Wait()
	})
	testkit.WaitFor(t, "all have subscribed", func() bool { return subscribed.Load() == clients })

	// One publisher, at a node that goes last; then at one that has come again.
	publish := func(addr, from string, stop <-chan struct{}) *atomic.Int64 {
		c := dial(t, addr)
		var published atomic.Int64
		all.Go(func() {
			tick := time.NewTicker(5 * time.Millisecond)
			defer tick.Stop()
			in := bufio.NewReader(c)
			for {
				select {
				case <-stop:
					return
				case <-tick.C:
				}
				fmt.Fprintf(c, "PUBLISH t \"%s %d\"\r\n", from, published.Load()+1)
				if line, err := in.ReadString('\n'); err != nil || line[0] != ':' {
					return
				}
				published.Add(1)
			}
		})
		return &published
	}
	reach := func(what, from string, published *atomic.Int64) {
		t.Helper()
		want := published.Load()
		testkit.WaitFor(t, what, func() bool {
			for _, w := range wanderers {
				if n, _ := w.of(from); n <= want {
					return false
				}
			}
			return true
		})
	}
	var spreads []time.Duration
	restart := func(i int) {
		t.Helper()
		moves := func() (times []time.Time) {
			for _, w := range wanderers {
				w.mu.Lock()
				times = append(times, w.moved...)
				w.mu.Unlock()
			}
			slices.SortFunc(times, time.Time.Compare)
			return times
		}
		before := len(moves())
		_ = nodes[i].Process.Signal(syscall.SIGTERM)
		if code := nodes[i].stop(); code != 0 {
			t.Errorf("hub%d: exit code %d: %s", i+1, code, nodes[i].stderr)
		}
		var draining int
		if _, err := fmt.Sscanf(nodes[i].stderr.String()[strings.Index(nodes[i].stderr.String(), "draining"):], "draining %d", &draining); err != nil {
			t.Fatalf("%v: %s", err, nodes[i].stderr)
		}
		nodes[i] = start(i)
		// The publisher, if it was here, is no subscriber.
		testkit.WaitFor(t, "its clients are elsewhere", func() bool { return len(moves()) >= before+draining-1 })
		times := moves()[before:]
		spread := times[len(times)-1].Sub(times[0])
		spreads = append(spreads, spread)
		t.Logf("hub%d: %d clients were told to go, and had subscribed elsewhere within %v", i+1, draining, spread.Round(time.Millisecond))
		if least := time.Duration(len(times)-1) * time.Second / rate / 2; spread < least {
			t.Errorf("hub%d: all came back within %v; expected %v at the least, by the rate of the drain", i+1, spread, least)
		}
	}
	stop := make(chan struct{})
	first := publish(addrs[2], "a", stop)
	reach("messages everywhere", "a", first)
	restart(0)
	reach("messages with a new hub1", "a", first)
	restart(1)
	reach("messages with a new hub2", "a", first)
	close(stop)
	stop = make(chan struct{})
	second := publish(addrs[0], "b", stop)
	reach("messages of another publisher", "b", second)
	restart(2)
	reach("messages with a new hub3", "b", second)
	close(stop)

	var gaps []time.Duration
	var missing []int64
	var repeated int64
	for _, w := range wanderers {
		if n := w.refused.Load(); n > 0 {
			t.Errorf("%s was refused %d times", w.name, n)
		}
		repeated += w.repeated.Load()
		w.tally.mu.Lock()
		if len(w.wrong) > 0 {
			t.Errorf("%s: %.200s", w.name, w.wrong)
		}
		missing = append(missing, w.missing["a"]+w.missing["b"])
		w.tally.mu.Unlock()
		w.mu.Lock()
		gaps = append(gaps, w.gaps...)
		w.mu.Unlock()
	}
	slices.Sort(gaps)
	slices.Sort(missing)
	at := func(q float64) int { return int(q * float64(len(gaps)-1)) }
	t.Logf("%d reconnections of %d clients; time from the last message to the next: p50 %v, p99 %v, longest %v", len(gaps), clients,
		gaps[at(0.5)].Round(time.Microsecond), gaps[at(0.99)].Round(time.Microsecond), gaps[len(gaps)-1].Round(time.Microsecond))
	t.Logf("messages that a client has missed, of %d: median %d, most %d; got again from the next node: %d by all together",
		first.Load()+second.Load(), missing[clients/2], missing[clients-1], repeated)
}
