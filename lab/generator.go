package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"sync"

	"github.com/myriad-go/myriad/load"
)

// maxEvent bounds one line of the load generator's stream, in bytes.
const maxEvent = 1 << 20

// loadCommand is the command line of the load generator with these flags. It
// gets a loop for each of its CPUs where it has CPUs of its own.
func (m *measurement) loadCommand(flags []string) []string {
	command := []string{m.self, "load", "--json"}
	if n := len(m.pinning.Load); n > 0 {
		command = append(command, "--loops", strconv.Itoa(n))
	}
	command = append(command, m.certOf(m.workload).loadFlags()...)
	return append(command, flags...)
}

// generate runs the load generator on its CPUs and calls at with each of its
// events, in order; it may be nil. When ctx ends, at returns an error or the
// stream makes no sense, the generator is ended. It has ended in any case when
// generate returns. A generator that fails because of what its result says has
// not failed here: the result gets its marks.
func (m *measurement) generate(ctx context.Context, command []string, at func(load.Event) error) (*load.Result, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	stream, out := io.Pipe()
	p, err := m.launcher.start(command, m.pinning.loadCPUs(), out)
	if err != nil {
		cancel(nil)
		return nil, err
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-ctx.Done():
			stream.CloseWithError(io.ErrClosedPipe)
		case <-p.done:
		}
		p.end()
	})
	result, err := readEvents(stream, at)
	if err != nil {
		cancel(err)
	}
	wait.Wait()
	defer cancel(nil)
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case result == nil, p.err != nil && result.Err() == nil:
		return nil, p.failure("the load generator")
	}
	return result, nil
}

// readEvents reads events until the stream ends and returns the last result.
func readEvents(stream io.Reader, at func(load.Event) error) (*load.Result, error) {
	var result *load.Result
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		var event load.Event
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			return nil, fmt.Errorf("the load generator said %.100q: %w", lines.Text(), err)
		}
		if event.Result != nil {
			result = event.Result
		}
		if at == nil {
			continue
		}
		if err := at(event); err != nil {
			return nil, err
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("the load generator's events: %w", err)
	}
	return result, nil
}
