package tcp

import (
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// Server.SlowConsumer applies to a member that does not read, in a group of one, a few and many;
// others get every message.
func TestGroupSlowMember(t *testing.T) {
	t.Parallel() // mostly waits
	message := strings.Repeat("x", 20<<10)
	for _, members := range []int{1, 4, 21} {
		for _, policy := range []SlowConsumer{CloseConn, DropMessage} {
			forEachModel(t, func(t *testing.T, model string, loops int) {
				var group Group
				refs, closed := make(chan Ref, members), make(chan error, members)
				h := hooks{closed: func(why error) { closed <- why }, opened: func(c *Conn) {
					group.Add(c.Ref())
					refs <- c.Ref()
				}}
				s := startServer(t, &Server{Model: model, Loops: loops, Handler: h, SlowConsumer: policy,
					Socket: Socket{SendBuffer: 4 << 10}, Limits: Limits{MaxUnsent: 64 << 10}})
				dial(t, s.addr)
				slow := testkit.Receive(t, refs, "the slow member")
				var others []*testkit.Conn
				for range members - 1 {
					others = append(others, dial(t, s.addr))
					testkit.Receive(t, refs, "a member")
				}
				waitFor(t, "the slow one is dealt with", func() bool {
					if len(closed) > 0 {
						return true
					}
					group.Broadcast([]byte(message))
					for _, c := range others {
						c.Expect(message)
					}
					dropped := make(chan int64, 1)
					return policy == DropMessage && slow.Do(func(c *Conn) { dropped <- c.Dropped() }) == nil &&
						testkit.Receive(t, dropped, "what it has lost") > 1 && s.Stats().Dropped > 1
				})
				if policy == CloseConn {
					expectReason(t, "the slow one", closed, ErrSlowConsumer)
					expectEqual(t, "counted as closed", s.Stats().Closed.SlowConsumer, 1)
				}
			})
		}
	}
}
