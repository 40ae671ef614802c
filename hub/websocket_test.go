package hub

import (
	"bufio"
	"compress/flate"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tcp/tcptest"
)

func newPlainHub() *Hub { return &Hub{} }

// TestWebSocketOps checks each operation and the order of messages and replies.
func TestWebSocketOps(t *testing.T) {
	forEachModel(t, newPlainHub, func(t *testing.T, h *Hub, addr string) {
		p := dialWebSocket(t, addr, "")
		for _, row := range []struct{ say, hear string }{
			{`{"op":"ping","id":"a"}`, `{"op":"pong","id":"a"}`},
			{`{"op":"ping","id":null}`, `{"op":"pong"}`},
			{`{"op":"count","topic":"a","id":-1.5}`, `{"op":"count","topic":"a","subscribers":0,"id":-1.5}`},
			{`{"op":"unsubscribe","topic":"a"}`, `{"op":"unsubscribed","topic":"a","count":0}`},
			{`{"op":"subscribe","topic":"a","id":1}`, `{"op":"subscribed","topic":"a","count":1,"id":1}`},
			{`{"op":"subscribe","topic":"a","id":2}`, `{"op":"subscribed","topic":"a","count":1,"id":2}`},
			{`{"op":"subscribe","pattern":"?","id":3}`, `{"op":"subscribed","pattern":"?","count":2,"id":3}`},
			{`{"op":"count","topic":"a"}`, `{"op":"count","topic":"a","subscribers":1}`},
			{`{"op":"publish","topic":"a","data":"<\u0000ä>","id":4}`, `{"op":"message","topic":"a","data":"\u003c\u0000ä\u003e"}`},
			{``, `{"op":"message","pattern":"?","topic":"a","data":"\u003c\u0000ä\u003e"}`},
			{``, `{"op":"published","topic":"a","receivers":2,"id":4}`},
			{`{"op":"publish","topic":"b","base64":"/w=="}`, `{"op":"message","pattern":"?","topic":"b","base64":"/w=="}`},
			{``, `{"op":"published","topic":"b","receivers":1}`},
			{`{"op":"publish","topic":"b","base64":"YQ=="}`, `{"op":"message","pattern":"?","topic":"b","data":"a"}`},
			{``, `{"op":"published","topic":"b","receivers":1}`},
			{`{"op":"unsubscribe","topic":"a"}`, `{"op":"unsubscribed","topic":"a","count":1}`},
			{`{"op":"unsubscribe","pattern":"?"}`, `{"op":"unsubscribed","pattern":"?","count":0}`},
			{`{"op":"publish","topic":"a","data":"nobody"}`, `{"op":"published","topic":"a","receivers":0}`},
		} {
			if row.say != "" {
				p.sendText(row.say)
			}
			p.expectText(row.hear)
		}
	})
}

// TestWebSocketCompression checks that only large messages to sockets that accept it are compressed.
func TestWebSocketCompression(t *testing.T) {
	h := &Hub{Compression: true}
	s := serveVirtual(t, h, tcp.Limits{})
	plain := dialVirtualSocket(s, "", "")
	accepting := dialVirtualSocket(s, "", "Sec-WebSocket-Extensions: permessage-deflate\r\n")
	for _, p := range []virtualSocket{plain, accepting} {
		p.exchange(`{"op":"subscribe","topic":"a"}`, `{"op":"subscribed","topic":"a","count":1}`)
	}
	for _, size := range []int{50, 2000} {
		data := strings.Repeat("x", size)
		h.publishAll(t, "a", data)
		for p, compressed := range map[virtualSocket]bool{plain: false, accepting: size > 1000} {
			first, payload, err := testkit.ReadFrame(bufio.NewReader(strings.NewReader(p.Output())))
			if compressed {
				text, _ := io.ReadAll(flate.NewReader(strings.NewReader(payload + "\x00\x00\xff\xff\x01\x00\x00\xff\xff")))
				payload = string(text)
			}
			if want := `{"op":"message","topic":"a","data":"` + data + `"}`; err != nil || (first&0x40 != 0) != compressed || payload != want {
				t.Errorf("%d bytes, compressed %v: first byte %#x, %.50q, %v", size, compressed, first, payload, err)
			}
		}
	}
}

