package pool

import (
	"context"
	"runtime"
	"sync/atomic"
	"unsafe"
)

// Submit has job run by a worker. It waits until there is room for it, or until ctx
// ends, which is the job's context, too. The error is ErrClosed, or ErrExpired: then
// the job does not run.
func (p *Pool) Submit(ctx context.Context, job Func) error {
	p.note(0)
	if ctx == background && p.fast(job) {
		return nil
	}
	return p.SubmitTask(Task{Job: job.job(), Ctx: ctx})
}

// TrySubmit has job run by a worker, or says at once why not: ErrFull or ErrClosed.
func (p *Pool) TrySubmit(job Func) error {
	p.note(0)
	if p.packed() {
		return p.count(errNoRoom)
	}
	if p.fast(job) {
		return nil
	}
	return p.TrySubmitTask(Task{Job: job.job()})
}

// SubmitTask is Submit for a task. It waits until t.Ctx ends.
func (p *Pool) SubmitTask(t Task) error {
	err := p.admit(&t)
	if err == nil {
		err = errNoRoom
		if p.queued.Load() == 0 || t.Priority == High {
			err = p.offer(&t)
		}
	}
	if err == errNoRoom {
		err = p.await(t.Ctx, &t)
	}
	return p.count(err)
}

// TrySubmitTask is TrySubmit for a task; if t.Ctx has ended the error is ErrExpired.
func (p *Pool) TrySubmitTask(t Task) error {
	err := p.admit(&t)
	if err == nil {
		err = errNoRoom
		if (p.queued.Load() == 0 || t.Priority == High) && !p.packed() {
			err = p.offer(&t)
		}
		for range returning {
			if err != errNoRoom || p.cfg.Queue > 0 {
				break
			}
			runtime.Gosched()
			err = p.offer(&t)
		}
	}
	return p.count(err)
}

// returning is how often who finds no worker where nothing can wait looks again: one
// may just be returning from the job whose end was the reason for this one.
const returning = 8

// packed says, for the price of a few loads, that no task can be accepted now,
// because there is no room and none has precedence over another. Under overload that
// is the answer to most.
func (p *Pool) packed() bool {
	return p.searching.Load() == 0 && !p.roomy() && !p.mixed.Load() && !p.several() &&
		p.cfg.Queue > 0 && !p.closed.Load()
}

// fast submits as most do: a job without a context, a priority or a key, where
// nobody has to be woken and a shard has room. It says whether it could; otherwise
// nothing has happened.
func (p *Pool) fast(job Func) bool {
	if p.queued.Load() != 0 || p.wants() || job == nil {
		return false
	}
	at := p.clock.Load()
	if !p.trust.quick() {
		at = p.now()
	}
	first, mask := p.first(), len(p.shards)-1
	for i := range p.shards {
		s := &p.shards[(first+i)&mask]
		if s.full.Load() || !s.mu.TryLock() {
			continue
		}
		ok := !s.closed && s.n < s.cap && s.levels[normal].flows[0].append(job, at)
		if ok {
			s.pushed++
			s.added(&s.levels[normal], normal, 0)
		}
		s.mu.Unlock()
		if ok && p.wants() {
			p.rouse()
		}
		return ok
	}
	return false
}

// wants says whether who submits is to see to a worker for its task: nobody
// searches, and there is one to be had. While jobs are quick it is enough that
// anybody works who will be back soon, and has others help if it takes many (see
// pass); that somebody will not, because a job takes long for once, the tender finds
// out.
func (p *Pool) wants() bool {
	return p.searching.Load() == 0 && p.vacant() && !(p.trust.quick() && p.active() > p.stuck.Load())
}

// extra is how many more workers there may be for tasks that find no room where
// nothing can wait: those that are just returning from a job can't take another yet,
// and no pool that is idle is to refuse one.
func (p *Pool) extra() int64 {
	if p.cfg.Queue > 0 {
		return 0
	}
	return max(0, min(p.procs, int64(p.most.Load())-p.limit.Load()))
}

// active is how many workers are not parked.
func (p *Pool) active() int64 { return p.workers() - p.idle.n.Load() }

// vacant says whether there is a worker for one more task, or may be.
func (p *Pool) vacant() bool {
	return p.idle.head.Load()&numberMask != 0 || p.workers() < p.limit.Load()
}

// admit looks at a task.
func (p *Pool) admit(t *Task) error {
	if t.Job == nil {
		panic("pool: a task without a job")
	}
	if t.Ctx != nil {
		if t.Ctx == background || t.Ctx == todo {
			t.Ctx = nil
		} else if t.Ctx.Err() != nil {
			return &expired{context.Cause(t.Ctx)}
		}
	}
	if t.Priority != Normal {
		t.Priority = min(max(t.Priority, Low), High)
		raise(&p.mixed)
	}
	p.note(t.Key)
	return nil
}

// These need no watching: they don't end.
var background, todo = context.Background(), context.TODO()

