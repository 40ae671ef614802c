package hub

import (
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
	"github.com/myriad-go/myriad/tcp"
)

// TestOverloadRejectsPublish fills the memory, which sheds all publishing.
func TestOverloadRejectsPublish(t *testing.T) {
	fill := testkit.LimitMemory(t, 64<<20)
	srv := &tcp.Server{Handler: new(Hub).Handler()}
	addr, _ := testserver.Start(t, srv)
	c := testkit.Dial(t, addr)
	c.Send("PUBLISH a b\r\n")
	c.Expect(":0\r\n")
	fill()
	testkit.WaitFor(t, "the action does not begin", func() bool { return srv.Stats().Overload.ShedRequests == 1 })
	c.Send("PUBLISH a b\r\nPING\r\n")
	c.Expect("-" + overloadedReply + "\r\n+PONG\r\n")
	if n := srv.Stats().Overload.ShedMemory; n != 1 {
		t.Errorf("%d commands are counted as shed; expected 1", n)
	}
}
