package lab

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"sync"
)

// maxEvent bounds one line of a process's stream, in bytes.
const maxEvent = 1 << 20

// stream runs a program on the given CPUs, as start does, and calls read with its
// standard output, which it reads to its end. When ctx ends or read returns an error the program is ended, and
// the output with it; the cause or that error is returned. The program has ended
// in any case when stream returns. A nil process was not started.
func (l *launcher) stream(ctx context.Context, command []string, cpus []int, read func(p *process, out io.Reader) error) (*process, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	in, out := io.Pipe()
	p, err := l.start(command, cpus, out)
	if err != nil {
		return nil, err
	}
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-ctx.Done():
			in.CloseWithError(io.ErrClosedPipe)
		case <-p.done:
		}
		p.end()
	})
	if err := read(p, in); err != nil {
		cancel(err)
	}
	wait.Wait()
	return p, context.Cause(ctx)
}

// eachLine calls at with each line of a stream, which who wrote, until the stream
// ends or at returns an error. The line is at's until it returns.
func eachLine(stream io.Reader, who string, at func(line []byte) error) error {
	lines := bufio.NewScanner(stream)
	lines.Buffer(nil, maxEvent)
	for lines.Scan() {
		if err := at(lines.Bytes()); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("the output of %s: %w", who, err)
	}
	return nil
}