// count counts a task that was not accepted.
func (p *Pool) count(err error) error {
	switch err {
	case nil:
	case errNoRoom:
		p.shards[p.near()].refused.Add(1)
		return ErrFull
	case ErrClosed:
		p.refused.Add(1)
	default:
		p.late.Add(1)
	}
	return err
}

// offer gives a task to a worker, or to the queue.
func (p *Pool) offer(t *Task) error {
	if p.closed.Load() {
		return ErrClosed
	}
	if p.wants() && !p.waiting() && p.direct(t, 0) {
		return nil
	}
	if err := p.push(t); err != errNoRoom {
		return err
	}
	if p.direct(t, p.extra()) {
		return nil
	}
	if p.searching.Load() == 0 || len(p.shards) > 1 {
		return errNoRoom
	}
	// Where there is little room or none, those who search stand for some, too.
	err := p.pushTo(t, p.now(), toSearcher)
	if err == nil && p.wants() {
		p.rouse()
	}
	return err
}

// direct gives a task to a parked worker, or to a new one, also extra above the
// limit.
func (p *Pool) direct(t *Task, extra int64) bool {
	if !p.vacant() && extra == 0 {
		return false
	}
	o := p.order(t) // before anybody may think that the time is known
	if w := p.popIdle(); w != nil {
		p.stir()
		w.wake <- o
	} else if p.workers() >= p.limit.Load()+extra || !p.spawn(o, extra) {
		return false
	}
	p.handed.Add(1)
	return true
}

// order is to run a task at once.
func (p *Pool) order(t *Task) order {
	now := p.now()
	p.clock.Store(now)
	return order{task: *t, at: now}
}

// push gives a task to the queue.
func (p *Pool) push(t *Task) error {
	at := p.clock.Load()
	if !p.trust.quick() {
		at = p.now()
	}
	err := p.pushTo(t, at, inRoom)
	if err == errNoRoom && p.rule.shed && (p.mixed.Load() || p.several()) {
		err = p.pushTo(t, at, inPlace)
	}
	if err == nil && p.wants() {
		p.rouse()
	}
	return err
}

// way is how a task gets into a shard.
type way int

const (
	inRoom     way = iota // where there is room
	inPlace               // where another one can be made to give way
	toSearcher            // where there is no room, but somebody about to take it
)

// pushTo looks for a shard that takes a task.
func (p *Pool) pushTo(t *Task, at int64, how way) error {
	first, mask := p.first(), len(p.shards)-1
	for round := 0; ; round++ {
		missed := false
		for i := range p.shards {
			s := &p.shards[(first+i)&mask]
			if how == inRoom && s.full.Load() {
				continue
			}
			if !s.mu.TryLock() {
				if missed = true; round < tries {
					continue
				}
				s.mu.Lock()
			}
			if s.closed {
				s.mu.Unlock()
				return ErrClosed
			}
			ok, victim := false, Job(nil)
			switch how {
			case inRoom:
				ok = s.push(t, at, 0)
			case inPlace:
				ok, victim = s.press(t, at)
			case toSearcher:
				ok = s.push(t, at, int(p.searching.Load()))
			}
			s.mu.Unlock()
			if victim != nil {
				p.tell(victim, ErrShed)
			}
			if ok {
				return nil
			}
		}
		if !missed {
			return errNoRoom
		}
	}
}

// note notes that there are tasks of a key.
func (p *Pool) note(key uint64) {
	if bit := uint64(1) << p.rule.place(key); p.places.Load()&bit == 0 {
		p.places.Or(bit)
	}
}

// several says whether there have been keys in several places, which take turns.
func (p *Pool) several() bool {
	places := p.places.Load()
	return places&(places-1) != 0
}

// first is the shard where who submits looks first. Keys take turns in each shard, not
// over all of them: for that to be fair the tasks of each have to be in all shards,
// also when one goroutine submits them. So then the shards are gone over, each time in
// another order, lest each n-th task, of a certain key, go to a certain shard.
func (p *Pool) first() int {
	if !p.several() {
		return p.near()
	}
	n := uint64(p.round.Add(1))
	lap := n >> (64 - p.shift)
	return int(n^spread(lap)>>p.shift) & (len(p.shards) - 1)
}

// spread is Fibonacci hashing: the upper bits of what it gives differ for numbers that
// hardly do.
func spread(n uint64) uint64 { return n * 0x9E3779B97F4A7C15 }

// near is the shard of the goroutine that runs: one is as good as the other, as
// long as it is often the same for one goroutine, and mostly not for two. Where its
// stack lies says that for nothing.
func (p *Pool) near() int {
	var here byte
	return int(spread(uint64(uintptr(unsafe.Pointer(&here))>>11)) >> p.shift)
}

// raise raises a flag, which is seldom down.
func raise(flag *atomic.Bool) {
	if !flag.Load() {
		flag.Store(true)
	}
}
