package load

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/pacer"
	"github.com/myriad-go/myriad/tools/internal/websocket"
)

// wsFraming implements WebSockets: the handshake, and the framing of messages and answers.
type wsFraming struct {
	answers       answerChecker
	table         *connTable
	host          string
	path          string
	header        http.Header
	countMessages bool // each message from the server is an answer
	seed          uint64
}

func newWSFraming(cfg *Config, answers answerChecker, table *connTable) *wsFraming {
	return &wsFraming{
		answers: answers, table: table, host: cfg.hostHeaderOfFirstTarget(),
		path: cfg.WebSocket.Path, header: cfg.WebSocket.Header,
		countMessages: cfg.Match == matchFrames,
		seed:          deriveSeed(cfg.Seed, seedMasks),
	}
}

type wsHandshake struct {
	key      websocket.HandshakeKey
	number   uint32
	dialedAt time.Duration
	err      error // why the handshake failed
}

func (f *wsFraming) sendWSHandshakeRequest(c *engine.Conn, connNumber uint32, dialedAt time.Duration) {
	u := &wsHandshake{number: connNumber, dialedAt: dialedAt}
	binary.LittleEndian.PutUint64(u.key[:], pacer.RandomAt(deriveSeed(f.seed, uint64(connNumber)), 0))
	binary.LittleEndian.PutUint64(u.key[8:], pacer.RandomAt(deriveSeed(f.seed, uint64(connNumber)), 1))
	c.SetValue(u)
	_, _ = c.Write(websocket.AppendRequest(nil, f.host, f.path, f.header, u.key)) // Closed gets the error
}

func (g *generator) finishWSHandshakeOrAbort(c *engine.Conn, hs *wsHandshake, in []byte) (used int) {
	n, err := websocket.CheckHandshakeResponse(in, hs.key)
	if err != nil {
		hs.err = fmt.Errorf("WebSocket: %w", err)
		c.Abort(hs.err)
		return len(in)
	}
	if n > 0 {
		g.sendHelloOrRegister(c, hs.number, hs.dialedAt)
	}
	return n
}

func (g *generator) countFailedHandshakeUnlessClosing(hs *wsHandshake, reason error) {
	if g.closing.Load() {
		return
	}
	if hs.err == nil {
		hs.err = fmt.Errorf("WebSocket: %s", describeCause(reason))
	}
	g.faults.recordConnectFailureUnlessEnded(hs.err)
}

func (f *wsFraming) appendMaskedTextFrame(dst, message []byte, connNumber uint32, msgNumber uint64) []byte {
	var mask [4]byte
	binary.LittleEndian.PutUint32(mask[:], uint32(pacer.RandomAt(deriveSeed(f.seed, uint64(connNumber)), msgNumber+2)))
	return websocket.AppendMaskedFrame(dst, websocket.OpText, mask, message)
}

var errClosedFrame = errors.New("closed by the server with a close frame")

func (f *wsFraming) checkAnswers(c *engine.Conn, cs *connState, in []byte, answeredInCall int) (res checkResult) {
	r := &f.table.frameReaders[cs.index]
	for res.used < len(in) && res.err == nil {
		frame, n, err := r.Next(in[res.used:])
		if err != nil {
			res.err = err
		}
		if err != nil || n == 0 {
			break
		}
		res.used += n
		switch frame.Kind {
		case websocket.Data:
			f.checkOrCountDataFramePart(c, cs, frame, answeredInCall, &res)
		case websocket.Ping:
			f.sendControlFrame(c, websocket.OpPong, frame.Payload)
		case websocket.Close:
			f.sendControlFrame(c, websocket.OpClose, frame.Payload)
			c.CloseWith(errClosedFrame)
			return res
		}
	}
	return res
}

func (f *wsFraming) checkOrCountDataFramePart(c *engine.Conn, cs *connState, frame websocket.Part, answeredInCall int, res *checkResult) {
	if !f.countMessages {
		inner := f.answers.checkAnswers(c, cs, frame.Payload, answeredInCall+res.answers)
		res.answers += inner.answers
		res.answerBytes += inner.answerBytes
		if res.err = inner.err; inner.err != nil {
			res.used -= len(frame.Payload) - inner.used
		}
		return
	}
	res.answerBytes += len(frame.Payload)
	if !frame.Last {
		return
	}
	if answeredInCall+res.answers >= int(cs.inFlight) {
		res.err = errExtraAnswer
		res.used -= len(frame.Payload)
		return
	}
	res.answers++
}

func (f *wsFraming) sendControlFrame(c *engine.Conn, op websocket.Opcode, payload []byte) {
	_, _ = c.Write(websocket.AppendMaskedFrame(nil, op, [4]byte{}, payload)) // Closed gets the error
}

func (f *wsFraming) nextExpectedBytes(cs *connState) []byte { return f.answers.nextExpectedBytes(cs) }
