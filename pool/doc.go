// Package pool runs jobs on a bounded number of goroutines, and keeps their
// latency when more jobs come than it can run.
//
// The number of workers follows the work. It grows while work waits and more
// workers finish more of it, and shrinks when they idle: jobs that compute end up
// with about as many workers as there are processors, jobs that wait with many
// more, without being told. It stays between Config.Min and Config.Max and within
// a budget of memory.
//
// The queue is bounded. A job that finds it full is turned away with ErrFull, or
// waits in Submit until its context ends. When jobs have waited for longer than
// Config.Target for all of Config.Interval, the queue has stopped to even out
// bursts and only adds delay. Then the newest jobs run first, because those have
// the best chance that somebody still waits for them, and those that have waited
// for too long are shed.
//
// Every job that is accepted ends in one of four ways, exactly once: it runs to
// its end (or panics), it expires because its context has ended before it began,
// it is shed, or it is dropped because the pool closes. A Job that is a [Dropper]
// is told of the last three.
//
// The package needs the standard library, and of this module the reader of the
// memory limits of cgroups. It is what the workers of a
// myriad.Server run on, and knows nothing of that.
package pool
