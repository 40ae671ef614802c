package load

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/coder/websocket/wsjson"

	"github.com/myriad-go/myriad/internal/testkit"
)

// broker is a publish/subscribe server of all protocols.
type broker struct {
	*testServer // nil for WebSockets
	target      string
	// deliver writes a message to a subscriber, the first on connection 0; nil writes it as it is.
	deliver deliver

	mu        sync.Mutex
	topics    map[string][]subscription
	joined    int
	delivered atomic.Int64
}

type subscription struct {
	net.Conn
	number int // in the order of their coming
}

type deliver func(c net.Conn, subscriber int, message []byte) error

func newBroker(t *testing.T, protocol string, deliver deliver) *broker {
	b := &broker{topics: make(map[string][]subscription), deliver: deliver}
	if protocol == protocolWS {
		b.target = b.webSockets(t)
		return b
	}
	b.testServer = serve(t, map[string]func(net.Conn){"redis": b.redis, "nats": b.nats}[protocol])
	b.target = b.addr()
	return b
}

// subscribe has a connection confirmed, in one piece with joining.
func (b *broker) subscribe(c net.Conn, topic, confirmed string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[topic] = append(b.topics[topic], subscription{c, b.joined})
	b.joined++
	_, _ = io.WriteString(c, confirmed)
}

func (b *broker) publish(topic string, message []byte) (receivers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range slices.Clone(b.topics[topic]) {
		var err error
		if b.deliver != nil {
			err = b.deliver(s, s.number, message)
		} else {
			_, err = s.Write(message)
		}
		if err != nil {
			s.Close()
			b.topics[topic] = slices.DeleteFunc(b.topics[topic], func(o subscription) bool { return o == s })
			continue
		}
		b.delivered.Add(1)
		receivers++
	}
	return receivers
}

func (b *broker) redis(c net.Conn) {
	in := bufio.NewReader(c)
	number := func() int {
		line, _ := in.ReadString('\n')
		n, _ := strconv.Atoi(strings.Trim(line, "*$\r\n"))
		return n
	}
	for {
		if first, err := in.Peek(4); err != nil {
			return
		} else if string(first) == "PING" {
			_, _ = in.ReadString('\n')
			_ = say(c, "+PONG\r\n")
			continue
		}
		words := make([]string, number())
		for i := range words {
			text := make([]byte, number()+2)
			if _, err := io.ReadFull(in, text); err != nil {
				return
			}
			words[i] = string(text[:len(text)-2])
		}
		switch {
		case len(words) == 2 && words[0] == "SUBSCRIBE":
			b.subscribe(c, words[1], fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(words[1]), words[1]))
		case len(words) == 3 && words[0] == "PUBLISH":
			message := fmt.Appendf(nil, "*3\r\n$7\r\nmessage\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", len(words[1]), words[1], len(words[2]), words[2])
			_ = say(c, fmt.Sprintf(":%d\r\n", b.publish(words[1], message)))
		default:
			_ = say(c, "-ERR unknown command\r\n")
		}
	}
}

func (b *broker) nats(c net.Conn) {
	_ = say(c, "INFO {}\r\n")
	in := bufio.NewReader(c)
	for {
		line, err := in.ReadString('\n')
		words := strings.Fields(line)
		switch {
		case err != nil || len(words) == 0:
			return
		case words[0] == "PING":
			_ = say(c, "PONG\r\n")
		case words[0] == "SUB":
			b.subscribe(c, words[1], "PING\r\n")
		case words[0] == "PUB":
			n, _ := strconv.Atoi(words[2])
			text := make([]byte, n+2)
			if _, err := io.ReadFull(in, text); err != nil {
				return
			}
			b.publish(words[1], fmt.Appendf(nil, "MSG %s 1 %d\r\n%s", words[1], n, text))
		case words[0] != "CONNECT" && words[0] != "PONG":
			_ = say(c, "-ERR 'Unknown Protocol Operation'\r\n")
		}
	}
}

