package jobload

import (
	"context"
	"sync"

	"github.com/myriad-go/myriad/pool"
)

// Contender is a pool that jobs are offered to. Try and Workers may be called by several
// goroutines at a time, Close when no Try is under way.
type Contender interface {
	// TrySubmit offers a job, does not wait, and says whether the pool has accepted it.
	TrySubmit(j *Job) bool
	// Workers is how many workers there are now, 0 if the pool does not know.
	Workers() int
	// Close ends the pool. Jobs that have not begun end at once then.
	Close()
}

// Contenders makes pools, by name.
type Contenders map[string]func(Plan) (Contender, error)

// OwnContenders are the sides that need nothing but the standard library and Myriad.
func OwnContenders() Contenders {
	return Contenders{
		"naive":   func(Plan) (Contender, error) { return goroutinePerJob{}, nil },
		"channel": newChannelPool,
		"ours":    newMyriadPool,
	}
}

// goroutinePerJob is a goroutine for each job, and no bound.
type goroutinePerJob struct{}

func (goroutinePerJob) TrySubmit(j *Job) bool {
	go j.Execute()
	return true
}
func (goroutinePerJob) Workers() int { return 0 }
func (goroutinePerJob) Close()       {}

// channelPool is a fixed number of workers at a buffered channel, and a send that does
// not wait: the pool that most people write. The workers are there from the start.
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

// myriadPool is package pool. It gets the same bounds as the others, and as much of
// the memory limit as they are through the Go runtime; not what a job takes, nor
// how long. Each job comes with a context that ends at its deadline.
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
