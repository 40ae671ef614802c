package load

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/hub"
	"github.com/myriad-go/myriad/hub/natsd"
	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// broker is a publish/subscribe server for the protocol of Redis.
type broker struct {
	target string
	// deliver writes a message to a subscriber, the first on connection 0.
	deliver deliver

	mu     sync.Mutex
	topics map[string][]subscription
	joined int
}

type subscription struct {
	net.Conn
	number int // in the order of their coming
}

type deliver func(c net.Conn, subscriber int, message []byte) error

func newBroker(t *testing.T, deliver deliver) *broker {
	b := &broker{topics: make(map[string][]subscription), deliver: deliver}
	b.target = startTestServer(t, b.serve).addr()
	return b
}

func (b *broker) subscribe(c net.Conn, topic string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.topics[topic] = append(b.topics[topic], subscription{c, b.joined})
	b.joined++
	_ = writeText(c, fmt.Sprintf("*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n", len(topic), topic))
}

func (b *broker) publish(topic string, message []byte) (receivers int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range slices.Clone(b.topics[topic]) {
		if err := b.deliver(s, s.number, message); err != nil {
			s.Close()
			b.topics[topic] = slices.DeleteFunc(b.topics[topic], func(o subscription) bool { return o == s })
			continue
		}
		receivers++
	}
	return receivers
}

func (b *broker) serve(c net.Conn, _ int) {
	for in := bufio.NewReader(c); ; {
		command, err := testkit.ReadRESP(in)
		if command == "PING\r\n" {
			_ = writeText(c, "+PONG\r\n")
			continue
		}
		if err != nil {
			return
		}
		switch words := strings.Split(command, "\r\n"); words[2] { // each word is behind its length
		case "SUBSCRIBE":
			b.subscribe(c, words[4])
		case "PUBLISH":
			message := testkit.RESPCommand("message", words[4], words[6])
			_ = writeText(c, fmt.Sprintf(":%d\r\n", b.publish(words[4], []byte(message))))
		}
	}
}

func startHub(t *testing.T) string {
	addr, _ := testserver.Start(t, &tcp.Server{Handler: new(hub.Hub).Handler()})
	return addr
}

func startNATS(t *testing.T) string {
	s := testkit.Must(natsd.Start(natsd.Config{Addr: "127.0.0.1:0"}))(t)
	t.Cleanup(s.Close)
	return s.Addr().String()
}

// TestPubSub publishes in a closed loop: each subscriber receives each message of its topic.
func TestPubSub(t *testing.T) {
	cases := loadCases{}
	for _, protocol := range Protocols {
		for _, p := range []PubSub{{Topics: 1, Publishers: 3, Slow: 2}, {Topics: 7, Publishers: 3}, {Topics: 20, Publishers: 2}} {
			p.Protocol = protocol
			server := startHub
			if protocol == "nats" {
				server = startNATS
			}
			cfg := Config{Connections: 20, PubSub: &p, Pipeline: 4, Duration: 50 * time.Millisecond}
			cases[fmt.Sprintf("%s/%d of %d", protocol, p.Topics, p.Publishers)] = loadCase{
				server, cfg, "answered>0", fmt.Sprintf("connected==%d", 20+p.Publishers+p.Slow), "", func(t *testing.T, r *Result, told *eventLog) {
					if sent, got := told.intervals.Sent, told.intervals.Delivered; p.Topics == 1 && got != 20*sent || p.Topics == 20 && got != sent || r.Latency.Count != r.Delivered {
						t.Errorf("%d were delivered of %d published, %d latencies of %d", got, sent, r.Latency.Count, r.Delivered)
					}
				},
			}
		}
	}
	cases.run(t)
}