// TestWebSocketBadRequests checks the error for each bad request, and that the socket stays usable.
func TestWebSocketBadRequests(t *testing.T) {
	long := strings.Repeat("x", 101)
	rows := []struct{ say, why, id string }{
		{``, "the JSON is incomplete", ""},
		{`null`, `op is \"\"; expected one of auth, count, ping, publish, subscribe, unsubscribe`, ""},
		{`[{"op":"ping"}]`, "the message is a JSON array", ""},
		{`{"op":"ping"}{"op":"ping"}`, "unexpected data after the object", ""},
		{`{"op":"` + strings.Repeat("p", 1000) + `","id":7}`, `op is \"pppppppp`, "7"},
		{`{"op":1,"id":7}`, "op is a JSON number; expected a string", "7"},
		{`{"op":"ping","topics":"a","id":7}`, `unknown field \"topics\"`, "7"},
		{`{"op":"ping","topic":"a","id":7}`, "ping does not accept topic", "7"},
		{`{"op":"ping","id":{}}`, "id must be a number or a string", ""},
		{`{"op":"ping","id":"` + strings.Repeat("i", 63) + `"}`, "of at most 64 bytes", ""},
		{`{"op":"subscribe","id":7}`, "subscribe needs either topic or pattern", "7"},
		{`{"op":"subscribe","topic":"","id":7}`, errEmptyName.Error(), "7"},
		{`{"op":"subscribe","topic":"01234567890","id":7}`, errNameTooLong.Error() + ": 11 bytes; at most 10 are allowed", "7"},
		{`{"op":"subscribe","topic":"b","id":7}`, errTooManySubscriptions.Error(), "7"},
		{`{"op":"publish","topic":"a","data":"x","base64":"","id":7}`, "publish needs either data or base64", "7"},
		{`{"op":"publish","topic":"a","base64":"x","id":7}`, "illegal base64", "7"},
		{`{"op":"publish","topic":"a","data":"` + long + `","id":7}`, errMessageTooLong.Error() + ": 101 bytes; at most 100 are allowed", "7"},
		{`{"op":"unsubscribe","id":7}`, "unsubscribe needs either topic or pattern", "7"},
		{`{"op":"publish","data":"x","id":7}`, "publish needs either topic or pattern", "7"},
		{`{"op":"count","id":7}`, "count needs either topic or pattern", "7"},
		{`{"op":"auth","id":7}`, "auth needs either token, or user and password", "7"},
		{`{"op":"auth","user":"a","id":7}`, "auth needs either token, or user and password", "7"},
		{`{"op":"auth","token":"wrong","id":7}`, errWrongCredentials.Error(), "7"},
	}
	_, addr := startHub(t, &Hub{Limits: Limits{MaxName: 10, MaxSubscriptions: 1, MaxMessage: 100}})
	p := dialWebSocket(t, addr, "")
	p.exchange(`{"op":"subscribe","topic":"a"}`, `{"op":"subscribed","topic":"a","count":1}`)
	for _, row := range rows {
		p.sendText(row.say)
		_, m, err := p.Read(p.ctx)
		var have struct {
			Op, Error string
			ID        json.RawMessage
		}
		testkit.RequireNoError(t, json.Unmarshal(m, &have))
		if quoted, _ := json.Marshal(have.Error); err != nil || have.Op != "error" || !strings.Contains(string(quoted), row.why) || string(have.ID) != row.id || len(have.Error) > 400 {
			t.Errorf("%.80s: %s, %v; expected %s, with id %s", row.say, m, err, row.why, row.id)
		}
		p.exchange(`{"op":"ping"}`, `{"op":"pong"}`)
	}
	testkit.RequireNoError(t, p.Write(p.ctx, websocket.MessageBinary, []byte(`{"op":"ping"}`)))
	p.expectText(`{"op":"error","error":"bad request: the message is binary*`)
	p.exchange(`{"op":"publish","topic":"a","data":"still here"}`, `{"op":"message","topic":"a","data":"still here"}`)
	p.expectText(`{"op":"published","topic":"a","receivers":1}`)
}

