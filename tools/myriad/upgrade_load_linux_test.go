package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tools/load"
)

// Ten upgrades in a row: each connection has a message in flight, a part of the next one is held
// by the server, and the load compares every byte. The same by hand is docs/upgrade.md's.
func TestUpgradeTenTimes(t *testing.T) {
	upgrades, connections, ahead := 10, 800, 40
	switch {
	case testing.Short():
		upgrades, connections = 3, 300
	case raced():
		upgrades, connections = 5, 500
	}
	for name, args := range map[string][]string{
		"goroutine":      {"--model", "goroutine"},
		"epoll":          {"--model", "epoll"},
		"uring":          {"--model", "uring"},
		"epoll, shards":  {"--model", "epoll", "--max-conns", "50000"},
		"uring, workers": {"--model", "uring", "--workers", "4"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasSuffix(name, "shards") {
				testkit.ReserveDescriptors(t, 10_000) // a limit of 1,024 can't be divided among shards
			}
			s := upgradable(t, "", append([]string{"serve", "--app", "lines"}, args...)...)
			ctx, stop := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			var answered atomic.Int64
			type outcome struct {
				*load.Result
				err error
			}
			ended := make(chan outcome, 1)
			go func() {
				r, err := load.Run(ctx, load.Config{
					Target: s.addr, Connections: connections, ConnectTimeout: patience, Duration: 10 * patience, Drain: patience, Ahead: ahead,
					ProgressEvery: 20 * time.Millisecond, Observe: func(e load.Event) { answered.Store(e.Snapshot.Answered) },
				})
				ended <- outcome{r, err}
			}()
			process := s.Process
			for i := range upgrades {
				before := answered.Load()
				testkit.WaitFor(t, "the load stands still", func() bool { return answered.Load() >= before+int64(2*connections) })
				next, moved := s.upgradeNext(t, process, i+1)
				if process = next; moved != connections {
					t.Errorf("upgrade %d: %d connections were handed over, want %d", i+1, moved, connections)
				}
			}
			stop(enough)
			r := testkit.Receive(t, ended, "the end of the load")
			if !errors.Is(r.err, enough) || r.Err() != nil || r.Unanswered != 0 || r.Connected != connections {
				t.Errorf("%v, %v; %d connected, %d unanswered, lost %v", r.err, r.Err(), r.Connected, r.Unanswered, r.Lost)
			}
			fmt.Fprintf(t.Output(), "%d messages in %d upgrades; p99 %v, longest %v\n", r.Answered, upgrades, r.Latency.P99, r.Latency.Max)
			if s.endNext(t, process); t.Failed() {
				t.Log(s.stderr.String())
			}
		})
	}
}
