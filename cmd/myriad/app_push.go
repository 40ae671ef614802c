package main

import (
	"bytes"
	"fmt"

	"github.com/myriad-go/myriad"
)

// heartbeatAnswer is the line by which a client answers a heartbeat. It is no message
// of the application's.
const heartbeatAnswer = "pong"

// push is an application that sends a line to all: one that begins with "!" goes
// without it to every connection of the server, the sender's too. Other lines are sent
// back, but for answers to heartbeats.
type push struct{ server *myriad.Server }

// message takes a line. What can't be sent to all is answered with the reason.
func (p push) message(c *myriad.Conn, text []byte) {
	news, toAll := bytes.CutPrefix(text, []byte("!"))
	switch {
	case toAll:
		if err := p.server.Broadcast(append(bytes.Clone(news), '\n')); err != nil {
			fmt.Fprintf(c, "error: %v\n", err)
		}
	case string(text) == heartbeatAnswer:
	default:
		line(c, text)
	}
}
