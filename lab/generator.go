package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"

	"github.com/myriad-go/myriad/load"
)

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
	var result *load.Result
	p, err := m.launcher.stream(ctx, command, m.pinning.loadCPUs(), func(p *process, out io.Reader) (err error) {
		m.generator = p
		m.timeline.generator(p.pid())
		result, err = readEvents(out, func(e load.Event) error {
			m.timeline.hear(e)
			if at == nil {
				return nil
			}
			return at(e)
		})
		return err
	})
	m.timeline.generator(0)
	switch {
	case err != nil:
		return nil, err
	case result == nil, p.err != nil && result.Err() == nil:
		return nil, p.failure("the load generator")
	}
	return result, nil
}

// readEvents reads events until the stream ends and returns the last result.
func readEvents(stream io.Reader, at func(load.Event) error) (*load.Result, error) {
	var result *load.Result
	err := eachLine(stream, "the load generator", func(line []byte) error {
		var event load.Event
		if err := json.Unmarshal(line, &event); err != nil {
			return fmt.Errorf("the load generator said %.100q: %w", line, err)
		}
		if event.Result != nil {
			result = event.Result
		}
		if at == nil {
			return nil
		}
		return at(event)
	})
	if err != nil {
		return nil, err
	}
	return result, nil
}