// TestPubSubOpenLoop publishes at a rate: a slow message delays the latencies of those queued behind it.
func TestPubSubOpenLoop(t *testing.T) {
	t.Parallel()
	const stall = 100 * time.Millisecond
	wait := sync.OnceFunc(func() { <-time.After(stall) })
	b := newBroker(t, func(c net.Conn, subscriber int, message []byte) error {
		wait()
		_, err := c.Write(message)
		return err
	})
	cfg := Config{
		Target: b.target, Connections: 10, PubSub: &PubSub{Protocol: "redis", Topics: 2, Publishers: 2},
		Rate: Rate{PerSecond: 200}, Duration: 2 * stall,
	}
	r := runToEnd(t, cfg)
	testkit.RequireNoError(t, r.Err())
	if r.Intended != 40 || r.Unsent != 0 || r.Latency.Count != 40*5 || !r.Corrected || r.Pipeline != pubsubPipeline {
		t.Errorf("%d planned, %d not sent, %d latencies, corrected %v, pipeline %d; want 40, none, 200 of them", r.Intended, r.Unsent, r.Latency.Count, r.Corrected, r.Pipeline)
	}
	if r.Latency.Max < stall || r.Latency.P75 < stall/10 {
		t.Errorf("latencies up to %v, 75%% up to %v; want those of messages behind a stall of %v", r.Latency.Max, r.Latency.P75, stall)
	}
}

func deliverSecondOnly(c net.Conn, m [][]byte) error { _, err := c.Write(m[1]); return err }

// TestPubSubFaults uses a server that makes one mistake with the first subscriber.
func TestPubSubFaults(t *testing.T) {
	write := func(choose func(m [][]byte) []byte) func(net.Conn, [][]byte) error {
		return func(c net.Conn, m [][]byte) error { _, err := c.Write(choose(m)); return err }
	}
	changed := func(change func(m []byte) []byte) func(net.Conn, [][]byte) error {
		return write(func(m [][]byte) []byte { return change(m[0]) })
	}
	pieces := func(c net.Conn, m [][]byte) (err error) {
		for _, b := range slices.Concat(m...) {
			if err == nil {
				_, err = c.Write([]byte{b})
			}
		}
		return err
	}
	cases := loadCases{}
	for name, test := range map[string]struct {
		deliver    func(c net.Conn, messages [][]byte) error // two messages
		want, says string
	}{
		"left out":         {deliverSecondOnly, "undelivered==1", "1 missing"},
		"doubled":          {write(func(m [][]byte) []byte { return slices.Concat(m[0], m[0], m[1]) }), "doubled==1 unanswered==0", "1 duplicated"},
		"reordered":        {write(func(m [][]byte) []byte { return slices.Concat(m[1], m[0]) }), "reordered==1 unanswered==0", "1 out of order"},
		"another payload":  {changed(func(m []byte) []byte { m[len(m)-3] ^= 1; return m }), "mismatched==1 unanswered==0", errPayload.Error()},
		"another topic":    {changed(func(m []byte) []byte { return bytes.Replace(m, []byte("t0000000"), []byte("t0000001"), 1) }), "mismatched==1 unanswered==0", errWrongAnswer.Error()},
		"another protocol": {changed(func([]byte) []byte { return []byte("+hello\r\n") }), "mismatched==1 unanswered==0", `unexpected reply "+hello"`},
		"a long line":      {changed(func([]byte) []byte { return []byte(":" + strings.Repeat("1", MaxLine)) }), "mismatched==1 unanswered==0", errLongLine.Error()},
		"the end":          {func(net.Conn, [][]byte) error { return io.EOF }, "lost==1 unanswered==0", "closed by the server"},
		"piece by piece":   {pieces, "errors==0", ""},
	} {
		server := func(t *testing.T) string {
			var kept [][]byte
			return newBroker(t, func(c net.Conn, subscriber int, message []byte) error {
				if subscriber == 0 && len(kept) < 2 {
					if kept = append(kept, slices.Clone(message)); len(kept) == 1 {
						return nil
					}
					return test.deliver(c, kept)
				}
				_, err := c.Write(message)
				return err
			}).target
		}
		cfg := Config{Connections: 3, PubSub: &PubSub{Protocol: "redis"}, Pipeline: 4, Duration: 50 * time.Millisecond, Drain: time.Second}
		faults := strings.Fields("undelivered doubled reordered mismatched lost")
		cases[name] = loadCase{server, cfg, "delivered>=6 " + strings.ReplaceAll(test.want, "==", ">="), test.want, test.says, func(t *testing.T, r *Result, _ *eventLog) {
			for _, fault := range faults {
				if n := r.nonTimeFiguresByName()[fault]; n > 0 && !strings.HasPrefix(test.want, fault) {
					t.Errorf("%s: %v", fault, n)
				}
			}
		}}
	}
	cases["another server"] = loadCase{startNATS, Config{PubSub: &PubSub{Protocol: "redis"}, Duration: 10 * time.Millisecond}, "", "", `redis: unexpected reply "INFO {`, nil}
	cases.run(t)
}

