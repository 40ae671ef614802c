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

// framing has messages travel as those of WebSockets: it asks for the upgrade,
// puts a frame around each message, and takes the answers out of theirs.
type framing struct {
	inner  checker
	table  *connTable
	host   string
	path   string
	header http.Header
	whole  bool // each message of the server is an answer
	seed   uint64
}

func newFraming(cfg *Config, inner checker, table *connTable) *framing {
	return &framing{
		inner: inner, table: table, host: cfg.host(),
		path: cfg.WebSocket.Path, header: cfg.WebSocket.Header,
		whole: cfg.Match == matchFrames,
		seed:  seedOf(cfg.Seed, seedMasks),
	}
}

// upgrade is the value of a connection until the server has agreed.
type upgrade struct {
	key    websocket.Key
	number uint32
	began  time.Duration
	why    error // that it did not
}

func (f *framing) greet(c *engine.Conn, number uint32, began time.Duration) {
	u := &upgrade{number: number, began: began}
	binary.LittleEndian.PutUint64(u.key[:], pacer.Random(seedOf(f.seed, uint64(number)), 0))
	binary.LittleEndian.PutUint64(u.key[8:], pacer.Random(seedOf(f.seed, uint64(number)), 1))
	c.SetValue(u)
	_, _ = c.Write(websocket.AppendRequest(nil, f.host, f.path, f.header, u.key)) // Closed tells why not
}

// upgrade takes the server's answer to the request for an upgrade.
func (t *traffic) upgrade(c *engine.Conn, u *upgrade, in []byte) int {
	n, err := websocket.CheckResponse(in, u.key)
	if err != nil {
		u.why = fmt.Errorf("WebSocket: %w", err)
		c.Abort(u.why)
		return len(in)
	}
	if n > 0 {
		t.upgraded(c, u.number, u.began)
	}
	return n
}

// notUpgraded counts a connection that ended before the server had agreed.
func (t *traffic) notUpgraded(u *upgrade, why error) {
	if t.closing.Load() {
		return
	}
	if u.why == nil {
		u.why = fmt.Errorf("WebSocket: %s", cause(why))
	}
	t.faults.refused(u.why)
}

func (f *framing) append(dst, message []byte, number uint32, k uint64) []byte {
	var mask [4]byte
	binary.LittleEndian.PutUint32(mask[:], uint32(pacer.Random(seedOf(f.seed, uint64(number)), k+2)))
	return websocket.AppendFrame(dst, websocket.OpText, mask, message)
}

// errClosedFrame ends a connection that the server has ended with a close frame.
var errClosedFrame = errors.New("closed by the server with a close frame")

func (f *framing) check(c *engine.Conn, l *connState, in []byte, ahead int) (h progress) {
	r := &f.table.frames[l.id]
	for h.used < len(in) && h.wrong == nil {
		part, n, err := r.Next(in[h.used:])
		if err != nil {
			h.wrong = err
		}
		if err != nil || n == 0 {
			break
		}
		h.used += n
		switch part.Kind {
		case websocket.Data:
			f.data(c, l, part, ahead, &h)
		case websocket.Ping:
			f.reply(c, websocket.OpPong, part.Payload)
		case websocket.Close:
			f.reply(c, websocket.OpClose, part.Payload)
			c.CloseWith(errClosedFrame)
			return h
		}
	}
	return h
}

func (f *framing) data(c *engine.Conn, l *connState, part websocket.Part, ahead int, h *progress) {
	if !f.whole {
		g := f.inner.check(c, l, part.Payload, ahead+h.answers)
		h.answers += g.answers
		h.bytes += g.bytes
		if h.wrong = g.wrong; g.wrong != nil {
			h.used -= len(part.Payload) - g.used
		}
		return
	}
	h.bytes += len(part.Payload)
	if !part.Last {
		return
	}
	if ahead+h.answers >= int(l.inFlight) {
		h.wrong = errMuch
		return
	}
	h.answers++
}

// reply answers a control frame; its mask need not be random.
func (f *framing) reply(c *engine.Conn, op websocket.Opcode, payload []byte) {
	_, _ = c.Write(websocket.AppendFrame(nil, op, [4]byte{}, payload)) // Closed tells why not
}

func (f *framing) expects(l *connState) []byte { return f.inner.expects(l) }