// webSockets serves JSON by another library, at /ws.
func (b *broker) webSockets(t *testing.T) (target string) {
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	mux := http.NewServeMux()
	mux.HandleFunc("/ws", func(w http.ResponseWriter, r *http.Request) {
		wait.Add(1)
		defer wait.Done()
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return // the client has been told
		}
		defer c.CloseNow()
		conn := websocket.NetConn(ctx, c, websocket.MessageText)
		wait.Go(func() { _ = c.Ping(ctx) }) // answered while requests are read
		for {
			var q struct{ Op, Topic, Data string }
			if err := wsjson.Read(ctx, c, &q); err != nil {
				return
			}
			switch q.Op {
			case "ping":
				_ = say(conn, `{"op":"pong"}`)
			case "subscribe":
				b.subscribe(conn, q.Topic, fmt.Sprintf(`{"op":"subscribed","topic":%q,"count":1}`, q.Topic))
			case "publish":
				n := b.publish(q.Topic, fmt.Appendf(nil, `{"op":"message","topic":%q,"data":%q}`, q.Topic, q.Data))
				_ = say(conn, fmt.Sprintf(`{"op":"published","topic":%q,"receivers":%d}`, q.Topic, n))
			default:
				_ = say(conn, `{"op":"error","error":"unknown"}`)
			}
		}
	})
	s := httptest.NewServer(mux)
	t.Cleanup(func() {
		cancel()
		s.Close()
		wait.Wait()
	})
	return s.Listener.Addr().String()
}

// totals adds up what the intervals of a run say.
func totals(cfg *Config) *Interval {
	var s Interval
	cfg.Observe = func(e Event) {
		if e.Interval != nil {
			merge(&s, e.Interval, true)
		}
	}
	return &s
}

// TestPubSub publishes in a closed loop: each subscriber gets each message of its topic.
func TestPubSub(t *testing.T) {
	t.Parallel()
	for _, protocol := range Protocols {
		for _, p := range []PubSub{{Topics: 1}, {Topics: 1, Publishers: 3, Slow: 2}, {Topics: 7, Publishers: 3}, {Topics: 20, Publishers: 2}} {
			p.Protocol = protocol
			t.Run(fmt.Sprintf("%s/%d of %d", protocol, p.Topics, p.Publishers), func(t *testing.T) {
				t.Parallel()
				eachModel(t, func(t *testing.T, model string) {
					for times := range slower(t) {
						b := newBroker(t, protocol, nil)
						cfg := Config{Target: b.target, Connections: 20, Model: model, PubSub: &p, Pipeline: 4, Duration: times * 100 * time.Millisecond}
						sum := totals(&cfg)
						r := check(t, cfg)
						if err := r.Err(); err != nil {
							t.Fatal(err)
						}
						if all := 20 + r.PubSub.Publishers + p.Slow; r.Connected != all || r.Latency.Count != r.Delivered {
							t.Errorf("%d connected, want %d; %d delivered, %d latencies", r.Connected, all, r.Delivered, r.Latency.Count)
						}
						if want := b.delivered.Load(); p.Slow == 0 && sum.Delivered != want {
							t.Errorf("%d were delivered; the server has sent %d", sum.Delivered, want)
						}
						if want := sum.Sent * 20; p.Topics == 1 && sum.Delivered != want {
							t.Errorf("%d were delivered of %d published to 20, want %d", sum.Delivered, sum.Sent, want)
						}
						if r.Answered > 0 {
							break
						}
					}
				})
			})
		}
	}
}

