package load

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// This file has what travels in a publish/subscribe run: the protocols, and the payload.
//
// Names of topics and payloads have one length each in a run, so all that a protocol says is
// constant text around the two. A message that comes is compared with that text, byte for
// byte; nothing of it is parsed but the payload's own head.

// wire is a publish/subscribe protocol.
type wire struct {
	hello     text // a publisher says, when it is connected,
	welcome   text // and this confirms it
	subscribe text
	confirmed text // and this confirms that
	publish   text
	message   text // as a subscriber gets it
	// other takes what a server says that is none of these off in, n bytes or 0 while it is
	// not whole, with what is to be replied.
	other func(in []byte) (n int, reply []byte, err error)
}

// text is constant but for a topic's name, and a payload behind it, each of which it has or
// has not.
type text struct {
	head, mid, tail string
}

// The marks of topic and payload in the texts below. {topic-size} and {size} are their sizes.
const (
	topicMark   = "{topic}"
	payloadMark = "{payload}"
)

// topicName is what is appended to "t" as the name of a topic: so many digits.
const (
	topicDigits = 7
	maxTopics   = 10_000_000 // that many digits
	topicSize   = 1 + topicDigits
)

// newText makes a text for payloads of a size.
func newText(template string, size int) (t text) {
	template = strings.NewReplacer("{topic-size}", strconv.Itoa(topicSize), "{size}", strconv.Itoa(size)).Replace(template)
	t.head, t.tail, _ = strings.Cut(template, topicMark)
	if mid, tail, ok := strings.Cut(t.tail, payloadMark); ok {
		t.mid, t.tail = mid, tail
	}
	return t
}

func (t *text) append(dst []byte, topic uint32, payload []byte) []byte {
	dst = append(dst, t.head...)
	if t.tail != "" || t.mid != "" {
		dst = appendTopic(dst, topic)
	}
	dst = append(dst, t.mid...)
	dst = append(dst, payload...)
	return append(dst, t.tail...)
}

func appendTopic(dst []byte, topic uint32) []byte {
	dst = append(dst, "t0000000"...)
	for i := len(dst) - 1; topic > 0; i, topic = i-1, topic/10 {
		dst[i] = byte('0' + topic%10)
	}
	return dst
}

// Protocols are those of publish/subscribe. They are not to be changed.
var Protocols = []string{"redis", "nats", protocolWS}

const (
	protocolWS = "ws" // JSON as myriad hub has it
	pathWS     = "/ws"
)

// newWire makes a wire for payloads of a size.
func newWire(protocol string, size int) wire {
	at := func(template string) text { return newText(template, size) }
	switch protocol {
	case "nats":
		const connect = `CONNECT {"verbose":false,"pedantic":false}` + "\r\n"
		return wire{
			hello: at(connect + "PING\r\n"), welcome: at("PONG\r\n"),
			subscribe: at(connect + "SUB {topic} 1\r\nPING\r\n"), confirmed: at("PONG\r\n"),
			publish: at("PUB {topic} {size}\r\n{payload}\r\n"),
			message: at("MSG {topic} 1 {size}\r\n{payload}\r\n"),
			other:   lines(natsLine),
		}
	case protocolWS:
		to := func(template string) text { return newFrame(template, size, true) }
		from := func(template string) text { return newFrame(template, size, false) }
		return wire{
			hello: to(`{"op":"ping"}`), welcome: from(`{"op":"pong"}`),
			subscribe: to(`{"op":"subscribe","topic":"{topic}"}`),
			confirmed: from(`{"op":"subscribed","topic":"{topic}","count":1}`),
			publish:   to(`{"op":"publish","topic":"{topic}","data":"{payload}"}`),
			message:   from(`{"op":"message","topic":"{topic}","data":"{payload}"}`),
			other:     frames,
		}
	}
	return wire{
		hello: at("PING\r\n"), welcome: at("+PONG\r\n"),
		subscribe: at("*2\r\n$9\r\nSUBSCRIBE\r\n${topic-size}\r\n{topic}\r\n"),
		confirmed: at("*3\r\n$9\r\nsubscribe\r\n${topic-size}\r\n{topic}\r\n:1\r\n"),
		publish:   at("*3\r\n$7\r\nPUBLISH\r\n${topic-size}\r\n{topic}\r\n${size}\r\n{payload}\r\n"),
		message:   at("*3\r\n$7\r\nmessage\r\n${topic-size}\r\n{topic}\r\n${size}\r\n{payload}\r\n"),
		other:     lines(func(line string) (string, bool) { return "", strings.HasPrefix(line, ":") }),
	}
}

func natsLine(line string) (reply string, ok bool) {
	if line == "PING\r\n" {
		return "PONG\r\n", true
	}
	return "", line == "PONG\r\n" || strings.HasPrefix(line, "INFO ")
}

// newFrame is a text that is a WebSocket's frame, of a client or of a server. All zeros are a
// mask that changes nothing.
func newFrame(template string, size int, client bool) text {
	t := newText(template, size)
	n := len(t.append(nil, 0, nil))
	if t.mid != "" {
		n += size
	}
	frame := websocket.AppendFrame(nil, websocket.OpText, [4]byte{}, make([]byte, n))
	head := frame[:len(frame)-n]
	if !client {
		head = head[:len(head)-4]
		head[1] &^= 1 << 7
	}
	t.head = string(head) + t.head
	return t
}

