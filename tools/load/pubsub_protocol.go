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

// This file contains the protocols and the payload of publish/subscribe runs.
//
// Topic names and payloads have a fixed length in a run. Each protocol message is therefore constant text around a
// topic and a payload. A received message is compared with the constant text byte for byte; only the head of the
// payload is parsed.

type pubsubProtocol struct {
	hello      wireTemplate // sent by a publisher after connecting
	welcome    wireTemplate // expected answer to hello
	subscribe  wireTemplate
	subscribed wireTemplate // expected answer to subscribe
	publish    wireTemplate
	message    wireTemplate // as subscribers receive it
	// handleOther parses input from the server other than the expected messages. n is the length of that input, 0
	// if it is incomplete. reply is the answer to send.
	handleOther func(in []byte) (n int, reply []byte, err error)
}

// wireTemplate contains a message's constant texts: head before the topic, mid before the payload, and tail.
type wireTemplate struct {
	head, mid, tail string
}

// Placeholders in templates of protocol messages.
const (
	topicMark   = "{topic}"
	payloadMark = "{payload}"
)

// Limits and sizes of topic names.
const (
	topicDigits = 7
	maxTopics   = 10_000_000
	topicSize   = 1 + topicDigits
)

func parseWireTemplate(template string, payloadSize int) (t wireTemplate) {
	template = strings.NewReplacer("{topic-size}", strconv.Itoa(topicSize), "{size}", strconv.Itoa(payloadSize)).Replace(template)
	t.head, t.tail, _ = strings.Cut(template, topicMark)
	if mid, tail, ok := strings.Cut(t.tail, payloadMark); ok {
		t.mid, t.tail = mid, tail
	}
	return t
}

func (t *wireTemplate) appendFilledIn(dst []byte, topic uint32, payload []byte) []byte {
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

// Protocols lists the protocols for publish/subscribe runs. The list must not be changed.
var Protocols = []string{"redis", "nats", protocolWS}

const (
	protocolWS = "ws" // JSON protocol of myriad hub
	pathWS     = "/ws"
)

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
			handleOther: newControlLineParser(replyToNATSControlLine),
		}
	case protocolWS:
		to := func(template string) wireTemplate { return newWSFrameTemplate(template, payloadSize, true) }
		from := func(template string) wireTemplate { return newWSFrameTemplate(template, payloadSize, false) }
		return pubsubProtocol{
			hello: to(`{"op":"ping"}`), welcome: from(`{"op":"pong"}`),
			subscribe:   to(`{"op":"subscribe","topic":"{topic}"}`),
			subscribed:  from(`{"op":"subscribed","topic":"{topic}","count":1}`),
			publish:     to(`{"op":"publish","topic":"{topic}","data":"{payload}"}`),
			message:     from(`{"op":"message","topic":"{topic}","data":"{payload}"}`),
			handleOther: parseWSControlOrPublishedAck,
		}
	}
	return pubsubProtocol{
		hello: at("PING\r\n"), welcome: at("+PONG\r\n"),
		subscribe:   at("*2\r\n$9\r\nSUBSCRIBE\r\n${topic-size}\r\n{topic}\r\n"),
		subscribed:  at("*3\r\n$9\r\nsubscribe\r\n${topic-size}\r\n{topic}\r\n:1\r\n"),
		publish:     at("*3\r\n$7\r\nPUBLISH\r\n${topic-size}\r\n{topic}\r\n${size}\r\n{payload}\r\n"),
		message:     at("*3\r\n$7\r\nmessage\r\n${topic-size}\r\n{topic}\r\n${size}\r\n{payload}\r\n"),
		handleOther: newControlLineParser(func(line string) (string, bool) { return "", strings.HasPrefix(line, ":") }),
	}
}

func replyToNATSControlLine(line string) (reply string, isExpected bool) {
	if line == "PING\r\n" {
		return "PONG\r\n", true
	}
	return "", line == "PONG\r\n" || strings.HasPrefix(line, "INFO ")
}

func newWSFrameTemplate(template string, payloadSize int, fromClient bool) wireTemplate {
	t := parseWireTemplate(template, payloadSize)
	n := len(t.appendFilledIn(nil, 0, nil))
	if t.mid != "" {
		n += payloadSize
	}
	frame := websocket.AppendMaskedFrame(nil, websocket.OpText, [4]byte{}, make([]byte, n))
	head := frame[:len(frame)-n]
	if !fromClient {
		head = head[:len(head)-4]
		head[1] &^= 1 << 7
	}
	t.head = string(head) + t.head
	return t
}

// newControlLineParser returns a function for pubsubProtocol.handleOther. For each line from the server, the function
// calls replyToLine, and replies with the result. If the reply is "", nothing is sent. If ok is false, the line is
// treated as an error.
func newControlLineParser(replyToLine func(line string) (reply string, ok bool)) func([]byte) (int, []byte, error) {
	return func(in []byte) (n int, reply []byte, err error) {
		n = bytes.IndexByte(in, '\n') + 1
		switch {
		case n > MaxLine || n == 0 && len(in) >= MaxLine:
			return 0, nil, errLongLine
		case n == 0:
			return 0, nil, nil
		}
		text, ok := replyToLine(string(in[:n]))
		if !ok {
			return 0, nil, errUnexpectedReply(bytes.TrimRight(in[:n], "\r\n"))
		}
		return n, []byte(text), nil
	}
}

