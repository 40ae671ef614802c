// Package offer offers jobs to a pool in an open loop, and counts what becomes of
// them: one side of a comparison of pools under overload, as a process.
//
// Jobs are due at fixed times, whether or not the pool keeps up. A job's latency
// runs from its submission, the moment right before the pool is asked, until it has
// ended, so it has in it the time that the pool took to accept it and that it waited.
// Its deadline counts from there, too.
//
// How late jobs were submitted is counted on its own and reported beside it. The
// generator shares the processors with the pool, and what it is late by is not the
// pool's latency. But a pool that holds up who submits to it must not look better for
// that (coordinated omission, G. Tene): every job that was due is submitted, late if
// it has to be, or counted as missed.
//
// One goroutine submits, the first lane of the generator, with others in reserve for
// when it is held up; one, the sampler, looks at the process; the pool's own run the
// jobs. They share counters only, which are atomic and, where jobs end, spread over
// shards. A job belongs to the lane that submits it, from its acceptance on to the
// pool, and from its end on to the lane that takes it next. Run starts them all and
// waits for them, but not for a pool that hangs.
package offer
