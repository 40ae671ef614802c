package load

import (
	"errors"
	"sort"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tools/internal/match"
	"github.com/myriad-go/myriad/tools/internal/message"
	"github.com/myriad-go/myriad/tools/internal/pacer"
)

// trafficScript defines what connections send and expect. It does not change during a run.
type trafficScript struct {
	messageMaker
	answerChecker
	// direct contains the messages if they can be sent as they are stored. Otherwise, it is nil.
	direct         *pregeneratedPayload
	frames         *wsFraming // nil without WebSockets
	awaitsNoAnswer bool
	hasFirst       bool // the first message differs from the others
	fixedSize      int  // size of every message, 0 if sizes differ
}

type messageMaker interface {
	// appendMessageReadOnlyIfNil appends a message to dst. If dst is nil, the result must not be changed.
	appendMessageReadOnlyIfNil(dst []byte, connNumber uint32, msgNumber uint64) []byte
	maxMessageLen() int
}

type answerChecker interface {
	// checkAnswers checks input and advances the connection past the correct part. answeredInCall is the number of
	// answers that the caller has found in earlier input but not yet counted in cs.
	checkAnswers(c *engine.Conn, cs *connState, in []byte, answeredInCall int) checkResult
	// nextExpectedBytes returns the next expected bytes to report a mismatch, or nil if none are expected or known.
	nextExpectedBytes(l *connState) []byte
}

type checkResult struct {
	used         int // bytes checked; any other bytes are incomplete or wrong
	answerBytes  int
	answers      int   // complete answers
	err          error // why the bytes after used are wrong, or nil
	serverCloses bool  // the server is closing the connection cleanly
}

// newTrafficScript returns the script of a validated configuration. onStatus receives the status of each HTTP response.
func newTrafficScript(cfg *Config, table *connTable, onStatus func(status int)) (*trafficScript, error) {
	s := &trafficScript{awaitsNoAnswer: cfg.awaitsNoAnswers(), hasFirst: cfg.First != ""}
	messages, err := newMessageMaker(cfg)
	if err != nil {
		return nil, err
	}
	s.messageMaker = messages
	if s.direct, _ = messages.(*pregeneratedPayload); s.direct != nil {
		s.fixedSize = s.direct.maxMessageLen()
	}
	switch {
	case s.awaitsNoAnswer:
		s.answerChecker = noChecker{}
	case cfg.Match == matchFrames:
		s.answerChecker = noChecker{} // because wsFraming counts whole messages
	case cfg.Match != "":
		rule, err := match.Parse(cfg.Match)
		if err != nil {
			return nil, err
		}
		s.answerChecker = &matchRuleChecker{rule: rule, table: table, onStatus: onStatus}
	case cfg.Answer != "":
		s.answerChecker = &pregeneratedPayload{block: newRepeatedMessageBlock([]byte(cfg.Answer))}
	case s.direct != nil:
		s.answerChecker = s.direct
	default:
		s.answerChecker = &echoChecker{messages}
	}
	if cfg.WebSocket != nil {
		s.frames = newWSFraming(cfg, s.answerChecker, table)
		s.answerChecker, s.direct = s.frames, nil
	}
	return s, nil
}

func newMessageMaker(cfg *Config) (messageMaker, error) {
	s := &templateMessageMaker{seed: cfg.Seed}
	var err error
	if cfg.hasVaryingMessage() {
		s.body, err = message.Parse(cfg.Message)
	} else {
		s.cache = newConstantOrRandomPayloads(cfg)
	}
	if cfg.First != "" && err == nil {
		s.first, err = message.Parse(cfg.First)
	}
	if s.first == nil && s.body == nil {
		return s.cache, err
	}
	return s, err
}

func (s *trafficScript) generateAndWriteMessages(c *engine.Conn, cs *connState, table *connTable, firstMsgNumber uint64, n int) (sizeWithoutFraming int) {
	if s.direct != nil {
		return s.direct.writeCachedMessages(c, cs.number, firstMsgNumber, n)
	}
	b := bufferPool.Get().(*[]byte)
	defer bufferPool.Put(b)
	out, plain := (*b)[:0], []byte{}
	for i := range uint64(n) {
		was := len(out)
		if s.frames != nil {
			plain = s.appendMessageReadOnlyIfNil(plain[:0], cs.number, firstMsgNumber+i)
			out = s.frames.appendMaskedTextFrame(out, plain, cs.number, firstMsgNumber+i)
			was = len(out) - len(plain) // size without the frame
		} else {
			out = s.appendMessageReadOnlyIfNil(out, cs.number, firstMsgNumber+i)
		}
		if table.messageSizes != nil {
			table.messageSizes[table.slotIndex(cs, firstMsgNumber+i)] = uint32(len(out) - was)
		}
		sizeWithoutFraming += len(out) - was
		if len(out) >= writeChunk {
			_, _ = c.Write(out) // an error reaches Closed
			out = out[:0]
		}
	}
	_, _ = c.Write(out)
	*b = out
	return sizeWithoutFraming
}

