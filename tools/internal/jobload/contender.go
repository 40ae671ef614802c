package jobload

import (
	"context"
	"sync"

	"github.com/myriad-go/myriad/pool"
)

// Contender is a pool to which jobs are submitted. TrySubmit and Workers must be safe for
// concurrent use; Close is called when no TrySubmit is running.
type Contender interface {
	// TrySubmit submits a job without waiting and reports whether the pool has accepted it.
	TrySubmit(j *Job) bool
	// Workers returns the number of workers, 0 if unknown.
	Workers() int
	// Close closes the pool. Jobs that have not started end at once.
	Close()
}

// Contenders are constructors of pools by name.
type Contenders map[string]func(Plan) (Contender, error)

// BuiltInContenders returns the contenders that need only the standard library and Myriad.
func BuiltInContenders() Contenders {
	return Contenders{
		"naive":   func(Plan) (Contender, error) { return goroutinePerJob{}, nil },
		"channel": newChannelPool,
		"ours":    newMyriadPool,
	}
}

// goroutinePerJob starts a goroutine for each job, without limit.
type goroutinePerJob struct{}

func (goroutinePerJob) TrySubmit(j *Job) bool {
	go j.Execute()
	return true
}
func (goroutinePerJob) Workers() int { return 0 }
func (goroutinePerJob) Close()       {}

// channelPool is a fixed number of workers reading from a buffered channel, with non-blocking
// sends: the pool that most people write. The workers exist from the start.
type channelPool struct {
	jobs    chan *Job
	workers int
	done    sync.WaitGroup
}

func newChannelPool(p Plan) (Contender, error) {
	c := &channelPool{jobs: make(chan *Job, p.Queue), workers: p.Workers}
	for range p.Workers {
		c.done.Go(func() {
			for j := range c.jobs {
				j.Execute()
			}
		})
	}
	return c, nil
}

func (c *channelPool) TrySubmit(j *Job) bool {
	select {
	case c.jobs <- j:
		return true
	default:
		return false
	}
}
func (c *channelPool) Workers() int { return c.workers }
func (c *channelPool) Close() {
	close(c.jobs)
	c.done.Wait()
}

// myriadPool is package pool. It gets the same limits as the others, and the same memory limit,
// which they get through the Go runtime; it is not told a job's memory or duration. Each job has a
// context that ends at its deadline.
type myriadPool struct{ *pool.Pool }

func newMyriadPool(p Plan) (Contender, error) {
	queue := p.Queue
	if queue == 0 {
		queue = pool.NoQueue
	}
	made, err := pool.New(pool.Config{Max: p.Workers, Queue: queue, MemoryLimit: p.Memory})
	return myriadPool{made}, err
}

func (o myriadPool) TrySubmit(j *Job) bool { return o.TrySubmitTask(pool.Task{Job: j, Ctx: j}) == nil }
func (o myriadPool) Workers() int          { return o.Stats().Workers }
func (o myriadPool) Close()                { o.Pool.Close(context.Background()) }
