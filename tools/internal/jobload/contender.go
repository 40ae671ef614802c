package jobload

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/pool"
)

// Contender is a pool that executes jobs. TrySubmit and Workers must be safe for concurrent use. Close is called when
// no TrySubmit is in progress.
type Contender interface {
	// TrySubmit submits a job without blocking. It reports whether the pool accepted the job.
	TrySubmit(j *Job) bool
	// Workers returns the number of workers, or 0 if it is unknown.
	Workers() int
	// Close closes the pool. It immediately drops jobs that have not started.
	Close()
}

// Contenders maps the name of a pool to the function that creates the pool.
type Contenders map[string]func(Plan) (Contender, error)

// BuiltInContenders returns the pools that need no module other than Myriad.
func BuiltInContenders() Contenders {
	return Contenders{
		"naive":     func(Plan) (Contender, error) { return goroutinePerJob{}, nil },
		"channel":   newChannelPool,
		"published": newPublishedPool,
		"ours":      newMyriadPool,

		managedServer: newServerContender,
		plainServer:   newServerContender,
		netHTTPServer: newServerContender,
	}
}

// goroutinePerJob is a pool that starts a goroutine for each job, without a limit.
type goroutinePerJob struct{}

func (goroutinePerJob) TrySubmit(j *Job) bool {
	go j.Execute()
	return true
}
func (goroutinePerJob) Workers() int { return 0 }
func (goroutinePerJob) Close()       {}

// channelPool has a fixed number of workers, and rejects jobs while its channel is full.
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

// publishedPool works like go-adaptive-pool, according to that module's description.
type publishedPool struct {
	channelPool
	running atomic.Int64
	stop    chan struct{}
}

const (
	publishedMinWorkers = 100
	publishedThreshold  = 0.7
	publishedIdleTime   = 30 * time.Second
)

func newPublishedPool(p Plan) (Contender, error) {
	c := &publishedPool{channelPool: channelPool{jobs: make(chan *Job, p.Queue), workers: p.Workers}, stop: make(chan struct{})}
	c.startWorkers(min(publishedMinWorkers, p.Workers))
	c.done.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-c.stop:
				return
			}
			if cap(c.jobs) > 0 && float64(len(c.jobs)) >= publishedThreshold*float64(cap(c.jobs)) {
				n := int(c.running.Load())
				c.startWorkers(min(n/4, c.workers-n))
			}
		}
	})
	return c, nil
}

func (c *publishedPool) startWorkers(n int) {
	for range n {
		c.running.Add(1)
		c.done.Go(c.runJobsUntilIdleAboveMinimum)
	}
}

func (c *publishedPool) runJobsUntilIdleAboveMinimum() {
	idle := time.NewTimer(publishedIdleTime)
	defer idle.Stop()
	for {
		select {
		case j, ok := <-c.jobs:
			if !ok {
				c.running.Add(-1)
				return
			}
			j.Execute()
			idle.Reset(publishedIdleTime)
		case <-idle.C:
			if c.running.Add(-1) >= publishedMinWorkers {
				return
			}
			c.running.Add(1)
			idle.Reset(publishedIdleTime)
		}
	}
}

func (c *publishedPool) Workers() int { return int(c.running.Load()) }
func (c *publishedPool) Close() {
	close(c.stop)
	c.channelPool.Close()
}

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
