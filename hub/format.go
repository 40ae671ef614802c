package hub

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/myriad-go/myriad/web"
)

// format is how a message is written for a client.
type format uint8

const (
	resp2   format = iota // an array of the Redis protocol
	resp3                 // a push of its version 3
	socket                // a WebSocket's frame with a JSON object
	stream                // a server-sent event with the same object
	formats = iota
)

// append appends a message of the topic name as the subscribers of t, which is that topic or
// a pattern that matches it, get it. id is that of a message that is kept, which the Redis protocol has
// no room for.
func (f format) append(to []byte, t *topic, name string, message []byte, id string) []byte {
	switch f {
	case socket:
		return append(to, web.Frame(web.Text, event(t, name, message, id))...)
	case stream:
		return append(to, web.Event{ID: id, Data: string(event(t, name, message, id))}.Bytes()...)
	}
	head := byte('*')
	if f == resp3 {
		head = '>'
	}
	to = append(to, head)
	switch t.kind {
	case Pattern:
		to = append(to, "4\r\n$8\r\npmessage\r\n"...)
		to = appendBulk(to, t.name)
	case Sharded:
		to = append(to, "3\r\n$8\r\nsmessage\r\n"...)
	default:
		to = append(to, "3\r\n$7\r\nmessage\r\n"...)
	}
	return appendBulk(appendBulk(to, name), message)
}

// appendBulk appends a bulk string of the Redis protocol.
func appendBulk[T string | []byte](to []byte, s T) []byte {
	to = append(to, '$')
	to = strconv.AppendInt(to, int64(len(s)), 10)
	to = append(to, "\r\n"...)
	to = append(to, s...)
	return append(to, "\r\n"...)
}

// event is a message as JSON. What is not UTF-8 goes as base64.
func event(t *topic, name string, message []byte, id string) []byte {
	e := struct {
		Op      string `json:"op"`
		ID      string `json:"id,omitempty"`
		Pattern string `json:"pattern,omitempty"`
		Topic   string `json:"topic"`
		Data    string `json:"data,omitempty"`
		Base64  string `json:"base64,omitempty"`
	}{Op: "message", ID: id, Topic: name}
	if t.kind == Pattern {
		e.Pattern = t.name
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
func (f format) appendPosition(to []byte, at Position) []byte {
	if f != stream {
		return to
	}
	return append(to, "id: "+at.String()+"\n\n"...) // without data it is no event
}

// appendGap appends that some of what was published to topics up to a position is gone. There is one of
// them, but for a stream. The Redis protocol has no such message.
func (f format) appendGap(to []byte, topics []*topic, at Position) []byte {
	if f != socket && f != stream {
		return to
	}
	e := struct {
		Op      string `json:"op"`
		ID      string `json:"id"`
		Pattern string `json:"pattern,omitempty"`
		Topic   string `json:"topic,omitempty"`
	}{Op: "gap", ID: at.String()}
	if t := topics[0]; len(topics) == 1 && t.kind == Pattern {
		e.Pattern = t.name
	} else if len(topics) == 1 {
		e.Topic = t.name
	}
	p, _ := json.Marshal(e) // of strings, which can't fail
	if f == socket {
		return append(to, web.Frame(web.Text, p)...)
	}
	return append(to, web.Event{ID: e.ID, Name: e.Op, Data: string(p)}.Bytes()...)
}

// buffers are for encoding messages.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxKeptBuffer is the largest buffer that is used again.
const maxKeptBuffer = 64 << 10

func putBuffer(b *[]byte) {
	if cap(*b) <= maxKeptBuffer {
		buffers.Put(b)
	}
}
