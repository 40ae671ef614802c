package enginetest

import (
	"bytes"
	"errors"
	"runtime"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

func init() {
	handoverCases = append(handoverCases,
		testCase{"hand over with the most state", testExportState},
		testCase{"Goexit in Save and Restore", testExportGoexit},
	)
}

// testExportState saves state of the maximum size, and state with one byte more. The latter must keep the connection
// here.
func testExportState(b *testEnv) {
	script := &Script{Received: func(c *engine.Conn, in []byte) int {
		switch string(in) {
		case "most\n":
			c.SetValue(engine.MaxState)
		case "more\n":
			c.SetValue(engine.MaxState + 1)
		}
		return answerLine(c, in)
	}}
	from := b.startServer(script, func(cfg *engine.Config) {
		cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) {
			size, _ := c.Value().(int)
			return append(to, testPattern(size)...), nil
		}
	})
	to := b.startSuccessor(lines(), func(cfg *engine.Config) {
		cfg.Restore = func(c *engine.Conn, state []byte) error {
			cfg.Handler.(*callChecker).recordOpened(c)()
			if len(state) == 0 {
				return nil
			}
			if !bytes.Equal(state, testPattern(engine.MaxState)) {
				return errors.New("not the state that was saved")
			}
			c.Write([]byte("came\n"))
			return nil
		}
	})
	const each = 6 // more than fit into a batch's bytes
	var most, others []*client
	for range each {
		for _, line := range []string{"most\n", "more\n", "none\n"} {
			c := from.dial()
			c.exchange(line)
			if line == "most\n" {
				most = append(most, c)
			} else {
				others = append(others, c)
			}
		}
	}
	from.exportConnsTo(b, to, 2*each)
	for _, c := range most {
		c.Expect("came\n")
	}
	for _, c := range others {
		c.exchange("on\n")
	}
	testkit.WaitFor(b, "those with more have not stayed", func() bool { return from.Counters()[engine.Open] == each })
	b.requireNoError(from.PauseAccept(false))
}

// testExportGoexit calls Goexit while saving and restoring state: those connections must be closed,
// and the others exported.
func testExportGoexit(b *testEnv) {
	const each = 15
	from := b.startServer(&Script{Received: func(c *engine.Conn, in []byte) int {
		if len(in) > 0 {
			c.SetValue(int(in[0]))
		}
		return answerLine(c, in)
	}}, withSaveAndRestore, func(cfg *engine.Config) {
		save := cfg.Save
		cfg.Save = func(c *engine.Conn, to []byte) ([]byte, error) {
			if c.Value() == int('s') {
				runtime.Goexit()
			}
			return save(c, to)
		}
	})
	to := b.startSuccessor(lines(), func(cfg *engine.Config) {
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
	from.exportConnsTo(b, to, 2*each)
	for _, c := range gone {
		c.ExpectClosed()
	}
	for _, c := range on {
		c.exchange("still there\n")
	}
	testkit.WaitFor(b, "connections are left behind, or lost", func() bool {
		return from.Counters()[engine.Open] == 0 && to.Counters()[engine.Open] == each
	})
}