// TestPubSubOpenLoop publishes at a rate: the time that a server takes for one message counts
// for those that wait behind it.
func TestPubSubOpenLoop(t *testing.T) {
	t.Parallel()
	const stall = 100 * time.Millisecond
	var once sync.Once
	b := newBroker(t, "redis", func(c net.Conn, subscriber int, message []byte) error {
		once.Do(func() { time.Sleep(stall) })
		_, err := c.Write(message)
		return err
	})
	cfg := Config{
		Target: b.target, Connections: 10, PubSub: &PubSub{Protocol: "redis", Topics: 2, Publishers: 2},
		Rate: Rate{PerSecond: 200}, Duration: 2 * stall,
	}
	r := check(t, cfg)
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Intended != 40 || r.Unsent != 0 || r.Latency.Count != 40*5 || !r.Corrected || r.Pipeline != pubsubPipeline {
		t.Errorf("%d planned, %d not sent, %d latencies, corrected %v, pipeline %d; want 40, none, 200 of them", r.Intended, r.Unsent, r.Latency.Count, r.Corrected, r.Pipeline)
	}
	if r.Latency.Max < stall || r.Latency.P75 < stall/10 {
		t.Errorf("latencies up to %v, 75%% up to %v; want those of messages behind a stall of %v", r.Latency.Max, r.Latency.P75, stall)
	}
}

// TestPubSubFaults has a server that does something wrong to the first subscriber once.
func TestPubSubFaults(t *testing.T) {
	t.Parallel()
	type found struct{ undelivered, doubled, reordered, mismatched, lost int64 }
	for name, test := range map[string]struct {
		deliver func(c net.Conn, messages [][]byte) error // two messages
		want    found
		says    string
	}{
		"left out":  {func(c net.Conn, m [][]byte) error { _, err := c.Write(m[1]); return err }, found{undelivered: 1}, "1 are missing"},
		"doubled":   {func(c net.Conn, m [][]byte) error { _, err := c.Write(slices.Concat(m[0], m[0], m[1])); return err }, found{doubled: 1}, "1 came twice"},
		"reordered": {func(c net.Conn, m [][]byte) error { _, err := c.Write(slices.Concat(m[1], m[0])); return err }, found{reordered: 1}, "1 in another order"},
		"another payload": {func(c net.Conn, m [][]byte) error {
			m[0][len(m[0])-3] ^= 1
			_, err := c.Write(m[0])
			return err
		}, found{mismatched: 1}, errPayload.Error()},
		"another topic": {func(c net.Conn, m [][]byte) error {
			_, err := c.Write([]byte(strings.Replace(string(m[0]), "t0000000", "t0000001", 1)))
			return err
		}, found{mismatched: 1}, errWrong.Error()},
		"another protocol": {func(c net.Conn, m [][]byte) error { return say(c, "+hello\r\n") }, found{mismatched: 1}, `the server says "+hello"`},
		"a long line":      {func(c net.Conn, m [][]byte) error { return say(c, ":"+strings.Repeat("1", MaxLine)) }, found{mismatched: 1}, errLongLine.Error()},
		"the end":          {func(c net.Conn, m [][]byte) error { return io.EOF }, found{lost: 1}, "closed by the server"},
		"piece by piece": {func(c net.Conn, m [][]byte) error {
			for _, b := range slices.Concat(m...) {
				if _, err := c.Write([]byte{b}); err != nil {
					return err
				}
			}
			return nil
		}, found{}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachModel(t, func(t *testing.T, model string) {
				for times := range slower(t) {
					var kept [][]byte
					b := newBroker(t, "redis", func(c net.Conn, subscriber int, message []byte) error {
						if subscriber == 0 && len(kept) < 2 {
							if kept = append(kept, slices.Clone(message)); len(kept) == 1 {
								return nil
							}
							return test.deliver(c, kept)
						}
						_, err := c.Write(message)
						return err
					})
					r := check(t, Config{
						Target: b.target, Connections: 3, Model: model, PubSub: &PubSub{Protocol: "redis"}, Pipeline: 4,
						Duration: times * 50 * time.Millisecond, Drain: times * 200 * time.Millisecond,
					})
					got := found{r.Undelivered, r.Doubled, r.Reordered, r.Mismatched, sumCauses(r.Lost)}
					if b.delivered.Load() < 6 || got == (found{}) && test.says != "" {
						continue // it has not come to that
					}
					if got != test.want {
						t.Errorf("got %+v, want %+v", got, test.want)
					}
					if err := r.Err(); test.says == "" && err != nil || test.says != "" && (err == nil || !strings.Contains(err.Error(), test.says)) {
						t.Errorf("error %v, want one with %q", err, test.says)
					}
					if test.want.undelivered == 0 && r.Unanswered > 0 {
						t.Errorf("%d of %d not answered: the others had to go on", r.Unanswered, r.Sent)
					}
					return
				}
			})
		})
	}
}

