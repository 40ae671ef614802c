package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/myriad-go/myriad"
)

// apps are the example applications that serve can run.
var apps = []struct {
	name, does string
	handler    myriad.Handler
}{
	{"echo", "sends back every byte", echo{}},
	{"lines", "sends back every line", myriad.Lines(myriad.MessageFunc(line))},
	{"sha256", "answers every line with its SHA-256 in hexadecimal", myriad.Lines(myriad.MessageFunc(digest))},
	{"sink", "reads and throws away", myriad.Base{}},
}

func findApp(name string) (myriad.Handler, bool) {
	for _, a := range apps {
		if a.name == name {
			return a.handler, true
		}
	}
	return nil, false
}

func appNames() (names []string) {
	for _, a := range apps {
		names = append(names, a.name)
	}
	return names
}

func describeApps() string {
	var b strings.Builder
	for _, a := range apps {
		fmt.Fprintf(&b, "  %-8s %s\n", a.name, a.does)
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// A write fails only when the connection is closing, and then there is nothing
// left to do; so these handlers don't look at what it returns.

type echo struct{ myriad.Base }

func (echo) Received(c *myriad.Conn, in []byte) int {
	c.Write(in)
	return len(in)
}

func line(c *myriad.Conn, line []byte) {
	c.Write(line)
	c.WriteString("\n")
}

func digest(c *myriad.Conn, line []byte) {
	sum := sha256.Sum256(line)
	var text [2*sha256.Size + 1]byte
	hex.Encode(text[:], sum[:])
	text[len(text)-1] = '\n'
	c.Write(text[:])
}
