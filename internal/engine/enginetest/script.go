package enginetest

import (
	"bytes"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
)

// Script is a handler made of functions. If one is nil, the call does nothing and uses all input.
type Script struct {
	Opened     func(c *engine.Conn)
	Received   func(c *engine.Conn, in []byte) (used int)
	Ended      func(c *engine.Conn, in []byte)
	Nudged     func(c *engine.Conn)
	Closed     func(c *engine.Conn, reason error)
	DialFailed func(err error)
}

func lines() *Script { return &Script{Received: answerLine} }

func answerLine(c *engine.Conn, in []byte) int {
	n := bytes.IndexByte(in, '\n') + 1
	c.Write(in[:n])
	return n
}

func newEchoScript() *Script {
	return &Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(in)
		return len(in)
	}}
}

// answerWith returns a script that uses all input and writes answer.
func answerWith(answer []byte) *Script {
	return &Script{Received: func(c *engine.Conn, in []byte) int {
		c.Write(answer)
		return len(in)
	}}
}

// testPattern returns n bytes with a long period, which must not be changed.
func testPattern(n int) []byte { return longPattern()[:n:n] }

var longPattern = sync.OnceValue(func() []byte {
	p := make([]byte, 24<<20)
	for i := range p {
		p[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return p
})
