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

// stallFlags say how the application stall serves.
type stallFlags struct {
	plan  stall.Plan
	epoch time.Time // set by begin
}

func (f *stallFlags) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&f.plan.Stall, "stall", 200*time.Millisecond, "how long the application stall serves nothing at a time; 0s for no stalls")
	flags.DurationVar(&f.plan.Every, "stall-every", time.Second, "the time from the beginning of a stall to the next; the first is at the start")
	flags.Float64Var(&f.plan.Capacity, "stall-capacity", 0, "how many lines a second it serves on each loop, or on all connections where there are no loops (default 0: as fast as it goes)")
}

// stallFieldsToFlags names flags instead of what a plan calls its fields.
var stallFieldsToFlags = strings.NewReplacer("stall: capacity", "--stall-capacity is a capacity", "stall: stalls", "--stall and --stall-every are stalls")

// validateAndSetEpoch checks the flags, sets the epoch of a server's stalls, and says when it is.
func (f *stallFlags) validateAndSetEpoch(cmd *cobra.Command, srv *tcp.Server) error {
	if err := f.plan.Check(); err != nil {
		return usagef("%s", stallFieldsToFlags.Replace(err.Error()))
	}
	if srv.Processes > 0 {
		return usagef("--processes is %d with --app stall; expected none, because each would have stalls of its own", srv.Processes)
	}
	f.epoch = time.Now()
	fmt.Fprintf(cmd.ErrOrStderr(), "myriad: stall: epoch %dns\n", f.epoch.UnixNano())
	return nil
}

// stallHandler is an application that sends back lines when the truth says so. It has a
// station for each loop, and one for all connections where there are no loops.
//
// It does not hold its loops: a line has to be seen when it arrives, or lines of
// several connections are served in another order. On an epoll loop that was held, 4,400
// lines within 4 s, at a capacity of 1,000 a second, had a 90th percentile of 1.73 s
// where the truth was 1.26 s; like this both were 1.25 s, in another run.
type stallHandler struct {
	flags stallFlags

	mu             sync.Mutex
	stationsByLoop map[int]*stall.Station
}

func newStallHandler(f stallFlags) *stallHandler {
	return &stallHandler{flags: f, stationsByLoop: make(map[int]*stall.Station)}
}

// Opened gives the connection the station of its loop. Where there is no room for an answer,
// it waits for some, as do all lines behind it: a peer that takes nothing is closed in the
// end.
func (s *stallHandler) Opened(c *tcp.Conn) {
	to, station := c.Ref(), s.stationOfLoop(c.Loop())
	answer := func(text []byte) {
		if to.SendWait(context.Background(), text) != nil {
			_ = to.Close() // an error says that it is closed already
		}
	}
	c.SetValue(func(text []byte) error { return station.Enqueue(text, answer) })
}

// stationOfLoop is that of a loop.
func (s *stallHandler) stationOfLoop(loop int) *stall.Station {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stationsByLoop[loop] == nil {
		s.stationsByLoop[loop] = stall.NewStation(s.flags.plan, s.flags.epoch)
	}
	return s.stationsByLoop[loop]
}

// Message has a line served.
func (*stallHandler) Message(c *tcp.Conn, text []byte) {
	text = append(append(make([]byte, 0, len(text)+1), text...), '\n')
	if err := c.Value().(func([]byte) error)(text); err != nil {
		c.CloseWith(err)
	}
}

func (*stallHandler) Closed(*tcp.Conn, error) {}
