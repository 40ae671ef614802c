package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	mqtt "github.com/eclipse/paho.mqtt.golang"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

// session is a client of paho with the messages that it has received.
type session struct {
	mqtt.Client
	t        *testing.T
	messages chan string
	lost     chan error
}

func connect(t *testing.T, addr, id string, set func(*mqtt.ClientOptions)) *session {
	t.Helper()
	s := &session{t: t, messages: make(chan string, 100), lost: make(chan error, 1)}
	o := mqtt.NewClientOptions().AddBroker("tcp://" + addr).SetClientID(id).SetAutoReconnect(false).SetProtocolVersion(4)
	o.SetDefaultPublishHandler(func(_ mqtt.Client, m mqtt.Message) {
		s.messages <- fmt.Sprintf("%s: %s %v", m.Topic(), m.Payload(), m.Retained())
	})
	o.SetConnectionLostHandler(func(_ mqtt.Client, err error) { s.lost <- err })
	if set != nil {
		set(o)
	}
	s.Client = mqtt.NewClient(o)
	s.wait(s.Connect())
	t.Cleanup(func() { s.Disconnect(0) })
	return s
}

func (s *session) wait(token mqtt.Token) {
	s.t.Helper()
	if !token.WaitTimeout(testkit.Timeout) || token.Error() != nil {
		s.t.Fatalf("no answer, or %v", token.Error())
	}
}

func (s *session) publish(topic, payload string, qos byte, retained bool) {
	s.t.Helper()
	s.wait(s.Publish(topic, qos, retained, payload))
}

func (s *session) subscribe(filters ...string) {
	s.t.Helper()
	for _, f := range filters {
		s.wait(s.Subscribe(f, 0, nil))
	}
}

func (s *session) expect(messages ...string) {
	s.t.Helper()
	for _, want := range messages {
		if got := testkit.Receive(s.t, s.messages, want); got != want {
			s.t.Errorf("got %q; expected %q", got, want)
		}
	}
}

// TestPaho plays with clients of paho, on every model.
func TestPaho(t *testing.T) {
	for _, model := range tcp.Models() {
		t.Run(model, func(t *testing.T) {
			srv := newServer()
			srv.Model = model
			addr, _ := testserver.Start(t, srv)
			ann, bob := connect(t, addr, "ann", nil), connect(t, addr, "", nil)
			ann.subscribe("house/+/temperature", "garden/#", "exact", "#")
			ann.wait(ann.Unsubscribe("#"))
			bob.publish("house/kitchen/temperature", "21", 0, false)
			bob.publish("house/kitchen/light", "on", 0, false)
			bob.publish("garden", "a", 1, false)
			bob.publish("garden/pond/fish", strings.Repeat("x", 60_000), 0, false)
			bob.publish("exact", "", 0, false)
			ann.expect("house/kitchen/temperature: 21 false", "garden: a false", "garden/pond/fish: "+strings.Repeat("x", 60_000)+" false", "exact:  false")

			bob.publish("garden/door", "open", 0, true)
			bob.publish("garden/door", "closed", 1, true)
			bob.publish("garden/gone", "x", 0, true)
			bob.publish("garden/gone", "", 1, true)
			ann.expect("garden/door: open false", "garden/door: closed false", "garden/gone: x false", "garden/gone:  false")
			eve := connect(t, addr, "eve", func(o *mqtt.ClientOptions) { o.SetWill("garden/will", "eve has gone", 0, false) })
			eve.subscribe("+/door", "$SYS/#")
			eve.expect("garden/door: closed true")

			second := connect(t, addr, "eve", nil)
			testkit.Receive(t, eve.lost, "the loss of the first eve")
			ann.expect("garden/will: eve has gone false")
			second.subscribe("#")
			second.expect("garden/door: closed true")
			bob.publish("$SYS/x", "not for wildcards", 1, false)
			bob.publish("a/b", "c", 0, false)
			second.expect("a/b: c false")
			if len(ann.messages)+len(eve.messages) > 0 {
				t.Error("there are more messages")
			}
		})
	}
}

// encode returns a packet. first is its first byte.
func encode(first byte, body string) string {
	return string(append(appendHeader(nil, first, len(body)), body...))
}

// field returns a field with its length.
func field(s string) string { return string([]byte{byte(len(s) >> 8), byte(len(s))}) + s }

func connectPacket(flags byte, fields ...string) string {
	return encode(0x10, field("MQTT")+"\x04"+string([]byte{flags})+"\x00\x0a"+strings.Join(fields, ""))
}