// TestPubSubRefused has a server that does not know the command.
func TestPubSubRefused(t *testing.T) {
	t.Parallel()
	b := newBroker(t, "nats", nil)
	r := check(t, Config{Target: b.target, Connections: 3, PubSub: &PubSub{Protocol: "redis"}, Duration: 10 * time.Millisecond})
	if err := r.Err(); err == nil || !strings.Contains(err.Error(), `redis: the server says "INFO {}"`) {
		t.Errorf("error %v; want what the server has said", err)
	}
}

// TestPubSubSlow has subscribers that never read, until the server ends them; the others get
// everything.
func TestPubSubSlow(t *testing.T) {
	t.Parallel()
	eachModel(t, func(t *testing.T, model string) {
		for times := range slower(t) {
			ended := make(chan struct{}, 4)
			b := newBroker(t, "redis", func(c net.Conn, _ int, message []byte) error {
				_ = c.SetWriteDeadline(time.Now().Add(times * 50 * time.Millisecond)) // a slow one never reads
				_, err := c.Write(message)
				if err != nil {
					ended <- struct{}{}
				}
				return err
			})
			r := check(t, Config{
				Target: b.target, Connections: 2, Model: model, PubSub: &PubSub{Protocol: "redis", Slow: 2}, Size: 64 << 10,
				Socket: Socket{ReceiveBuffer: 4096}, Duration: times * 300 * time.Millisecond,
			})
			if len(r.Lost) == 0 && len(ended) == 2 {
				if err := r.Err(); err != nil || r.SlowEnded != 2 {
					t.Errorf("%v; %d slow subscribers were ended, want 2", err, r.SlowEnded)
				}
				return
			}
		}
	})
}

// TestPubSubBounds reaches the bounds of a run: more publishers than there is room for other
// mail, and the largest messages in flight.
func TestPubSubBounds(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"publishers":     {Connections: 1, PubSub: &PubSub{Publishers: MaxPublishers}},
		"messages":       {Connections: 2, PubSub: &PubSub{Publishers: 1}, Size: MinPayload, Pipeline: 1024},
		"large messages": {Connections: 1, PubSub: &PubSub{Publishers: 1}, Size: 128 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.ReserveDescriptors(t, 2*(cfg.Connections+cfg.PubSub.Publishers)+100)
			eachModel(t, func(t *testing.T, model string) {
				b := newBroker(t, "nats", nil)
				cfg := cfg
				p := *cfg.PubSub
				p.Protocol = "nats"
				for times := range slower(t) {
					cfg.Target, cfg.Model, cfg.PubSub, cfg.Duration = b.target, model, &p, times*20*time.Millisecond
					r := check(t, cfg)
					if err := r.Err(); err != nil {
						t.Error(err)
					}
					if r.Sent > int64(cfg.Pipeline) {
						break
					}
				}
			})
		})
	}
}

// TestPayload changes each byte of a payload.
func TestPayload(t *testing.T) {
	cfg := Config{Size: MinPayload, Seed: 7}
	p := newPayload(&cfg)
	const publisher, k, at = 1023, 1<<47 + 5, 1<<62 + 3
	in := p.append(nil, publisher, k, at)
	if len(in) != MinPayload {
		t.Fatalf("%d bytes, want %d", len(in), MinPayload)
	}
	if gotPublisher, gotK, gotAt, err := p.read(in); gotPublisher != publisher || gotK != k || gotAt != at || err != nil {
		t.Errorf("read %d, %d, %d, %v", gotPublisher, gotK, gotAt, err)
	}
	for i := range in {
		for bit := range 8 {
			in[i] ^= 1 << bit
			if _, _, _, err := p.read(in); err == nil {
				t.Errorf("bit %d of byte %d is not missed: %q", bit, i, in)
			}
			in[i] ^= 1 << bit
		}
	}
}
