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
	answerChecker
	// direct is the messageMaker where its messages lie in memory as they are sent.
	direct         *payloadCache
	frames         *wsFraming // nil but for WebSockets
	awaitsNoAnswer bool       // no answer is awaited
	hasFirst       bool       // the first message goes before the others
	fixedSize      int        // the size of every message, 0 if they differ
}

// messageMaker makes messages.
type messageMaker interface {
	// appendMessage appends message number k of a connection to dst. With a nil dst what it
	// returns can be shared, and is not to be changed.
	appendMessage(dst []byte, number uint32, k uint64) []byte
	// maxMessageLen is the most bytes that a message has.
	maxMessageLen() int
}

// answerChecker tells answers apart and compares them.
type answerChecker interface {
	// check looks at what the server has sent. It moves the connection forward over
	// what is as expected, and says how much of in that is. Of the connection's
	// messages in flight, so many have been answered already in this call.
	checkAnswers(c *engine.Conn, cs *connState, in []byte, answeredInCall int) checkResult
	// expectedBytes says what the next bytes should have been, for a report of what
	// came instead; nil if nothing was owed or it isn't known.
	expectedBytes(l *connState) []byte
}

// checkResult is what was received in a piece of input.
type checkResult struct {
	used         int   // the rest is offered again, or is wrong
	answerBytes  int   // of answers
	answers      int   // that are complete
	err          error // why the rest is wrong, nil if it isn't
	serverCloses bool  // the server closes the connection in order
}

// newScript makes the script of a configuration that has been validated.
func newScript(cfg *Config, table *connTable, onStatus func(status int)) (*script, error) {
	s := &script{awaitsNoAnswer: cfg.awaitsNoAnswers(), hasFirst: cfg.First != ""}
	messages, err := newMessageMaker(cfg)
	if err != nil {
		return nil, err
	}
	s.messageMaker = messages
	if s.direct, _ = messages.(*payloadCache); s.direct != nil {
		s.fixedSize = s.direct.maxMessageLen()
	}
	switch {
	case s.awaitsNoAnswer:
		s.answerChecker = noChecker{}
	case cfg.Match == matchFrames:
		s.answerChecker = noChecker{} // whole frames are counted by the framing
	case cfg.Match != "":
		rule, err := match.Parse(cfg.Match)
		if err != nil {
			return nil, err
		}
		s.answerChecker = &ruleChecker{rule: rule, table: table, onStatus: onStatus}
	case cfg.Answer != "":
		s.answerChecker = &payloadCache{block: newRepeatedBlock([]byte(cfg.Answer))}
	case s.direct != nil:
		s.answerChecker = s.direct
	default:
		s.answerChecker = &generatedChecker{messages}
	}
	if cfg.WebSocket != nil {
		s.frames = newWSFraming(cfg, s.answerChecker, table)
		s.answerChecker, s.direct = s.frames, nil
	}
	return s, nil
}

func newMessageMaker(cfg *Config) (messageMaker, error) {
	s := &templateMaker{seed: cfg.Seed}
	var err error
	if cfg.isTemplate() {
		s.body, err = message.Parse(cfg.Message)
	} else {
		s.cache = newPayloadCache(cfg)
	}
	if cfg.First != "" && err == nil {
		s.first, err = message.Parse(cfg.First)
	}
	if s.first == nil && s.body == nil {
		return s.cache, err
	}
	return s, err
}

// sendMessages hands n messages to a connection, the first of them number k, and says how
// many bytes they have.
func (s *script) sendMessages(c *engine.Conn, cs *connState, table *connTable, msgNumber uint64, n int) (size int) {
	if s.direct != nil {
		return s.direct.sendMessages(c, cs.number, msgNumber, n)
	}
	b := bufferPool.Get().(*[]byte)
	defer bufferPool.Put(b)
	out, plain := (*b)[:0], []byte{}
	for i := range uint64(n) {
		was := len(out)
		if s.frames != nil {
			plain = s.appendMessage(plain[:0], cs.number, msgNumber+i)
			out = s.frames.appendFrame(out, plain, cs.number, msgNumber+i)
			was = len(out) - len(plain) // what counts is the message
		} else {
			out = s.appendMessage(out, cs.number, msgNumber+i)
		}
		if table.messageSizes != nil {
			table.messageSizes[table.slotIndex(cs, msgNumber+i)] = uint32(len(out) - was)
		}
		size += len(out) - was
		if len(out) >= writeChunk {
			_, _ = c.Write(out) // Closed tells why not
			out = out[:0]
		}
	}
	_, _ = c.Write(out)
	*b = out
	return size
}

