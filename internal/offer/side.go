package offer

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/myriad-go/myriad/pool"
)

// Side is a pool that jobs are offered to. Try and Workers may be called by several
// goroutines at a time, Close when no Try is under way.
type Side interface {
	// Try offers a job and does not wait. Any answer but Accepted leaves the
	// job to the caller; it may be offered again at once.
	Try(j *Job) Answer
	// Workers is how many workers there are now, 0 if the pool does not know.
	Workers() int
	// Close ends the pool. Jobs that have not begun end at once then.
	Close()
}

// Answer is what a pool says to a job.
type Answer uint8

// The answers.
const (
	// Accepted says that the job is the pool's.
	Accepted Answer = iota
	// Full says that there is no room: no worker, or no place in the queue.
	Full
	// Exceeded says that a limit was reached that the pool has set itself.
	Exceeded
	// Late says that the job's context had ended already.
	Late
	// Overload says that the job was shed before it was accepted.
	Overload
	// Closed says that the pool has closed.
	Closed
	// Other is any other reason.
	Other
	answers
)

// causes names the answers that are rejections, for Result.Causes.
var causes = [answers]string{
	Full: "full", Exceeded: "limit", Late: "expired", Overload: "shed", Closed: "closed", Other: "other",
}

// Sides makes pools, by name.
type Sides map[string]func(Plan) (Side, error)

func (s Sides) names() string { return strings.Join(slices.Sorted(maps.Keys(s)), ", ") }

// Own are the sides that need nothing but the standard library and Myriad.
func Own() Sides {
	return Sides{"naive": newNaive, "channel": newChannel, "ours": newOurs}
}

// naive is a goroutine for each job, and no bound.
type naive struct{}

func newNaive(Plan) (Side, error) { return naive{}, nil }

func (naive) Try(j *Job) Answer {
	go j.Do()
	return Accepted
}
func (naive) Workers() int { return 0 }
func (naive) Close()       {}

// channel is a fixed number of workers at a buffered channel, and a send that does
// not wait: the pool that most people write. The workers are there from the start.
type channel struct {
	jobs    chan *Job
	workers int
	done    sync.WaitGroup
}

func newChannel(p Plan) (Side, error) {
	c := &channel{jobs: make(chan *Job, p.Queue), workers: p.Workers}
	for range p.Workers {
		c.done.Go(func() {
			for j := range c.jobs {
				j.Do()
			}
		})
	}
	return c, nil
}

func (c *channel) Try(j *Job) Answer {
	select {
	case c.jobs <- j:
		return Accepted
	default:
		return Full
	}
}
func (c *channel) Workers() int { return c.workers }
func (c *channel) Close() {
	close(c.jobs)
	c.done.Wait()
}

// ours is package pool. It is told the same bounds as the others, and as much of
// the memory limit as they are through the Go runtime; not what a job takes, nor
// how long. Each job comes with a context that ends at its deadline.
type ours struct{ *pool.Pool }

func newOurs(p Plan) (Side, error) {
	off, err := p.rules()
	if err != nil {
		return nil, err
	}
	queue := p.Queue
	if queue == 0 {
		queue = pool.NoQueue
	}
	made, err := pool.New(pool.Config{Max: p.Workers, Queue: queue, Off: off, MemoryLimit: p.Memory})
	return ours{made}, err
}

func (o ours) Try(j *Job) Answer {
	switch err := o.TrySubmitTask(pool.Task{Job: j, Ctx: j.Context()}); {
	case err == nil:
		return Accepted
	case err == pool.ErrFull: // often, so without looking inside
		return Full
	case errors.Is(err, pool.ErrFull):
		return Full
	case errors.Is(err, pool.ErrExpired):
		return Late
	case errors.Is(err, pool.ErrShed):
		return Overload
	case errors.Is(err, pool.ErrClosed):
		return Closed
	}
	return Other
}
func (o ours) Workers() int { return o.Stats().Workers }
func (o ours) Close()       { o.Pool.Close(context.Background()) }
