package enginetest

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/myriad-go/myriad/internal/engine"
	"github.com/myriad-go/myriad/internal/testkit"
)

// server is a running engine with its callChecker.
type server struct {
	engine.Engine
	*callChecker
	log *logbook
}

// with changes the configuration.
type with func(*engine.Config)

func limited(f func(*engine.Limits)) with {
	return func(cfg *engine.Config) { f(&cfg.Limits) }
}

// startServer starts an engine that is stopped at the end of the test.
func (b *testEnv) startServer(script *Script, changes ...with) *server {
	b.Helper()
	s := &server{callChecker: newWitness(b, script), log: &logbook{}}
	cfg := engine.Config{
		Network: "tcp", Addr: "127.0.0.1:0", Handler: s.callChecker,
		Limits: Limits(), Loops: b.loops, Log: slog.New(s.log),
	}
	for _, change := range changes {
		change(&cfg)
	}
	e, err := b.model.Start(cfg)
	b.requireNoError(err)
	s.Engine = e
	b.Cleanup(s.stopAndCheckCounters)
	return s
}

// stopAndCheckCounters stops the engine and checks its counters.
func (s *server) stopAndCheckCounters() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.Stop(ctx); err != nil {
		s.t.Errorf("Stop at the end: %v", err)
	}
	s.Wait()
	s.checkOpenedEqualsClosed()
	n := s.Counters()
	if n[engine.Open] != 0 {
		s.t.Errorf("%d connections are counted as open after Stop", n[engine.Open])
	}
	if got := int(n[engine.Accepted] + n[engine.Dialled] + n[engine.ConnsImported]); got != len(s.opened) {
		s.t.Errorf("%d connections are counted as accepted, dialled or imported, %d were opened", got, len(s.opened))
	}
}

// wantBytesIn waits until the engine has received n bytes in all.
func (s *server) wantBytesIn(n int) {
	s.t.Helper()
	testkit.WaitFor(s.t, fmt.Sprintf("not %d bytes received", n), func() bool {
		return s.Counters()[engine.BytesIn] >= int64(n)
	})
}

// stop calls Stop in the background.
func (s *server) stop(ctx context.Context) <-chan error {
	done := make(chan error, 1)
	go func() { done <- s.Stop(ctx) }()
	return done
}

type logbook struct {
	mu      sync.Mutex
	records []slog.Record
}

func (b *logbook) Enabled(context.Context, slog.Level) bool { return true }
func (b *logbook) WithAttrs([]slog.Attr) slog.Handler       { return b }
func (b *logbook) WithGroup(string) slog.Handler            { return b }

func (b *logbook) Handle(_ context.Context, r slog.Record) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.records = append(b.records, r)
	return nil
}

// count returns the number of records of a level with an attribute whose value contains part.
func (b *logbook) count(level slog.Level, key, part string) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, r := range b.records {
		r.Attrs(func(a slog.Attr) bool {
			if r.Level == level && a.Key == key && strings.Contains(a.Value.String(), part) {
				n++
			}
			return true
		})
	}
	return n
}