// deriveSeed derives a seed for one purpose from the seed of the run. Seeds for different purposes are independent.
// purpose is the number of a connection, or a number that is derived from one of the constants below.
func deriveSeed(seed, purpose uint64) uint64 { return pacer.RandomAt(seed^0x6d797269, purpose) }

// Values for the parameter purpose of deriveSeed. They are greater than the number of any connection.
const (
	seedMasks   = 1<<40 + iota // WebSocket masks
	seedPlan                   // times of an open loop
	seedVerify                 // lines of verifications
	seedPayload                // published payloads
)

// writeChunk is the number of bytes of generated messages that are collected in a buffer before they are written.
const writeChunk = 64 << 10

var bufferPool = sync.Pool{New: func() any { return &[]byte{} }}

// Errors in answers, each of which closes the connection.
var (
	errWrongAnswer = errors.New("load: the answer differs from the expected one")
	errExtraAnswer = errors.New("load: received an answer while no message was unanswered")
)

// templateMessageMaker generates messages from templates. If the messages need no template, it takes them from a cache.
type templateMessageMaker struct {
	first, body *message.Template
	cache       *pregeneratedPayload
	seed        uint64
}

func (t *templateMessageMaker) appendMessageReadOnlyIfNil(dst []byte, connNumber uint32, msgNumber uint64) []byte {
	of := message.ID{Seed: t.seed, Connection: uint64(connNumber), Message: msgNumber}
	switch {
	case msgNumber == 0 && t.first != nil:
		return t.first.Append(dst, of)
	case t.body != nil:
		return t.body.Append(dst, of)
	}
	return t.cache.appendMessageReadOnlyIfNil(dst, connNumber, msgNumber)
}

func (t *templateMessageMaker) maxMessageLen() (n int) {
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

type echoChecker struct{ messages messageMaker }

func (e *echoChecker) checkAnswers(_ *engine.Conn, cs *connState, in []byte, answeredInCall int) (res checkResult) {
	b := bufferPool.Get().(*[]byte)
	want := *b
	defer func() { *b = want; bufferPool.Put(b) }()
	for res.used < len(in) {
		if answeredInCall+res.answers == int(cs.inFlight) {
			res.err = errWrongAnswer
			break
		}
		want = e.messages.appendMessageReadOnlyIfNil(want[:0], cs.number, cs.answered+uint64(answeredInCall+res.answers))
		pos := int(cs.answerPos)
		got := in[res.used:min(res.used+len(want)-pos, len(in))]
		same := commonPrefixLen(got, want[pos:])
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

func (e *echoChecker) nextExpectedBytes(cs *connState) []byte {
	return remainderOfExpectedEcho(e.messages, cs)
}

func remainderOfExpectedEcho(messages messageMaker, cs *connState) []byte {
	if cs.inFlight == 0 {
		return nil
	}
	return messages.appendMessageReadOnlyIfNil(nil, cs.number, cs.answered)[cs.answerPos:]
}

type matchRuleChecker struct {
	rule     *match.AnswerRule
	table    *connTable
	onStatus func(status int) // called with the status of each HTTP response
}

func (r *matchRuleChecker) checkAnswers(_ *engine.Conn, cs *connState, in []byte, answeredInCall int) (res checkResult) {
	state := &r.table.matchStates[cs.index]
	before := *state
	res.used, res.answers, res.err = r.rule.ConsumeInput(state, in, r.onStatus)
	res.answerBytes, res.serverCloses = res.used, state.ServerCloses()
	if limit := int(cs.inFlight) - answeredInCall; res.err == nil && res.answers > limit {
		res.answers, res.err = limit, errExtraAnswer
		res.used = sort.Search(len(in), func(n int) bool { // to the first byte that exceeds the expected answers
			s := before
			_, answers, _ := r.rule.ConsumeInput(&s, in[:n], nil)
			return answers >= limit
		})
	}
	return res
}

func (r *matchRuleChecker) nextExpectedBytes(*connState) []byte { return nil }

type noChecker struct{}

func (noChecker) checkAnswers(_ *engine.Conn, _ *connState, in []byte, _ int) checkResult {
	return checkResult{used: len(in), answerBytes: len(in)}
}
func (noChecker) nextExpectedBytes(*connState) []byte { return nil }

func (s *trafficScript) usesRule() bool {
	_, ok := s.answerChecker.(*matchRuleChecker)
	return ok
}