// TestPubSubSlow has subscribers that never read until the server disconnects them; the others receive everything.
func TestPubSubSlow(t *testing.T) {
	t.Parallel()
	for times := range growingFactors(t) {
		var ended atomic.Int64
		b := newBroker(t, func(c net.Conn, _ int, message []byte) error {
			_ = c.(subscription).Conn.(*net.TCPConn).SetWriteBuffer(4096)
			_ = c.SetWriteDeadline(time.Now().Add(times * 50 * time.Millisecond)) // a slow one never reads
			_, err := c.Write(message)
			if err != nil {
				ended.Add(1)
			}
			return err
		})
		r := runToEnd(t, Config{
			Target: b.target, Connections: 2, PubSub: &PubSub{Protocol: "redis", Slow: 2}, Size: 64 << 10,
			Socket: Socket{ReceiveBuffer: 4096}, Duration: times * 150 * time.Millisecond,
		})
		if len(r.Lost) == 0 && ended.Load() == 2 {
			if err := r.Err(); err != nil || r.SlowEnded != 2 {
				t.Errorf("%v; %d slow subscribers were ended, want 2", err, r.SlowEnded)
			}
			return
		}
	}
}

// TestPubSubBounds reaches the limits of a run: more publishers than the mailbox has space for
// otherwise, and the largest messages in flight.
func TestPubSubBounds(t *testing.T) {
	cases := loadCases{}
	for name, cfg := range map[string]Config{
		"publishers":     {Connections: 1, PubSub: &PubSub{Publishers: MaxPublishers}, Pipeline: 1},
		"messages":       {Connections: 2, PubSub: &PubSub{Publishers: 1}, Size: MinPayload, Pipeline: 1024},
		"large messages": {Connections: 1, PubSub: &PubSub{Publishers: 1}, Size: 128 << 10},
	} {
		cfg.PubSub.Protocol, cfg.Duration = "nats", 20*time.Millisecond
		cases[name] = loadCase{startNATS, cfg, fmt.Sprintf("sent>%d", cfg.Pipeline), "", "", nil}
	}
	cases.run(t)
}

// TestPayload changes each byte of a payload.
func TestPayload(t *testing.T) {
	cfg := Config{Size: MinPayload, Seed: 7}
	p := newPubsubPayloadCodec(&cfg)
	const publisher, k, at = 1023, 1<<47 + 5, 1<<62 + 3
	in := p.appendPayload(nil, publisher, k, at)
	if len(in) != MinPayload {
		t.Fatalf("%d bytes, want %d", len(in), MinPayload)
	}
	if gotPublisher, gotK, gotAt, err := p.parseAndVerifyPayload(in); gotPublisher != publisher || gotK != k || gotAt != at || err != nil {
		t.Errorf("read %d, %d, %d, %v", gotPublisher, gotK, gotAt, err)
	}
	for i := range in {
		for bit := range 8 {
			in[i] ^= 1 << bit
			if _, _, _, err := p.parseAndVerifyPayload(in); err == nil {
				t.Errorf("bit %d of byte %d is not missed: %q", bit, i, in)
			}
			in[i] ^= 1 << bit
		}
	}
}

// runGeneratorsTogether runs the parts of a publish/subscribe run, which connect one after the other, at the same time.
// All are told the numbers of published messages, except those of lost generators.
func runGeneratorsTogether(t *testing.T, cfg Config, generators int, lost ...int) []*Result {
	t.Helper()
	parts := testkit.Must(cfg.Divide(slices.Repeat([]float64{1}, generators)...))(t)
	results := make([]*Result, generators)
	var runs, publishing sync.WaitGroup
	publishing.Add(generators)
	begin, connected := make(chan float64), make(chan struct{}, generators)
	published, since := make([][]int64, generators), time.Now().Round(0)
	for i := range parts {
		p, all := parts[i], make(chan []int64, 1)
		p.PubSub.Since, p.Begin, p.Published = since, begin, all
		p.Observe = func(e Event) {
			switch e.Phase {
			case Connected:
				connected <- struct{}{}
			case Published:
				if published[i] = e.Published; slices.Contains(lost, i) {
					published[i] = slices.Repeat([]int64{-1}, len(e.Published))
				}
				publishing.Done()
				runs.Go(func() {
					publishing.Wait()
					all <- slices.Concat(published...)
				})
			}
		}
		runs.Go(func() {
			var err error
			if results[i], err = Run(context.Background(), p); err != nil {
				t.Error(err)
			}
		})
		testkit.Receive(t, connected, "connections")
	}
	close(begin)
	runs.Wait()
	return results
}

