package enginetest

import (
	"runtime"

	"github.com/myriad-go/myriad/internal/await"
	"github.com/myriad-go/myriad/internal/engine"
)

func init() {
	handoverCases = append(handoverCases, testCase{"Goexit in Save and Restore", handOverExits})
}

// handOverExits has some handlers end their goroutine when they save their state, and others when
// they read it: their connections close, and the rest goes over.
func handOverExits(b *bench) {
	const each = 40
	from := b.serve(&Script{Received: func(c *engine.Conn, in []byte) int {
		if len(in) > 0 {
			c.SetValue(int(in[0]))
		}
		return answerLine(c, in)
	}}, saves, func(cfg *engine.Config) {
		save := cfg.Save
		cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) {
			if c.Value() == int('s') {
				runtime.Goexit()
			}
			return save(c, to)
		}
	})
	to := b.successor(lines(), func(cfg *engine.Config) {
		restore := cfg.Restore
		cfg.Restore = func(c *engine.Conn, state []byte) error {
			err := restore(c, state)
			if c.Value() == int('r') {
				runtime.Goexit()
			}
			return err
		}
	})
	var gone, on []*client
	for range each {
		for _, line := range []string{"save\n", "restore\n", "go on\n"} {
			c := from.dial()
			c.exchange(line)
			if line == "go on\n" {
				on = append(on, c)
			} else {
				gone = append(gone, c)
			}
		}
	}
	moved, err := from.handOver(b.Context(), b.channels(from, to))
	if err != nil || moved != (engine.Handover{Gone: 2 * each}) {
		b.Errorf("handed over %+v, %v; want %d", moved, err, 2*each)
	}
	for _, c := range gone {
		c.expectGone()
	}
	for _, c := range on {
		c.exchange("still there\n")
	}
	await.True(b, "connections are left behind, or lost", func() bool {
		return from.Counters()[engine.Open] == 0 && to.Counters()[engine.Open] == each
	})
}
