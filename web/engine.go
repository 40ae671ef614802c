package web

import (
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tcp"
)

// Only this file uses the engine behind tcp.Conn. Call its functions during a call of c's handler.

// maxSavedState is the maximum size in bytes of the state that a connection takes to a new process.
const maxSavedState = engine.MaxState

func core(c *tcp.Conn) *engine.Conn { return (*engine.Conn)(c) }

// yield makes the event loop serve other connections before it calls c's handler with the remaining input.
func yield(c *tcp.Conn) { core(c).YieldInput() }

// reserve sets the size of the memory that the handler uses for c. This memory counts against tcp.Limits.MaxBuffered.
// If partial is set, the peer must complete its message within Limits.MessageTimeout.
func reserve(c *tcp.Conn, bytes int, partial bool) { core(c).SetHandlerMemory(bytes, partial) }

// unusedInput returns the number of input bytes that the previous call of c's handler did not use.
func unusedInput(c *tcp.Conn) int { return core(c).RefusedBytes() }

func fileCapacity(c *tcp.Conn) int { return core(c).FileQueueSpace() }

// maxMessage returns tcp.Limits.MaxMessage of c's server, in bytes.
func maxMessage(c *tcp.Conn) int { return core(c).MaxMessage() }
