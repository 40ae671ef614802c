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

// pubsubProtocol is a publish/subscribe protocol.
type pubsubProtocol struct {
	hello      wireTemplate // a publisher says, when it is connected,
	welcome    wireTemplate // and this confirms it
	subscribe  wireTemplate
	subscribed wireTemplate // and this confirms that
	publish    wireTemplate
	message    wireTemplate // as a subscriber gets it
	// handleOther takes what a server says that is none of these off in, n bytes or 0 while it is
	// not whole, with what is to be replied.
	handleOther func(in []byte) (n int, reply []byte, err error)
}

// wireTemplate is constant but for a topic's name, and a payload behind it, each of which it has or
// has not.
type wireTemplate struct {
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

// parseWireTemplate makes a text for payloads of a size.
func parseWireTemplate(template string, payloadSize int) (t wireTemplate) {
	template = strings.NewReplacer("{topic-size}", strconv.Itoa(topicSize), "{size}", strconv.Itoa(payloadSize)).Replace(template)
	t.head, t.tail, _ = strings.Cut(template, topicMark)
	if mid, tail, ok := strings.Cut(t.tail, payloadMark); ok {
		t.mid, t.tail = mid, tail
	}
	return t
}

func (t *wireTemplate) appendMessage(dst []byte, topic uint32, payload []byte) []byte {
	dst = append(dst, t.head...)
	if t.tail != "" || t.mid != "" {
		dst = appendTopicName(dst, topic)
	}
	dst = append(dst, t.mid...)
	dst = append(dst, payload...)
	return append(dst, t.tail...)
}

func appendTopicName(dst []byte, topic uint32) []byte {
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

// newPubsubProtocol makes a wire for payloads of a size.
func newPubsubProtocol(name string, payloadSize int) pubsubProtocol {
	at := func(template string) wireTemplate { return parseWireTemplate(template, payloadSize) }
	switch name {
	case "nats":
		const connect = `CONNECT {"verbose":false,"pedantic":false}` + "\r\n"
		return pubsubProtocol{
			hello: at(connect + "PING\r\n"), welcome: at("PONG\r\n"),
			subscribe: at(connect + "SUB {topic} 1\r\nPING\r\n"), subscribed: at("PONG\r\n"),
			publish:     at("PUB {topic} {size}\r\n{payload}\r\n"),
			message:     at("MSG {topic} 1 {size}\r\n{payload}\r\n"),
			handleOther: newLineHandler(handleNATSLine),
		}
	case protocolWS:
		to := func(template string) wireTemplate { return newFrameTemplate(template, payloadSize, true) }
		from := func(template string) wireTemplate { return newFrameTemplate(template, payloadSize, false) }
		return pubsubProtocol{
			hello: to(`{"op":"ping"}`), welcome: from(`{"op":"pong"}`),
			subscribe:   to(`{"op":"subscribe","topic":"{topic}"}`),
			subscribed:  from(`{"op":"subscribed","topic":"{topic}","count":1}`),
			publish:     to(`{"op":"publish","topic":"{topic}","data":"{payload}"}`),
			message:     from(`{"op":"message","topic":"{topic}","data":"{payload}"}`),
			handleOther: handleControlFrame,
		}
	}
	return pubsubProtocol{
		hello: at("PING\r\n"), welcome: at("+PONG\r\n"),
		subscribe:   at("*2\r\n$9\r\nSUBSCRIBE\r\n${topic-size}\r\n{topic}\r\n"),
		subscribed:  at("*3\r\n$9\r\nsubscribe\r\n${topic-size}\r\n{topic}\r\n:1\r\n"),
		publish:     at("*3\r\n$7\r\nPUBLISH\r\n${topic-size}\r\n{topic}\r\n${size}\r\n{payload}\r\n"),
		message:     at("*3\r\n$7\r\nmessage\r\n${topic-size}\r\n{topic}\r\n${size}\r\n{payload}\r\n"),
		handleOther: newLineHandler(func(line string) (string, bool) { return "", strings.HasPrefix(line, ":") }),
	}
}

func handleNATSLine(line string) (reply string, ok bool) {
	if line == "PING\r\n" {
		return "PONG\r\n", true
	}
	return "", line == "PONG\r\n" || strings.HasPrefix(line, "INFO ")
}

// newFrameTemplate is a text that is a WebSocket's frame, of a client or of a server. All zeros are a
// mask that changes nothing.
func newFrameTemplate(template string, payloadSize int, fromClient bool) wireTemplate {
	t := parseWireTemplate(template, payloadSize)
	n := len(t.appendMessage(nil, 0, nil))
	if t.mid != "" {
		n += payloadSize
	}
	frame := websocket.AppendFrame(nil, websocket.OpText, [4]byte{}, make([]byte, n))
	head := frame[:len(frame)-n]
	if !fromClient {
		head = head[:len(head)-4]
		head[1] &^= 1 << 7
	}
	t.head = string(head) + t.head
	return t
}

// newLineHandler makes a wire's other, where a server says lines. know says what to reply to one, false
// where it is an error.
func newLineHandler(handleLine func(line string) (reply string, ok bool)) func([]byte) (int, []byte, error) {
	return func(in []byte) (n int, reply []byte, err error) {
		n = bytes.IndexByte(in, '\n') + 1
		switch {
		case n > MaxLine || n == 0 && len(in) >= MaxLine:
			return 0, nil, errLongLine
		case n == 0:
			return 0, nil, nil
		}
		text, ok := handleLine(string(in[:n]))
		if !ok {
			return 0, nil, errUnexpectedReply(bytes.TrimRight(in[:n], "\r\n"))
		}
		return n, []byte(text), nil
	}
}

func errUnexpectedReply(what []byte) error { return fmt.Errorf("the server says %s", quoteBytes(what)) }

// handleControlFrame is a wire's other for WebSockets.
func handleControlFrame(in []byte) (n int, reply []byte, err error) {
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
		return 0, nil, errUnexpectedReply(part.Payload)
	}
	return n, nil, nil
}

// consumeOther takes what is no message off in; n is 0 while it is not whole.
func (w *pubsubProtocol) consumeOther(c *engine.Conn, in []byte) (n int, err error) {
	n, reply, err := w.handleOther(in)
	if len(reply) > 0 {
		_, _ = c.Write(reply) // Closed tells why not
	}
	return n, err
}

// pubsubPayload makes and checks what is published:
//
//	publisher   message         planned time      check     filler
//	├ 4 digits ┼ 12 digits ────┼ 16 digits ──────┼ 8 ──────┼ the rest ─┤
//
// Digits are hexadecimal. The time is in nanoseconds since PubSub.Since. The check is made
// of the seed and the three before it, and the filler is the publisher's for that message.
type pubsubPayload struct {
	seed   uint64
	filler *payloadCache
}

const (
	publisherDigits = 4
	numberDigits    = 12
	timeDigits      = 16
	checksumDigits  = 8
	payloadHead     = publisherDigits + numberDigits + timeDigits + checksumDigits
	// MinPayload is the size of the shortest payload of a publish/subscribe run, in bytes.
	MinPayload = payloadHead + 8
)

func newPubsubPayload(cfg *Config) pubsubPayload {
	p := pubsubPayload{seed: deriveSeed(cfg.Seed, seedPayload), filler: &payloadCache{block: newRandomBlock(cfg.Size-payloadHead, cfg.Seed)}}
	const plain = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" // no JSON escapes them
	for i, b := range p.filler.block.bytes {
		p.filler.block.bytes[i] = plain[int(b)%len(plain)]
	}
	return p
}

func (p *pubsubPayload) checksum(publisher uint32, msgNumber, plannedAt uint64) uint64 {
	return pacer.Random(p.seed^uint64(publisher)<<48^msgNumber, plannedAt) & 0xffffffff
}

// appendPayload appends message number k of a publisher, planned for a time.
func (p *pubsubPayload) appendPayload(dst []byte, publisher uint32, msgNumber, plannedAt uint64) []byte {
	dst = appendHex(dst, uint64(publisher), publisherDigits)
	dst = appendHex(dst, msgNumber, numberDigits)
	dst = appendHex(dst, plannedAt, timeDigits)
	dst = appendHex(dst, p.checksum(publisher, msgNumber, plannedAt), checksumDigits)
	return append(dst, p.filler.appendMessage(nil, publisher, msgNumber)...)
}

var errPayload = errors.New("load: the payload is not what was published")

// parsePayload checks a payload, and says whose it is.
func (p *pubsubPayload) parsePayload(in []byte) (publisher uint32, msgNumber, plannedAt uint64, err error) {
	from, ok1 := parseHex(in[:publisherDigits])
	msgNumber, ok2 := parseHex(in[publisherDigits:][:numberDigits])
	plannedAt, ok3 := parseHex(in[publisherDigits+numberDigits:][:timeDigits])
	check, ok4 := parseHex(in[payloadHead-checksumDigits : payloadHead])
	publisher = uint32(from)
	if !ok1 || !ok2 || !ok3 || !ok4 || check != p.checksum(publisher, msgNumber, plannedAt) ||
		!bytes.Equal(in[payloadHead:], p.filler.appendMessage(nil, publisher, msgNumber)) {
		return 0, 0, 0, errPayload
	}
	return publisher, msgNumber, plannedAt, nil
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

func parseHex(in []byte) (x uint64, ok bool) {
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
