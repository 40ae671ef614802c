package examples

import (
	"bytes"
	"io"
	"math/rand"
	"os/exec"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

type echo struct{ tcp.Base }

func (echo) Received(c *tcp.Conn, in []byte) int { n, _ := c.Write(in); return n }

// TestProxy sends much through the proxy to a server that echoes it.
func TestProxy(t *testing.T) {
	to, _ := testserver.Start(t, &tcp.Server{Handler: echo{}})
	sent := make([]byte, 20_000_000)
	rand.New(rand.NewSource(1)).Read(sent)
	for _, model := range tcp.Models() {
		p, _ := startProgram(t, exec.Command(programPath(t, "proxy"), "-addr", "127.0.0.1:0", "-to", to, "-model", model))
		c := testkit.Dial(t, p.WaitForOutput(`proxy on (\S+)\n`)[1])
		go func() {
			c.Write(sent)
			c.Conn.(interface{ CloseWrite() error }).CloseWrite()
		}()
		if got, err := io.ReadAll(c.R); err != nil || !bytes.Equal(got, sent) {
			t.Errorf("%s: %d bytes have come back of %d, or others; %v", model, len(got), len(sent), err)
		}
		c.Close()
	}
}