// TestPubSubShared lets two generators share the topics: messages of each reach the subscribers of
// both, and missing, duplicated and reordered ones are counted exactly.
func TestPubSubShared(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		topics, publishers int
		deliver            func(c net.Conn, m [][]byte) error // the first two of publisher 1, the other generator's, to each
		lost               []int
		want               string // at all of 6 subscribers
	}{
		"several":            {3, 5, nil, nil, "undelivered==0 doubled==0 reordered==0"},
		"one each":           {6, 3, nil, nil, "undelivered==0 doubled==0 reordered==0"},
		"left out":           {1, 2, deliverSecondOnly, nil, "undelivered==6 doubled==0 reordered==0"},
		"of one that's gone": {1, 2, deliverSecondOnly, []int{1}, "undelivered==6 doubled==0 reordered==0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for times := range growingFactors(t) {
				kept, faults := make(map[net.Conn][][]byte), int64(0)
				b := newBroker(t, func(c net.Conn, _ int, message []byte) error { // the broker's lock is held
					to := c.(subscription).Conn
					if test.deliver == nil || len(kept[to]) == 2 || !strings.Contains(string(message), "\r\n0001") {
						_, err := c.Write(message)
						return err
					}
					if kept[to] = append(kept[to], slices.Clone(message)); len(kept[to]) == 1 {
						return nil
					}
					faults++
					return test.deliver(c, kept[to])
				})
				cfg := Config{
					Target: b.target, Connections: 6, PubSub: &PubSub{Protocol: "redis", Topics: test.topics, Publishers: test.publishers},
					Rate: Rate{PerSecond: 400}, Duration: times * 100 * time.Millisecond, Drain: times * 100 * time.Millisecond,
				}
				r := testkit.Must(Merge(runGeneratorsTogether(t, cfg, 2, test.lost...)...))(t)
				if test.deliver != nil && faults < 6 {
					continue // it has not come to that
				}
				if list := unmetExpectations(t, r, test.want+" mismatched==0"); len(list) > 0 {
					t.Errorf("%q", list)
				}
				subscribers, sent := int64(6/test.topics), r.Bytes.Sent/int64(r.MessageSize)
				if got := r.Bytes.Received / int64(r.MessageSize); got != sent*subscribers-r.Undelivered {
					t.Errorf("%d of %d messages to %d subscribers were delivered; %d should be missing", got, sent, subscribers, r.Undelivered)
				}
				if r.Latency.Count < r.Intended*subscribers*2/3 {
					continue // the windows were too far apart for so short a time
				}
				h := testkit.Must(decodeHistogramOrNil(r.Histogram))(t)
				if none := h.Distribution()[0]; none.To == 0 && none.Count > 0 {
					t.Errorf("%d deliveries took no time at all: one that begins later has another time", none.Count)
				}
				return
			}
		})
	}
}

// TestPubSubPing answers the pings of NATS and of WebSockets.
func TestPubSubPing(t *testing.T) {
	for protocol, test := range map[string]struct{ ping, pong string }{
		"nats":     {"PING\r\n", "PONG\r\n"},
		protocolWS: {"\x89\x02hi", string(websocket.AppendMaskedFrame(nil, websocket.OpPong, [4]byte{}, []byte("hi")))},
	} {
		c, p := newOpenConn(newTestGenerator(t, Config{Connections: 1, Size: 64, Hold: true})), newPubsubProtocol(protocol, 64)
		if n, err := p.handleNonMessage(c, []byte(test.ping)); n != len(test.ping) || string(c.Output()) != test.pong || err != nil {
			t.Errorf("%s: %d bytes are used, the reply is %q, %v; want %q", protocol, n, c.Output(), err, test.pong)
		}
	}
}