func TestWebSocketClosedAfterBadRequests(t *testing.T) {
	_, addr := startHub(t, &Hub{Limits: Limits{MaxFailedLogins: maxBadRequests}})
	for _, message := range []string{`{}`, `{"op":"auth","token":"guess"}`} {
		p := dialWebSocket(t, addr, "")
		for range maxBadRequests - 1 {
			p.exchange(message, `{"op":"error","error":"*`)
		}
		p.exchange(`{"op":"ping"}`, `{"op":"pong"}`)
		for range maxBadRequests {
			p.exchange(message, `{"op":"error","error":"*`)
		}
		p.expectClose(websocket.StatusPolicyViolation)
	}
	p := dialWebSocket(t, addr, "")
	for range 2 * maxBadRequests { // other rejections don't count
		p.exchange(`{"op":"publish","topic":"","data":"x"}`, `{"op":"error","error":"*`)
	}
}

func TestWebSocketMessageSize(t *testing.T) {
	h, addr := startHub(t, &Hub{Limits: Limits{MaxMessage: 100_000}})
	p := dialWebSocket(t, addr, "")
	p.SetReadLimit(1 << 20)
	p.exchange(`{"op":"subscribe","topic":"a"}`, `{"op":"subscribed","topic":"a","count":1}`)
	data := strings.Repeat("\n\t", 50_000)
	quoted, _ := json.Marshal(data)
	p.exchange(fmt.Sprintf(`{"op":"publish","topic":"a","data":%s}`, quoted), fmt.Sprintf(`{"op":"message","topic":"a","data":%s}`, quoted))
	p.expectText(`{"op":"published","topic":"a","receivers":1}`)
	p.sendText(`{"op":"publish","topic":"a","data":"` + strings.Repeat("x", 210_000) + `"}`)
	p.expectClose(websocket.StatusMessageTooBig)
	waitForSubscribers(t, h, "a", 0)
}

func TestWebSocketReplyWithoutSpaceCloses(t *testing.T) {
	h := &Hub{}
	s := tcptest.NewServer(t, &tcp.Server{Handler: h.Handler(), Limits: tcp.Limits{MaxUnsent: 2000}})
	p := s.Dial()
	p.Send(webSocketHandshake + maskedTextFrame(`{"op":"subscribe","topic":"a"}`))
	p.Send(strings.Repeat(maskedTextFrame(`{"op":"ping"}`), 300))
	if out := p.Output(); !strings.Contains(out, "no space for replies") {
		t.Errorf("it says %.300q", out)
	}
	p.ExpectClosed(nil)
	testkit.WantEqual(t, h.topics.count.Load(), 0, "topics left")
}

const webSocketHandshake = "GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n" +
	"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"

func maskedTextFrame(text string) string {
	return string([]byte{0x81, 0x80 | byte(len(text)), 0, 0, 0, 0}) + text
}

// FuzzParseSocketRequest checks that any text is parsed into a valid operation or a short error.
func FuzzParseSocketRequest(f *testing.F) {
	for _, seed := range []string{
		`{"op":"ping","id":1}`, `{"op":"subscribe","topic":"a"}`, `{"op":"subscribe","pattern":"a*","id":"x"}`,
		`{"op":"unsubscribe","topic":"a"}`, `{"op":"publish","topic":"a","data":"x"}`, `{"op":"publish","topic":"a","base64":"eA=="}`,
		`{"op":"count","topic":"a"}`, `{"op":"auth","token":"t"}`, `{"op":"auth","user":"u","password":"p"}`,
		`{"op":"ping","id":{}}`, `{"op":1}`, `[]`, `{"op":"subscribe","topic":""}`, `{"op":"ping"} `, "{\"op\":\"\xff\"}",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, op, err := parseSocketRequest([]byte(text))
		if (err == nil) != (op.handle != nil) && err == nil {
			t.Fatalf("%q: neither an operation nor an error", text)
		}
		if err != nil && (len(err.Error()) > 500 || !utf8.ValidString(err.Error())) {
			t.Errorf("%q: %d bytes of error: %q", text, len(err.Error()), err)
		}
		if p, e := json.Marshal(socketReply{Op: "error", ID: q.ID}); e != nil || len(p) > 100 {
			t.Errorf("%q: the answer is %s, %v", text, p, e)
		}
		var any map[string]json.RawMessage
		if e := json.Unmarshal([]byte(text), &any); e != nil && err == nil {
			t.Errorf("%q is accepted, and is no object: %v", text, e)
		}
	})
}
