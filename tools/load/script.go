package load

import (
	"errors"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
	"github.com/myriad-go/myriad/tools/internal/message"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// script is what connections send, and what they expect to receive. It does not
// change during a run; what it has to remember of a connection is in its connState
// and the table, and is touched by the connection's owner only.
type script struct {
	messageMaker
	checker
	// direct is the messageMaker where its messages lie in memory as they are sent.
	direct  *ring
	frames  *framing // nil but for WebSockets
	noReply bool     // no answer is awaited
	first   bool     // the first message goes before the others
	fixed   int      // the size of every message, 0 if they differ
}

// messageMaker makes messages.
type messageMaker interface {
	// message appends message number k of a connection to dst. With a nil dst what it
	// returns can be shared, and is not to be changed.
	message(dst []byte, number uint32, k uint64) []byte
	// longest is the most bytes that a message has.
	longest() int
}

// checker tells answers apart and compares them.
type checker interface {
	// check looks at what the server has sent. It moves the connection forward over
	// what is as expected, and says how much of in that is. Of the connection's
	// messages in flight, so many have been answered already in this call.
	check(c *engine.Conn, l *connState, in []byte, ahead int) progress
	// expects says what the next bytes should have been, for a report of what
	// came instead; nil if nothing was owed or it isn't known.
	expects(l *connState) []byte
}

// progress is what was received in a piece of input.
type progress struct {
	used    int   // the rest is offered again, or is wrong
	bytes   int   // of answers
	answers int   // that are complete
	wrong   error // why the rest is wrong, nil if it isn't
	last    bool  // the server closes the connection in order
}

// newScript makes the script of a configuration that has been validated.
func newScript(cfg *Config, table *connTable, seen func(status int)) (*script, error) {
	s := &script{noReply: cfg.noReply(), first: cfg.First != ""}
	text, err := newSource(cfg)
	if err != nil {
		return nil, err
	}
	s.messageMaker = text
	if s.direct, _ = text.(*ring); s.direct != nil {
		s.fixed = s.direct.longest()
	}
	switch {
	case s.noReply:
		s.checker = unchecked{}
	case cfg.Match == matchFrames:
		s.checker = unchecked{} // whole frames are counted by the framing
	case cfg.Match != "":
		rule, err := match.Parse(cfg.Match)
		if err != nil {
			return nil, err
		}
		s.checker = &ruled{rule: rule, table: table, seen: seen}
	case cfg.Answer != "":
		s.checker = &ring{text: repeated([]byte(cfg.Answer))}
	case s.direct != nil:
		s.checker = s.direct
	default:
		s.checker = &made{text}
	}
	if cfg.WebSocket != nil {
		s.frames = newFraming(cfg, s.checker, table)
		s.checker, s.direct = s.frames, nil
	}
	return s, nil
}

func newSource(cfg *Config) (messageMaker, error) {
	s := &templates{seed: cfg.Seed}
	var err error
	if cfg.isTemplate() {
		s.body, err = message.Parse(cfg.Message)
	} else {
		s.ring = newRing(cfg)
	}
	if cfg.First != "" && err == nil {
		s.first, err = message.Parse(cfg.First)
	}
	if s.first == nil && s.body == nil {
		return s.ring, err
	}
	return s, err
}

// say hands n messages to a connection, the first of them number k, and says how
// many bytes they have.
func (s *script) say(c *engine.Conn, l *connState, table *connTable, k uint64, n int) (size int) {
	if s.direct != nil {
		return s.direct.send(c, l.number, k, n)
	}
	b := scratch.Get().(*[]byte)
	defer scratch.Put(b)
	out, plain := (*b)[:0], []byte{}
	for i := range uint64(n) {
		was := len(out)
		if s.frames != nil {
			plain = s.message(plain[:0], l.number, k+i)
			out = s.frames.append(out, plain, l.number, k+i)
			was = len(out) - len(plain) // what counts is the message
		} else {
			out = s.message(out, l.number, k+i)
		}
		if table.sizes != nil {
			table.sizes[table.place(l, k+i)] = uint32(len(out) - was)
		}
		size += len(out) - was
		if len(out) >= sayBytes {
			_, _ = c.Write(out) // Closed tells why not
			out = out[:0]
		}
	}
	_, _ = c.Write(out)
	*b = out
	return size
}

// seedOf is a seed of its own for one of many things that a run's seed decides.
func seedOf(seed, thing uint64) uint64 { return pacer.Random(seed^0x6d797269, thing) }

// The things that a run's seed decides, besides what each connection says.
const (
	seedMasks   = 1<<40 + iota // of WebSockets
	seedPlan                   // the times of an open loop
	seedVerify                 // the lines of verifications
	seedPayload                // what is published
)

// sayBytes is how much is written at once.
const sayBytes = 64 << 10

// scratch are buffers in which messages are made.
var scratch = sync.Pool{New: func() any { return &[]byte{} }}

// What ends a connection because of what the server sent.
var (
	errWrong = errors.New("load: the answer differs from what was expected")
	errMuch  = errors.New("load: more answers than messages")
)

// templates make messages from templates, but for those that lie in a ring.
type templates struct {
	first, body *message.Template
	ring        *ring
	seed        uint64
}

func (t *templates) message(dst []byte, number uint32, k uint64) []byte {
	of := message.Of{Seed: t.seed, Connection: uint64(number), Message: k}
	switch {
	case k == 0 && t.first != nil:
		return t.first.Append(dst, of)
	case t.body != nil:
		return t.body.Append(dst, of)
	}
	return t.ring.message(dst, number, k)
}

func (t *templates) longest() (n int) {
	for _, part := range []*message.Template{t.first, t.body} {
		if part != nil {
			n = max(n, part.MaxLen())
		}
	}
	if t.ring != nil {
		n = max(n, t.ring.longest())
	}
	return n
}

// made expects messages that are made anew as answers.
type made struct{ of messageMaker }

func (e *made) check(_ *engine.Conn, l *connState, in []byte, ahead int) (h progress) {
	b := scratch.Get().(*[]byte)
	want := *b
	defer func() { *b = want; scratch.Put(b) }()
	for h.used < len(in) {
		if ahead+h.answers == int(l.inFlight) {
			h.wrong = errWrong
			break
		}
		want = e.of.message(want[:0], l.number, l.answered+uint64(ahead+h.answers))
		pos := int(l.pos)
		got := in[h.used:min(h.used+len(want)-pos, len(in))]
		same := firstDifference(got, want[pos:])
		h.used += same
		l.pos += uint32(same)
		if same < len(got) {
			h.wrong = errWrong
			break
		}
		if pos+same == len(want) {
			h.answers++
			l.pos = 0
		}
	}
	h.bytes = h.used
	return h
}

func (e *made) expects(l *connState) []byte { return owed(e.of, l) }

// owed is what the next bytes should have been, where answers are known.
func owed(of messageMaker, l *connState) []byte {
	if l.inFlight == 0 {
		return nil
	}
	return of.message(nil, l.number, l.answered)[l.pos:]
}

// ruled delimits answers by a rule.
type ruled struct {
	rule  *match.Rule
	table *connTable
	seen  func(status int) // of each HTTP response
}

func (r *ruled) check(_ *engine.Conn, l *connState, in []byte, ahead int) (h progress) {
	state := &r.table.states[l.id]
	h.used, h.answers, h.wrong = r.rule.Feed(state, in, r.seen)
	h.bytes, h.last = h.used, state.Last()
	if most := int(l.inFlight) - ahead; h.wrong == nil && h.answers > most {
		h.answers = most
		h.wrong = errMuch
	}
	return h
}

func (r *ruled) expects(*connState) []byte { return nil }

// unchecked awaits no answer: whatever comes is fine.
type unchecked struct{}

func (unchecked) check(_ *engine.Conn, _ *connState, in []byte, _ int) progress {
	return progress{used: len(in), bytes: len(in)}
}
func (unchecked) expects(*connState) []byte { return nil }

// ruled says whether a rule delimits the answers.
func (s *script) ruled() bool {
	_, ok := s.checker.(*ruled)
	return ok
}
