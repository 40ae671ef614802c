package offer

import (
	"context"
	"sync"

	"github.com/myriad-go/myriad/pool"
)

// Side is a pool that jobs are offered to. Try and Workers may be called by several
// goroutines at a time, Close when no Try is under way.
type Side interface {
	// Try offers a job, does not wait, and says whether the pool has accepted it.
	Try(j *Job) bool
	// Workers is how many workers there are now, 0 if the pool does not know.
	Workers() int
	// Close ends the pool. Jobs that have not begun end at once then.
	Close()
}

// Sides makes pools, by name.
type Sides map[string]func(Plan) (Side, error)

// Own are the sides that need nothing but the standard library and Myriad.
func Own() Sides {
	return Sides{
		"naive":   func(Plan) (Side, error) { return naive{}, nil },
		"channel": newChannel,
		"ours":    newOurs,
	}
}

// naive is a goroutine for each job, and no bound.
type naive struct{}

func (naive) Try(j *Job) bool {
	go j.Do()
	return true
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

func (c *channel) Try(j *Job) bool {
	select {
	case c.jobs <- j:
		return true
	default:
		return false
	}
}
func (c *channel) Workers() int { return c.workers }
func (c *channel) Close() {
	close(c.jobs)
	c.done.Wait()
}

// ours is package pool. It gets the same bounds as the others, and as much of
// the memory limit as they are through the Go runtime; not what a job takes, nor
// how long. Each job comes with a context that ends at its deadline.
type ours struct{ *pool.Pool }

func newOurs(p Plan) (Side, error) {
	queue := p.Queue
	if queue == 0 {
		queue = pool.NoQueue
	}
	made, err := pool.New(pool.Config{Max: p.Workers, Queue: queue, MemoryLimit: p.Memory})
	return ours{made}, err
}

func (o ours) Try(j *Job) bool { return o.TrySubmitTask(pool.Task{Job: j, Ctx: j}) == nil }
func (o ours) Workers() int    { return o.Stats().Workers }
func (o ours) Close()          { o.Pool.Close(context.Background()) }