func errUnexpectedReply(what []byte) error {
	return fmt.Errorf("unexpected reply %s; expected an acknowledgment or a message", quoteTruncated(what))
}

// parseWSControlOrPublishedAck implements pubsubProtocol.handleOther for WebSockets. It accepts control frames, and
// messages in which the server acknowledges a published message. It replies to pings.
func parseWSControlOrPublishedAck(in []byte) (n int, reply []byte, err error) {
	var r websocket.FrameReader
	part, n, err := r.Next(in)
	switch {
	case err != nil || n == 0:
		return 0, nil, err
	case part.Kind == websocket.Ping:
		return n, websocket.AppendMaskedFrame(nil, websocket.OpPong, [4]byte{}, part.Payload), nil
	case part.Kind == websocket.Close:
		return 0, nil, errClosedFrame
	case part.Kind == websocket.Data && !part.Last:
		if !r.IsFragmentOfMessage() && len(in) < MaxLine {
			return 0, nil, nil // incomplete
		}
		return 0, nil, errFragment
	case part.Kind == websocket.Data && !bytes.HasPrefix(part.Payload, []byte(`{"op":"published"`)):
		return 0, nil, errUnexpectedReply(part.Payload)
	}
	return n, nil, nil
}

// handleNonMessage handles input from the server that is not a published message. If the input requires a reply, it
// sends the reply. n is the number of consumed bytes. It is 0 if the input is incomplete.
func (w *pubsubProtocol) handleNonMessage(c *engine.Conn, in []byte) (n int, err error) {
	n, reply, err := w.handleOther(in)
	if len(reply) > 0 {
		_, _ = c.Write(reply) // an error reaches Closed
	}
	return n, err
}

// pubsubPayloadCodec generates and verifies published payloads:
//
//	publisher   message         planned time      checksum  filler
//	├ 4 digits ┼ 12 digits ────┼ 16 digits ──────┼ 8 ──────┼ the rest ─┤
//
// The digits are hexadecimal. The planned time is in nanoseconds since PubSub.Since. In a closed loop, messages have no
// planned time, and the field contains the time of sending.
type pubsubPayloadCodec struct {
	seed   uint64
	filler *pregeneratedPayload
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

func newPubsubPayloadCodec(cfg *Config) pubsubPayloadCodec {
	p := pubsubPayloadCodec{seed: deriveSeed(cfg.Seed, seedPayload), filler: &pregeneratedPayload{block: newRandomLinesBlock(cfg.Size-payloadHead, cfg.Seed)}}
	const plain = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz" // characters without escapes in JSON
	for i, b := range p.filler.block.bytes {
		p.filler.block.bytes[i] = plain[int(b)%len(plain)]
	}
	return p
}

func (p *pubsubPayloadCodec) checksum(publisher uint32, msgNumber, plannedAt uint64) uint64 {
	return pacer.RandomAt(p.seed^uint64(publisher)<<48^msgNumber, plannedAt) & 0xffffffff
}

func (p *pubsubPayloadCodec) appendPayload(dst []byte, publisher uint32, msgNumber, plannedAt uint64) []byte {
	dst = appendFixedHex(dst, uint64(publisher), publisherDigits)
	dst = appendFixedHex(dst, msgNumber, numberDigits)
	dst = appendFixedHex(dst, plannedAt, timeDigits)
	dst = appendFixedHex(dst, p.checksum(publisher, msgNumber, plannedAt), checksumDigits)
	return append(dst, p.filler.appendMessageReadOnlyIfNil(nil, publisher, msgNumber)...)
}

var errPayload = errors.New("load: the received payload differs from the published one")

func (p *pubsubPayloadCodec) parseAndVerifyPayload(in []byte) (publisher uint32, msgNumber, plannedAt uint64, err error) {
	from, ok1 := parseFixedHex(in[:publisherDigits])
	msgNumber, ok2 := parseFixedHex(in[publisherDigits:][:numberDigits])
	plannedAt, ok3 := parseFixedHex(in[publisherDigits+numberDigits:][:timeDigits])
	check, ok4 := parseFixedHex(in[payloadHead-checksumDigits : payloadHead])
	publisher = uint32(from)
	if !ok1 || !ok2 || !ok3 || !ok4 || check != p.checksum(publisher, msgNumber, plannedAt) ||
		!bytes.Equal(in[payloadHead:], p.filler.appendMessageReadOnlyIfNil(nil, publisher, msgNumber)) {
		return 0, 0, 0, errPayload
	}
	return publisher, msgNumber, plannedAt, nil
}

const hexDigits = "0123456789abcdef"

func appendFixedHex(dst []byte, x uint64, digits int) []byte {
	dst = slices.Grow(dst, digits)[:len(dst)+digits]
	for i := len(dst) - 1; digits > 0; i, digits, x = i-1, digits-1, x>>4 {
		dst[i] = hexDigits[x&15]
	}
	return dst
}

func parseFixedHex(in []byte) (x uint64, ok bool) {
	if len(in) == 0 || len(in) > 16 {
		return 0, false
	}
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
