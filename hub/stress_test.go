package hub

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// TestStress has clients subscribe, publish, leave and be killed as chance has it, under each
// model. Nobody gets a message of a topic before the confirmation of SUBSCRIBE or behind that
// of UNSUBSCRIBE, each publisher's messages come in order, and in the end nothing is left.
func TestStress(t *testing.T) {
	clients, steps := 100, 100
	if testing.Short() {
		clients, steps = 20, 50
	}
	for _, model := range append(tcp.Models(), tcp.Auto) {
		steps := steps
		if model == tcp.Auto { // its workers take longer
			steps /= 5
		}
		t.Run(model, func(t *testing.T) {
			h := new(Hub)
			srv := &tcp.Server{Model: model, Handler: h.Handler(), Loops: 2, Limits: tcp.Limits{MaxUnsent: 16 << 20, MaxMessage: 1 << 20}}
			addr, _ := testserver.Start(t, srv)
			var live crowd
			var all sync.WaitGroup
			for i := range clients {
				all.Go(func() {
					s := stressor{t: t, crowd: &live, rand: rand.New(rand.NewPCG(uint64(i), 1)), topics: make(map[string]bool), last: make(map[string]int)}
					for left := steps; left > 0; {
						left -= s.live(addr, left)
					}
				})
			}
			all.Wait()
			testkit.WaitFor(t, "all connections have closed", func() bool { return srv.Stats().Open == 0 })
			expectEmpty(t, h)
		})
	}
}

// crowd are the addresses of clients, of which some are gone.
type crowd struct {
	mu    sync.Mutex
	addrs []string
}

func (c *crowd) join(addr string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addrs = append(c.addrs, addr)
}

// recent is one of those that have come last.
func (c *crowd) recent(r *rand.Rand) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.addrs[len(c.addrs)-1-r.IntN(min(len(c.addrs), 100))]
}

// stressor is a client, on one connection after another.
type stressor struct {
	t      testing.TB
	name   string // the address of its connection
	crowd  *crowd
	rand   *rand.Rand
	topics map[string]bool // kinds and names of those it has, as it has been told
	last   map[string]int  // the number of each publisher's last message, by subscription
	sent   int
}

// live does some steps on a connection, and ends it in one way or another. It says how many.
func (s *stressor) live(addr string, most int) (steps int) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		s.t.Error(err)
		return most
	}
	defer c.Close()
	s.name = c.LocalAddr().String()
	s.crowd.join(s.name)
	_ = c.SetDeadline(time.Now().Add(testkit.Timeout))
	r := bufio.NewReader(c)
	clear(s.topics)
	clear(s.last)
	if resp3 := s.rand.IntN(2) == 1; resp3 {
		_, _ = io.WriteString(c, "HELLO 3\r\n")
		_, _ = s.value(r)
	}
	for steps < most {
		// A few commands at once, and a PING, whose answer ends what they are answered with.
		var in strings.Builder
		n := 1 + s.rand.IntN(5)
		for range n {
			in.WriteString(s.command())
		}
		steps += n
		in.WriteString(testkit.RESPCommand("PING", "end"))
		if _, err := io.WriteString(c, in.String()); err != nil {
			return steps // killed
		}
		if s.rand.IntN(40) == 0 {
			return steps // in the middle of all
		}
		for end := false; !end; {
			v, err := s.value(r)
			if err != nil {
				return steps
			}
			end = s.heard(v)
		}
		if s.rand.IntN(30) == 0 {
			_, _ = io.WriteString(c, "QUIT\r\n")
		}
	}
	return steps
}

const stressTopics = 10

// command is one by chance. Names begin with a letter for patterns to match.
func (s *stressor) command() string {
	name := string(rune('a'+s.rand.IntN(stressTopics/2))) + strconv.Itoa(s.rand.IntN(2))
	switch s.rand.IntN(12) {
	case 0, 1, 2:
		return testkit.RESPCommand("SUBSCRIBE", name)
	case 3:
		return testkit.RESPCommand("SUBSCRIBE", "a0", name, "b1")
	case 4, 5:
		return testkit.RESPCommand("UNSUBSCRIBE", name)
	case 6:
		return testkit.RESPCommand("PSUBSCRIBE", name[:1]+"*")
	case 7:
		return testkit.RESPCommand("PUNSUBSCRIBE", name[:1]+"*")
	case 8:
		return "UNSUBSCRIBE\r\nPUNSUBSCRIBE\r\n"
	case 9:
		if s.rand.IntN(10) == 0 {
			return testkit.RESPCommand("CLIENT", "KILL", "ADDR", s.crowd.recent(s.rand))
		}
		return testkit.RESPCommand("PUBSUB", "NUMSUB", "a0", name)
	default: // of a subscriber with version 2 it is refused
		s.sent++
		return testkit.RESPCommand("PUBLISH", name, fmt.Sprintf("%s %d", s.name, s.sent))
	}
}

// heard takes a value that has come, and says whether it is the answer to PING.
func (s *stressor) heard(v []string) (end bool) {
	switch v[0] {
	case "subscribe", "psubscribe":
		s.topics[v[0]+" "+v[1]] = true
	case "unsubscribe", "punsubscribe":
		subscription := strings.Replace(v[0], "un", "", 1) + " " + v[1]
		delete(s.topics, subscription)
		for key := range s.last {
			if strings.HasPrefix(key, subscription+" ") {
				delete(s.last, key)
			}
		}
	case "message":
		s.message("subscribe "+v[1], v[1], v[2])
	case "pmessage":
		s.message("psubscribe "+v[1], v[2], v[3])
	case "pong":
		return v[1] == "end"
	case "end":
		return true
	}
	return false
}

func (s *stressor) message(subscription, topic, text string) {
	if !s.topics[subscription] {
		s.t.Errorf("a message of %q has come without a subscription: %s", topic, subscription)
	}
	from, number, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(number)
	key := subscription + " " + topic + " " + from
	if err != nil || n <= s.last[key] {
		s.t.Errorf("of %s comes message %q behind number %d", key, text, s.last[key])
	}
	s.last[key] = n
}

// value reads a value: the words of an array or push, or one word. No word begins as a length does.
func (s *stressor) value(r *bufio.Reader) (words []string, err error) {
	text, err := testkit.ReadRESP(r)
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\r\n") {
		if line != "" && !strings.Contains("$*>%", line[:1]) {
			words = append(words, line)
		}
	}
	return words, err
}