// lines makes a wire's other, where a server says lines. know says what to reply to one, false
// where it is an error.
func lines(know func(line string) (reply string, ok bool)) func([]byte) (int, []byte, error) {
	return func(in []byte) (n int, reply []byte, err error) {
		n = bytes.IndexByte(in, '\n') + 1
		switch {
		case n > MaxLine || n == 0 && len(in) >= MaxLine:
			return 0, nil, errLongLine
		case n == 0:
			return 0, nil, nil
		}
		text, ok := know(string(in[:n]))
		if !ok {
			return 0, nil, errSays(bytes.TrimRight(in[:n], "\r\n"))
		}
		return n, []byte(text), nil
	}
}

func errSays(what []byte) error { return fmt.Errorf("the server says %s", quote(what)) }

// frames is a wire's other for WebSockets.
func frames(in []byte) (n int, reply []byte, err error) {
	var r websocket.Reader
	part, n, err := r.Next(in)
	switch {
	case err != nil || n == 0:
		return 0, nil, err
	case part.Kind == websocket.Ping:
		return n, websocket.AppendFrame(nil, websocket.OpPong, [4]byte{}, part.Payload), nil
	case part.Kind == websocket.Close:
		return 0, nil, errClosedFrame
	case part.Kind == websocket.Data && !part.Last:
		if !r.Fragmented() && len(in) < MaxLine {
			return 0, nil, nil // the rest of it
		}
		return 0, nil, errFragment
	case part.Kind == websocket.Data && !bytes.HasPrefix(part.Payload, []byte(`{"op":"published"`)):
		return 0, nil, errSays(part.Payload)
	}
	return n, nil, nil
}

// takeOther takes what is no message off in; n is 0 while it is not whole.
func (w *wire) takeOther(c *engine.Conn, in []byte) (n int, err error) {
	n, reply, err := w.other(in)
	if len(reply) > 0 {
		_, _ = c.Write(reply) // Closed tells why not
	}
	return n, err
}

// payload makes and checks what is published:
//
//	publisher   message         planned time      check     filler
//	├ 4 digits ┼ 12 digits ────┼ 16 digits ──────┼ 8 ──────┼ the rest ─┤
//
// Digits are hexadecimal. The time is in nanoseconds since PubSub.Since. The check is made
// of the seed and the three before it, and the filler is the publisher's for that message.
type payload struct {
	seed   uint64
	filler *ring
}

const (
	publisherDigits = 4
	numberDigits    = 12
	timeDigits      = 16
	checkDigits     = 8
	payloadHead     = publisherDigits + numberDigits + timeDigits + checkDigits
	// MinPayload is the size of the shortest payload of a publish/subscribe run, in bytes.
	MinPayload = payloadHead + 8
)

func newPayload(cfg *Config) payload {
	p := payload{seed: seedOf(cfg.Seed, seedPayload), filler: &ring{text: newBlock(cfg.Size-payloadHead, cfg.Seed)}}
	const plain = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" // no JSON escapes them
	for i, b := range p.filler.text.bytes {
		p.filler.text.bytes[i] = plain[int(b)%len(plain)]
	}
	return p
}

func (p *payload) check(publisher uint32, k, at uint64) uint64 {
	return pacer.Random(p.seed^uint64(publisher)<<48^k, at) & 0xffffffff
}

// append appends message number k of a publisher, planned for a time.
func (p *payload) append(dst []byte, publisher uint32, k, at uint64) []byte {
	dst = appendHex(dst, uint64(publisher), publisherDigits)
	dst = appendHex(dst, k, numberDigits)
	dst = appendHex(dst, at, timeDigits)
	dst = appendHex(dst, p.check(publisher, k, at), checkDigits)
	return append(dst, p.filler.message(nil, publisher, k)...)
}

var errPayload = errors.New("load: the payload is not what was published")

// read checks a payload, and says whose it is.
func (p *payload) read(in []byte) (publisher uint32, k, at uint64, err error) {
	from, ok1 := readHex(in[:publisherDigits])
	k, ok2 := readHex(in[publisherDigits:][:numberDigits])
	at, ok3 := readHex(in[publisherDigits+numberDigits:][:timeDigits])
	check, ok4 := readHex(in[payloadHead-checkDigits : payloadHead])
	publisher = uint32(from)
	if !ok1 || !ok2 || !ok3 || !ok4 || check != p.check(publisher, k, at) ||
		!bytes.Equal(in[payloadHead:], p.filler.message(nil, publisher, k)) {
		return 0, 0, 0, errPayload
	}
	return publisher, k, at, nil
}

const hexDigits = "0123456789abcdef"

// appendHex appends so many digits.
func appendHex(dst []byte, x uint64, digits int) []byte {
	dst = slices.Grow(dst, digits)[:len(dst)+digits]
	for i := len(dst) - 1; digits > 0; i, digits, x = i-1, digits-1, x>>4 {
		dst[i] = hexDigits[x&15]
	}
	return dst
}

func readHex(in []byte) (x uint64, ok bool) {
	for _, b := range in {
		switch {
		case b >= '0' && b <= '9':
			b -= '0'
		case b >= 'a' && b <= 'f':
			b -= 'a' - 10
		default:
			return 0, false
		}
		x = x<<4 | uint64(b)
	}
	return x, true
}
