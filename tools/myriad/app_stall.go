package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/myriad-go/myriad/tcp"
	"github.com/myriad-go/myriad/tools/internal/stall"
)

type stallFlags struct {
	plan  stall.StallPlan
	epoch time.Time // beginning of the first stall
}

func (f *stallFlags) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&f.plan.Stall, "stall", 200*time.Millisecond, "duration of each stall of the application stall; 0s for no stalls")
	flags.DurationVar(&f.plan.Every, "stall-every", time.Second, "time between the starts of two stalls; the first begins when the server starts")
	flags.Float64Var(&f.plan.Capacity, "stall-capacity", 0, "lines per second that stall serves on each loop, or on all connections in models without loops (default 0: unlimited)")
}

// stallFieldsToFlags replaces field names by flag names in the errors of StallPlan.Check.
var stallFieldsToFlags = strings.NewReplacer("stall: capacity", "--stall-capacity", "stall: length", "--stall", "stall: interval", "--stall-every")

// validateAndSetEpochToNow validates the flags, sets f.epoch to the current time and prints it.
func (f *stallFlags) validateAndSetEpochToNow(cmd *cobra.Command, srv *tcp.Server) error {
	if err := f.plan.Check(); err != nil {
		return usagef("%s", stallFieldsToFlags.Replace(err.Error()))
	}
	if srv.Processes > 0 {
		return usagef("--processes is %d with --app stall; expected 0, because each process would stall separately", srv.Processes)
	}
	f.epoch = time.Now()
	fmt.Fprintf(cmd.ErrOrStderr(), "myriad: stall: epoch %dns\n", f.epoch.UnixNano())
	return nil
}

// fixedCapacityHandler echoes lines. A stall plan limits the number of lines per second, and makes the handler stall at
// regular times.
type fixedCapacityHandler struct {
	flags stallFlags

	mu             sync.Mutex
	stationsByLoop map[int]*stall.LineStation
}

func newFixedCapacityHandler(f stallFlags) *fixedCapacityHandler {
	return &fixedCapacityHandler{flags: f, stationsByLoop: make(map[int]*stall.LineStation)}
}

// Opened makes the stall.LineStation of c's event loop answer the lines of c. A station answers the lines of all
// connections of the loop at the rate of the plan.
func (s *fixedCapacityHandler) Opened(c *tcp.Conn) {
	to, station := c.Ref(), s.getOrCreateStation(c.Loop())
	answer := func(text []byte) {
		if to.SendWait(context.Background(), text) != nil {
			_ = to.Close() // fails only if already closed
		}
	}
	c.SetValue(func(text []byte) error { return station.Enqueue(text, answer) })
}

func (s *fixedCapacityHandler) getOrCreateStation(loop int) *stall.LineStation {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stationsByLoop[loop] == nil {
		s.stationsByLoop[loop] = stall.NewStation(s.flags.plan, s.flags.epoch)
	}
	return s.stationsByLoop[loop]
}

// Message adds the line text to the queue of c's service station. If the queue is full, Message closes the connection.
func (*fixedCapacityHandler) Message(c *tcp.Conn, text []byte) {
	text = append(append(make([]byte, 0, len(text)+1), text...), '\n')
	if err := c.Value().(func([]byte) error)(text); err != nil {
		c.CloseWith(err)
	}
}

func (*fixedCapacityHandler) Closed(*tcp.Conn, error) {}
