package main

import (
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/proof"
)

// These applications hold their loop, on purpose: they stand for a handler that
// waits for something else, such as a database, and for one that computes.

// waitLine waits, then sends the line back.
func (f appFlags) waitLine(c *myriad.Conn, text []byte) {
	time.Sleep(f.wait)
	line(c, text)
}

// prove answers a line with itself and its proof of work.
func (f appFlags) prove(c *myriad.Conn, line []byte) {
	c.Write(proof.Append(nil, line, f.bits))
}
