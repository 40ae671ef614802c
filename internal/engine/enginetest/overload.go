package enginetest

import (
	"bufio"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/myriad-go/myriad/internal/engine"
)

// overloadCases test shedding. Models without a pool shed nothing, but give the same guarantees.
var overloadCases = []testCase{
	{"pipelined lines that may be shed", func(b *testEnv) { testPipelinedLines(b, true) }},
	{"pipelined lines that may not be shed", func(b *testEnv) { testPipelinedLines(b, false) }},
}

// shedLineAsBusy answers a line with the prefix "busy".
func shedLineAsBusy(c *engine.Conn, in []byte) int {
	if !strings.Contains(string(in), "\n") {
		return 0
	}
	c.WriteString("busy ")
	return answerLine(c, in)
}

// testPipelinedLines sends numbered lines on many connections, pipelined and split anywhere. Each
// must be answered once and in order, by Received or Shed.
func testPipelinedLines(b *testEnv, mayShed bool) {
	const clients, rounds, each = 30, 8, 10
	s := b.startServer(lines(), func(cfg *engine.Config) {
		if mayShed {
			cfg.Shed = cfg.Handler.(*callChecker).checkedShed(shedLineAsBusy)
		}
	})
	var busy atomic.Int64
	talk := func(c *client, number int) error {
		in := bufio.NewReader(c)
		for round := range rounds {
			var text []byte
			for i := range each {
				text = fmt.Appendf(text, "%d\n", round*each+i)
			}
			cut := (number*7 + round*13) % len(text)
			c.Write(text[:cut])
			c.Write(text[cut:])
			for i := range each {
				got, err := in.ReadString('\n')
				answer, isBusy := strings.CutPrefix(strings.TrimSuffix(got, "\n"), "busy ")
				if want := strconv.Itoa(round*each + i); err != nil || answer != want {
					return fmt.Errorf("connection %d: got %q, %w; want %s, served or busy", number, got, err, want)
				}
				if isBusy {
					busy.Add(1)
				}
			}
		}
		return nil
	}
	var all sync.WaitGroup
	errs := make([]error, clients)
	for number := range clients {
		c := s.dial()
		all.Go(func() {
			defer c.Close()
			errs[number] = talk(c, number)
		})
	}
	all.Wait()
	b.requireNoError(errors.Join(errs...))
	switch shed := s.Counters()[engine.Shed]; {
	case shed > busy.Load() || (shed == 0) != (busy.Load() == 0):
		b.Errorf("%d lines were answered as busy in %d sheds", busy.Load(), shed)
	case shed > 0 && !mayShed:
		b.Errorf("%d sheds of what may not be shed", shed)
	}
}