// deriveSeed is a seed of its own for one of many things that a run's seed decides.
func deriveSeed(seed, purpose uint64) uint64 { return pacer.Random(seed^0x6d797269, purpose) }

// The things that a run's seed decides, besides what each connection says.
const (
	seedMasks   = 1<<40 + iota // of WebSockets
	seedPlan                   // the times of an open loop
	seedVerify                 // the lines of verifications
	seedPayload                // what is published
)

// writeChunk is how much is written at once.
const writeChunk = 64 << 10

// bufferPool are buffers in which messages are made.
var bufferPool = sync.Pool{New: func() any { return &[]byte{} }}

// What ends a connection because of what the server sent.
var (
	errWrongAnswer = errors.New("load: the answer differs from what was expected")
	errExtraAnswer = errors.New("load: more answers than messages")
)

// templateMaker make messages from templates, but for those that lie in a ring.
type templateMaker struct {
	first, body *message.Template
	cache       *payloadCache
	seed        uint64
}

func (t *templateMaker) appendMessage(dst []byte, connNumber uint32, msgNumber uint64) []byte {
	of := message.Of{Seed: t.seed, Connection: uint64(connNumber), Message: msgNumber}
	switch {
	case msgNumber == 0 && t.first != nil:
		return t.first.Append(dst, of)
	case t.body != nil:
		return t.body.Append(dst, of)
	}
	return t.cache.appendMessage(dst, connNumber, msgNumber)
}

func (t *templateMaker) maxMessageLen() (n int) {
	for _, part := range []*message.Template{t.first, t.body} {
		if part != nil {
			n = max(n, part.MaxLen())
		}
	}
	if t.cache != nil {
		n = max(n, t.cache.maxMessageLen())
	}
	return n
}

// generatedChecker expects messages that are made anew as answers.
type generatedChecker struct{ messages messageMaker }

func (e *generatedChecker) checkAnswers(_ *engine.Conn, cs *connState, in []byte, answeredInCall int) (res checkResult) {
	b := bufferPool.Get().(*[]byte)
	want := *b
	defer func() { *b = want; bufferPool.Put(b) }()
	for res.used < len(in) {
		if answeredInCall+res.answers == int(cs.inFlight) {
			res.err = errWrongAnswer
			break
		}
		want = e.messages.appendMessage(want[:0], cs.number, cs.answered+uint64(answeredInCall+res.answers))
		pos := int(cs.answerPos)
		got := in[res.used:min(res.used+len(want)-pos, len(in))]
		same := firstDifference(got, want[pos:])
		res.used += same
		cs.answerPos += uint32(same)
		if same < len(got) {
			res.err = errWrongAnswer
			break
		}
		if pos+same == len(want) {
			res.answers++
			cs.answerPos = 0
		}
	}
	res.answerBytes = res.used
	return res
}

func (e *generatedChecker) expectedBytes(cs *connState) []byte { return expectedRest(e.messages, cs) }

// expectedRest is what the next bytes should have been, where answers are known.
func expectedRest(messages messageMaker, cs *connState) []byte {
	if cs.inFlight == 0 {
		return nil
	}
	return messages.appendMessage(nil, cs.number, cs.answered)[cs.answerPos:]
}

// ruleChecker delimits answers by a rule.
type ruleChecker struct {
	rule     *match.Rule
	table    *connTable
	onStatus func(status int) // of each HTTP response
}

func (r *ruleChecker) checkAnswers(_ *engine.Conn, cs *connState, in []byte, answeredInCall int) (res checkResult) {
	state := &r.table.matchStates[cs.index]
	res.used, res.answers, res.err = r.rule.Feed(state, in, r.onStatus)
	res.answerBytes, res.serverCloses = res.used, state.Last()
	if limit := int(cs.inFlight) - answeredInCall; res.err == nil && res.answers > limit {
		res.answers = limit
		res.err = errExtraAnswer
	}
	return res
}

func (r *ruleChecker) expectedBytes(*connState) []byte { return nil }

// noChecker awaits no answer: whatever comes is fine.
type noChecker struct{}

func (noChecker) checkAnswers(_ *engine.Conn, _ *connState, in []byte, _ int) checkResult {
	return checkResult{used: len(in), answerBytes: len(in)}
}
func (noChecker) expectedBytes(*connState) []byte { return nil }

// usesRule says whether a rule delimits the answers.
func (s *script) usesRule() bool {
	_, ok := s.answerChecker.(*ruleChecker)
	return ok
}
