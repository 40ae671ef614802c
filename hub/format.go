package hub

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/myriad-go/myriad/web"
)

// messageFormat is how a message is written for a client.
type messageFormat uint8

const (
	formatRESP2     messageFormat = iota // an array of the Redis protocol
	formatRESP3                          // a push of its version 3
	formatWebSocket                      // a WebSocket's frame with a JSON object
	formatEvents                         // a server-sent event with the same object
	formatCount     = iota
)

// appendMessage appends a message of the topic name as the subscribers of t, which is that topic or
// a pattern that matches it, get it. id is that of a message that is kept, which the Redis protocol has
// no room for.
func (f messageFormat) appendMessage(dst []byte, subscribed *topic, name string, message []byte, id string) []byte {
	switch f {
	case formatWebSocket:
		return append(dst, web.Frame(web.Text, encodeMessageJSON(subscribed, name, message, id))...)
	case formatEvents:
		return append(dst, web.Event{ID: id, Data: string(encodeMessageJSON(subscribed, name, message, id))}.Bytes()...)
	}
	head := byte('*')
	if f == formatRESP3 {
		head = '>'
	}
	dst = append(dst, head)
	switch subscribed.kind {
	case Pattern:
		dst = append(dst, "4\r\n$8\r\npmessage\r\n"...)
		dst = appendBulk(dst, subscribed.name)
	case Sharded:
		dst = append(dst, "3\r\n$8\r\nsmessage\r\n"...)
	default:
		dst = append(dst, "3\r\n$7\r\nmessage\r\n"...)
	}
	return appendBulk(appendBulk(dst, name), message)
}

// appendBulk appends a bulk string of the Redis protocol.
func appendBulk[T string | []byte](dst []byte, s T) []byte {
	dst = append(dst, '$')
	dst = strconv.AppendInt(dst, int64(len(s)), 10)
	dst = append(dst, "\r\n"...)
	dst = append(dst, s...)
	return append(dst, "\r\n"...)
}

// encodeMessageJSON is a message as JSON. What is not UTF-8 goes as base64.
func encodeMessageJSON(subscribed *topic, name string, message []byte, id string) []byte {
	e := struct {
		Op      string `json:"op"`
		ID      string `json:"id,omitempty"`
		Pattern string `json:"pattern,omitempty"`
		Topic   string `json:"topic"`
		Data    string `json:"data,omitempty"`
		Base64  string `json:"base64,omitempty"`
	}{Op: "message", ID: id, Topic: name}
	if subscribed.kind == Pattern {
		e.Pattern = subscribed.name
	}
	if utf8.Valid(message) {
		e.Data = string(message)
	} else {
		e.Base64 = base64.StdEncoding.EncodeToString(message)
	}
	p, _ := json.Marshal(e) // of strings, which can't fail
	return p
}

// appendPosition appends that a client has got all up to a position, as far as the format has that.
func (f messageFormat) appendPosition(dst []byte, upTo Position) []byte {
	if f != formatEvents {
		return dst
	}
	return append(dst, "id: "+upTo.String()+"\n\n"...) // without data it is no event
}

// appendGap appends that some of what was published to topics up to a position is gone. There is one of
// them, but for a stream. The Redis protocol has no such message.
func (f messageFormat) appendGap(dst []byte, topics []*topic, upTo Position) []byte {
	if f != formatWebSocket && f != formatEvents {
		return dst
	}
	e := struct {
		Op      string `json:"op"`
		ID      string `json:"id"`
		Pattern string `json:"pattern,omitempty"`
		Topic   string `json:"topic,omitempty"`
	}{Op: "gap", ID: upTo.String()}
	if t := topics[0]; len(topics) == 1 && t.kind == Pattern {
		e.Pattern = t.name
	} else if len(topics) == 1 {
		e.Topic = t.name
	}
	p, _ := json.Marshal(e) // of strings, which can't fail
	if f == formatWebSocket {
		return append(dst, web.Frame(web.Text, p)...)
	}
	return append(dst, web.Event{ID: e.ID, Name: e.Op, Data: string(p)}.Bytes()...)
}

// bufferPool are for encoding messages.
var bufferPool = sync.Pool{New: func() any { return new([]byte) }}

// maxPooledBuffer is the largest buffer that is used again.
const maxPooledBuffer = 64 << 10

func releaseBuffer(b *[]byte) {
	if cap(*b) <= maxPooledBuffer {
		bufferPool.Put(b)
	}
}
