package web

import (
	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/tcp"
)

// Only this file uses the engine behind tcp.Conn. Call its functions during a call of c's handler.

// maxSavedState is the maximum size in bytes of a connection's state in an upgrade.
const maxSavedState = engine.MaxState

func core(c *tcp.Conn) *engine.Conn { return (*engine.Conn)(c) }

// yield makes the loop serve other connections before it passes the remaining input of c to the handler.
func yield(c *tcp.Conn) { core(c).YieldInput() }

// reserve sets the number of bytes that the handler has reserved for c, which count against tcp.Limits.MaxBuffered. If
// partial is set, the peer has Limits.MessageTimeout to complete the message.
func reserve(c *tcp.Conn, bytes int, partial bool) { core(c).SetHandlerMemory(bytes, partial) }

// unusedInput returns the number of input bytes that the handler did not use in its previous call.
func unusedInput(c *tcp.Conn) int { return core(c).RefusedBytes() }

func fileCapacity(c *tcp.Conn) int { return core(c).FileQueueSpace() }

// maxMessage returns tcp.Limits.MaxMessage of c's server, in bytes.
func maxMessage(c *tcp.Conn) int { return core(c).MaxMessage() }
