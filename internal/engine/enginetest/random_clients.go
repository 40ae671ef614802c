package enginetest

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// testRandomClients runs many clients with random behaviour. They must not affect another client.
func testRandomClients(b *testEnv) {
	const n, atOnce = 120, 25
	s := b.startServer(lines())
	quiet := s.dial()
	quiet.exchange("before\n")
	var clients sync.WaitGroup
	slots := make(chan struct{}, atOnce)
	for i := range n {
		slots <- struct{}{}
		clients.Go(func() {
			defer func() { <-slots }()
			if err := runRandomClient(b, s, rand.New(rand.NewPCG(uint64(i), 7))); err != nil {
				b.Errorf("client %d: %v", i, err)
			}
		})
		if i%20 == 0 {
			quiet.exchange(fmt.Sprintf("during %d\n", i))
		}
	}
	clients.Wait()
	quiet.exchange("after\n")
	quiet.Close()
	if runtime.GOOS == "linux" {
		s.wantOpened(n + 1) // other systems hide a connection that is reset before accept
	}
	testkit.WaitFor(b, "connections stay open when all clients have gone", func() bool { return s.Counters()[engine.Open] == 0 })
	for _, reason := range s.reasons() {
		if !errors.Is(reason, io.EOF) && !errors.Is(reason, syscall.ECONNRESET) && !errors.Is(reason, engine.ErrMessageTooLong) {
			b.Errorf("closed for %v", reason)
		}
	}
}

func runRandomClient(b *testEnv, s *server, dice *rand.Rand) error {
	c, err := tryDial(b, s.Addr().String())
	if err != nil {
		return err
	}
	defer c.Close()
	var sent strings.Builder
	for range dice.IntN(5) {
		p := strings.Repeat("w", dice.IntN(300))
		if dice.IntN(3) > 0 {
			p += "\n"
		}
		if _, err := c.Write([]byte(p)); err != nil {
			return err
		}
		sent.WriteString(p)
	}
	answers := sent.String()[:strings.LastIndexByte(sent.String(), '\n')+1]
	switch dice.IntN(5) {
	case 0: // close; unread input makes that a reset
	case 1:
		c.Reset()
	case 2: // read a part and close
		return c.tryExpect(answers[:len(answers)/2])
	case 3: // send too much and close
		_, _ = c.Write([]byte(strings.Repeat("x", 200<<10)))
	case 4: // read until EOF
		c.CloseWrite()
		got, err := io.ReadAll(c)
		return errors.Join(err, compareBytes(got, []byte(answers)))
	}
	return nil
}
