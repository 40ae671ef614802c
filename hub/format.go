package hub

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/myriad-go/myriad/web"
)

type messageFormat uint8

const (
	formatRESP2     messageFormat = iota // array
	formatRESP3                          // push
	formatWebSocket                      // WebSocket text frame with a JSON object
	formatEvents                         // server-sent event with the same object
	formatDeflate                        // formatWebSocket, compressed
	formatCount     = iota
)

func (f messageFormat) isWebSocket() bool { return f == formatWebSocket || f == formatDeflate }

// hasIDs reports whether messages have an id, which lets a client resume.
func (f messageFormat) hasIDs() bool { return f.isWebSocket() || f == formatEvents }

// appendMessage appends a message, encoded for a subscriber of topicOrPattern. id is "" if the message is not stored.
func (f messageFormat) appendMessage(dst []byte, topicOrPattern *topic, publishedTopic string, message []byte, id string) []byte {
	switch f {
	case formatWebSocket:
		return append(dst, web.Frame(web.Text, encodeMessageJSON(topicOrPattern, publishedTopic, message, id))...)
	case formatDeflate:
		return append(dst, web.CompressedFrame(web.Text, encodeMessageJSON(topicOrPattern, publishedTopic, message, id))...)
	case formatEvents:
		return append(dst, web.Event{ID: id, Data: string(encodeMessageJSON(topicOrPattern, publishedTopic, message, id))}.Bytes()...)
	}
	head := byte('*')
	if f == formatRESP3 {
		head = '>'
	}
	dst = append(dst, head)
	switch topicOrPattern.kind {
	case Pattern:
		dst = append(dst, "4\r\n$8\r\npmessage\r\n"...)
		dst = appendBulk(dst, topicOrPattern.name)
	case Sharded:
		dst = append(dst, "3\r\n$8\r\nsmessage\r\n"...)
	default:
		dst = append(dst, "3\r\n$7\r\nmessage\r\n"...)
	}
	return appendBulk(appendBulk(dst, publishedTopic), message)
}

func appendBulk[T string | []byte](dst []byte, text T) []byte {
	dst = append(dst, '$')
	dst = strconv.AppendInt(dst, int64(len(text)), 10)
	dst = append(dst, "\r\n"...)
	dst = append(dst, text...)
	return append(dst, "\r\n"...)
}

// jsonMessage is a message or a gap notice as JSON.
type jsonMessage struct {
	Op      string `json:"op"`
	ID      string `json:"id,omitempty"`
	Pattern string `json:"pattern,omitempty"`
	Topic   string `json:"topic,omitempty"`
	Data    string `json:"data,omitempty"`
	Base64  string `json:"base64,omitempty"`
}

// encodeMessageJSON encodes a message as a JSON object. If the message is not valid UTF-8, the object contains it in
// base64.
func encodeMessageJSON(topicOrPattern *topic, publishedTopic string, message []byte, id string) []byte {
	e := jsonMessage{Op: "message", ID: id, Topic: publishedTopic}
	if topicOrPattern.kind == Pattern {
		e.Pattern = topicOrPattern.name
	}
	if utf8.Valid(message) {
		e.Data = string(message)
	} else {
		e.Base64 = base64.StdEncoding.EncodeToString(message)
	}
	p, _ := json.Marshal(e) // strings only: can't fail
	return p
}

// appendGapNoticeUnlessRESP appends a notice that messages up to upTo may be missing. If topics has only one element,
// the notice names this topic. topics must not be empty. In RESP, which has no gap notices, the method appends nothing.
func (f messageFormat) appendGapNoticeUnlessRESP(dst []byte, topics []*topic, upTo Position) []byte {
	if !f.hasIDs() {
		return dst
	}
	e := jsonMessage{Op: "gap", ID: upTo.String()}
	if t := topics[0]; len(topics) == 1 && t.kind == Pattern {
		e.Pattern = t.name
	} else if len(topics) == 1 {
		e.Topic = t.name
	}
	p, _ := json.Marshal(e) // strings only: can't fail
	if f.isWebSocket() {
		return append(dst, web.Frame(web.Text, p)...)
	}
	return append(dst, web.Event{ID: e.ID, Name: e.Op, Data: string(p)}.Bytes()...)
}

var bufferPool = sync.Pool{New: func() any { return new([]byte) }}

const maxPooledBuffer = 64 << 10

func returnBufferToPoolUnlessLarge(b *[]byte) {
	if cap(*b) <= maxPooledBuffer {
		bufferPool.Put(b)
	}
}