// TestProtocol checks the answers to packets, and how connections close.
func TestProtocol(t *testing.T) {
	const connack, refused = "\x20\x02\x00\x00", "\x20\x02\x00"
	good := connectPacket(2, field("id"))
	filters := func(n int) (body string) {
		for i := range n {
			body += field(fmt.Sprint(i)) + "\x00"
		}
		return encode(0x82, "\x00\x01"+body)
	}
	for name, row := range map[string]struct {
		in, out string
		why     error
	}{
		"ping":                  {good + "\xc0\x00\xe0\x00", connack + "\xd0\x00", nil},
		"not CONNECT":           {"\xc0\x00", "", errNotConnected},
		"CONNECT twice":         {good + good, connack, errNotConnected},
		"another level":         {strings.Replace(good, "\x04\x02", "\x05\x02", 1), refused + "\x01", errRefused},
		"another protocol":      {strings.Replace(good, "MQTT", "MQTX", 1), "", errMalformed},
		"no id, kept session":   {connectPacket(0, field("")), refused + "\x02", errRefused},
		"no id":                 {connectPacket(2, field("")) + "\xe0\x00", connack, nil},
		"long id":               {connectPacket(2, field(strings.Repeat("x", 257))), refused + "\x02", errRefused},
		"will with QoS 3":       {connectPacket(0x1e, field("id"), field("a"), field("b")), "", errMalformed},
		"will with a wildcard":  {connectPacket(6, field("id"), field("a/#"), field("b")), "", errMalformed},
		"password, no user":     {connectPacket(0x42, field("id"), field("p")), "", errMalformed},
		"user and password":     {connectPacket(0xc2, field("id"), field("u"), field("p")) + "\xe0\x00", connack, nil},
		"more behind":           {connectPacket(2, field("id"), "x"), "", errMalformed},
		"id not UTF-8":          {connectPacket(2, field("\xff")), "", errMalformed},
		"flags of SUBSCRIBE":    {good + encode(0x80, "\x00\x01"+field("a")+"\x00"), connack, errMalformed},
		"no filter":             {good + encode(0x82, "\x00\x01"), connack, errMalformed},
		"bad wildcard":          {good + encode(0x82, "\x00\x01"+field("a/#/b")+"\x00"), connack, errMalformed},
		"QoS 3":                 {good + encode(0x82, "\x00\x01"+field("a")+"\x03"), connack, errMalformed},
		"too many levels":       {good + encode(0x82, "\x00\x01"+field(strings.Repeat("/", 16))+"\x00"), connack, errMalformed},
		"too many filters":      {good + filters(maxFilters+1) + "\xe0\x00", connack + encode(0x90, "\x00\x01"+strings.Repeat("\x00", 100)+"\x80"), nil},
		"publish to a wildcard": {good + encode(0x30, field("a/+")+"x"), connack, errMalformed},
		"publish, QoS 2":        {good + encode(0x34, field("a")+"\x00\x01x"), connack, errUnsupportedQoS},
		"publish, DUP, QoS 0":   {good + encode(0x38, field("a")+"x"), connack, errMalformed},
		"its own message":       {good + encode(0x82, "\x00\x07"+field("a")+"\x01") + encode(0x30, field("a")+"x"), connack + "\x90\x03\x00\x07\x00" + encode(0x30, field("a")+"x"), tcp.ErrDeadline},
		"unknown type":          {good + "\xf0\x00", connack, errMalformed},
		"too large":             {good + "\x30\xff\xff\x7f", connack, errTooLarge},
		"length of 5 bytes":     {good + "\x30\xff\xff\xff\xff\x01", connack, errMalformed},
		"silence":               {"", "", tcp.ErrDeadline},
	} {
		for _, size := range []int{1, 1 << 20} {
			s := tcptest.NewServer(t, newServer())
			p := s.Dial()
			for in := row.in; in != ""; {
				n, err := p.Write([]byte(in[:min(size, len(in))]))
				if in = in[n:]; err != nil {
					break
				}
			}
			p.Expect(row.out)
			if why, closed := p.Closed(); errors.Is(row.why, tcp.ErrDeadline) {
				if s.Advance(9 * time.Second); closed {
					t.Errorf("%s: closed early for %v", name, why)
				}
				s.Advance(7 * time.Second)
			}
			if why, closed := p.Closed(); !closed || !errors.Is(why, row.why) || row.why == nil && why != nil || p.Output() != "" {
				t.Errorf("%s, in pieces of %d: closed %v for %v; expected %v, and no more output", name, size, closed, why, row.why)
			}
		}
	}
}

// TestRetainedLimit checks that the number of retained messages is limited, and that subscriptions leave nothing
// behind.
func TestRetainedLimit(t *testing.T) {
	b := newBroker()
	for i := range maxRetained + 1 {
		b.publish(&publication{topic: fmt.Sprint(i), payload: []byte("x"), retained: true})
	}
	testkit.WantEqual(t, len(b.retained), maxRetained, "retained messages")
	s := tcptest.NewServer(t, &tcp.Server{Handler: tcp.Split(splitPackets, b)})
	p := s.Dial()
	p.Send(connectPacket(2, field("id")) + encode(0x82, "\x00\x01"+field("a/b/+")+"\x00"+field("a/#")+"\x00"+field("a")+"\x00"))
	p.Reset()
	p.ExpectClosed(syscall.ECONNRESET)
	if len(b.filters.children)+len(b.clients) > 0 {
		t.Errorf("left behind: %v %v", b.filters.children, b.clients)
	}
}
