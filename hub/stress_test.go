package hub

import (
	"bufio"
	"fmt"
	"io"
	"maps"
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

// TestStress subscribes, publishes, leaves and kills at random. Nobody may get a message before its SUBSCRIBE or
// after its UNSUBSCRIBE is confirmed, each publisher's messages must be ordered, and nothing may remain.
func TestStress(t *testing.T) {
	clients, steps := 100, 100
	if testing.Short() {
		clients, steps = 20, 50
	}
	const delayed = "delayed"
	for _, name := range append(tcp.Models(), tcp.Auto, delayed) {
		steps, model, delay := steps, name, time.Duration(0)
		switch name {
		case tcp.Auto: // its workers are slower
			steps /= 5
		case delayed:
			steps /= 5
			model, delay = tcp.Models()[len(tcp.Models())-1], 5*time.Millisecond
		}
		t.Run(name, func(t *testing.T) {
			h := new(Hub)
			limits := tcp.Limits{MaxUnsent: 16 << 20, MaxMessage: 1 << 20}
			srv := &tcp.Server{Model: model, WriteDelay: delay, Handler: h.Handler(), Loops: 2, Limits: limits}
			addr, _ := testserver.Start(t, srv)
			var connections sync.Map // addresses of clients by number
			var all sync.WaitGroup
			for i := range clients {
				all.Go(func() {
					s := stressClient{t: t, rand: rand.New(rand.NewPCG(uint64(i), 1))}
					s.randomAddr = func() any { a, _ := connections.Load(s.rand.IntN(clients)); return a }
					for n, left := 0, steps; left > 0; n++ {
						c, err := net.Dial("tcp", addr)
						if err != nil {
							t.Error(err)
							return
						}
						connections.Store(i, c.LocalAddr())
						s.name = fmt.Sprint(i, ".", n)
						left -= s.runRandomCommands(c, left)
						c.Close()
					}
				})
			}
			all.Wait()
			testkit.WaitFor(t, "all connections have closed", func() bool { return srv.Stats().Open == 0 })
			expectNoSubscriptions(t, h)
		})
	}
}

type stressClient struct {
	t          testing.TB
	rand       *rand.Rand
	randomAddr func() any // of some client
	name       string     // of its connection
	sent       int
	topics     map[string]bool // confirmed subscriptions
	last       map[string]int  // last message number by subscription and publisher
}

// runRandomCommands runs up to maxSteps commands on a connection, and returns their number.
func (s *stressClient) runRandomCommands(c net.Conn, maxSteps int) (steps int) {
	s.topics, s.last = make(map[string]bool), make(map[string]int)
	_ = c.SetDeadline(time.Now().Add(testkit.Timeout))
	r := bufio.NewReader(c)
	if resp3 := s.rand.IntN(2) == 1; resp3 {
		_, _ = io.WriteString(c, "HELLO 3\r\n")
		_, _ = testkit.ReadRESP(r)
	}
	for steps < maxSteps {
		// A few commands, then a PING that marks the end of their replies.
		var in strings.Builder
		n := 1 + s.rand.IntN(5)
		for range n {
			in.WriteString(s.randomCommand())
		}
		steps += n
		in.WriteString(testkit.RESPCommand("PING", "end"))
		if _, err := io.WriteString(c, in.String()); err != nil {
			return steps // killed
		}
		if s.rand.IntN(40) == 0 {
			return steps // before reading replies
		}
		for end := false; !end; {
			text, err := testkit.ReadRESP(r)
			if err != nil {
				return steps
			}
			end = s.checkReply(text)
		}
		if s.rand.IntN(30) == 0 {
			_, _ = io.WriteString(c, "QUIT\r\n")
		}
	}
	return steps
}

// randomCommand returns a random command. Names begin with a letter for patterns to match.
func (s *stressClient) randomCommand() string {
	name := string(rune('a'+s.rand.IntN(5))) + strconv.Itoa(s.rand.IntN(2))
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
			return testkit.RESPCommand("CLIENT", "KILL", "ADDR", fmt.Sprint(s.randomAddr()))
		}
		return testkit.RESPCommand("PUBSUB", "NUMSUB", "a0", name)
	default: // rejected for RESP2 subscribers
		s.sent++
		return testkit.RESPCommand("PUBLISH", name, fmt.Sprintf("%s %d", s.name, s.sent))
	}
}

// checkReply checks a received value and reports whether it is the reply to PING.
func (s *stressClient) checkReply(text string) (end bool) {
	v := testkit.RESPWords(text)
	switch v[0] {
	case "subscribe", "psubscribe":
		s.topics[v[0]+" "+v[1]] = true
	case "unsubscribe", "punsubscribe":
		subscription := strings.Replace(v[0], "un", "", 1) + " " + v[1]
		delete(s.topics, subscription)
		maps.DeleteFunc(s.last, func(key string, _ int) bool { return strings.HasPrefix(key, subscription+" ") })
	case "message":
		s.checkMessage("subscribe "+v[1], v[1], v[2])
	case "pmessage":
		s.checkMessage("psubscribe "+v[1], v[2], v[3])
	case "pong":
		return v[1] == "end"
	case "end":
		return true
	}
	return false
}

func (s *stressClient) checkMessage(subscription, topic, text string) {
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
