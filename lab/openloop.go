package lab

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/myriad-go/myriad/internal/offer"
)

// openLoop sends lines to a server at fixed times, whether or not it answers. The
// lines of all connections together are due at a constant rate, and go to the
// connections in turn. A latency runs from when a line was due until its answer is
// here.
//
// A few goroutines, the senders, have a share of the connections each and write to
// them; each connection has a goroutine that reads. What the two have in common of a
// connection is a channel with the times of the lines that are in flight: there is
// room for depth of them, and a line that is due when there is none is not sent, but
// counted. So little is in flight that a write never waits. All goroutines have
// ended when run returns.
type openLoop struct {
	addr            string
	conns, depth    int
	rate            float64       // lines a second
	duration, drain time.Duration // to send, and then to wait for answers
	deadline        time.Duration

	began time.Time
	open  []*openConn

	sent, late, missed, lost atomic.Uint64

	mu      sync.Mutex // guards what readers share, below
	ok      uint64
	busy    uint64
	good    uint64
	failed  uint64 // lines with a wrong answer
	wrong   uint64 // answers that were wrong, also those to no line
	first   error  // the first of them
	last    time.Duration
	latency *hdrhistogram.Histogram // of ok, in microseconds
}

// openConn is one connection.
type openConn struct {
	net.Conn
	id       int
	inFlight chan time.Duration // when each line was due, since began
	sent     int                // the sender's
	lines    atomic.Int64       // that have been written and not answered
	broken   atomic.Bool
}

const (
	// maxSenders bounds the goroutines that write.
	maxSenders = 4
	// openLate is how much later than due a line counts as late.
	openLate = 10 * time.Millisecond
	// busyAnswer is what a server says to a request that it has shed.
	busyAnswer = "busy"
	// maxOpenLatency bounds the latencies that are told apart.
	maxOpenLatency = time.Minute
	dialBound      = 5 * time.Second
)

// run connects, sends, waits for the last answers and closes. It fails when it can't
// connect, or when ctx ends.
func (l *openLoop) run(ctx context.Context) error {
	l.latency = hdrhistogram.New(1, maxOpenLatency.Microseconds(), 3)
	defer func() {
		for _, c := range l.open {
			c.Close()
		}
	}()
	if err := l.connect(ctx); err != nil {
		return err
	}
	var readers, writers sync.WaitGroup
	l.began = time.Now()
	for _, c := range l.open {
		readers.Go(func() { l.read(c) })
	}
	bound, cancel := context.WithTimeout(ctx, l.duration+l.drain)
	defer cancel()
	for i := range l.senders() {
		writers.Go(func() { l.send(bound, i) })
	}
	writers.Wait()
	l.settle(bound)
	for _, c := range l.open {
		c.broken.Store(true) // its end is ours
		c.Close()
	}
	readers.Wait()
	return context.Cause(ctx)
}

// connect opens all connections.
func (l *openLoop) connect(ctx context.Context) error {
	dialer := net.Dialer{Timeout: dialBound}
	for i := range l.conns {
		conn, err := dialer.DialContext(ctx, "tcp", l.addr)
		if err != nil {
			return fmt.Errorf("connection %d of %d: %w", i+1, l.conns, err)
		}
		l.open = append(l.open, &openConn{Conn: conn, id: i, inFlight: make(chan time.Duration, l.depth)})
	}
	return nil
}

// send sends the lines of a sender: those of its connections.
func (l *openLoop) send(ctx context.Context, sender int) {
	total, conns := uint64(l.rate*l.duration.Seconds()), uint64(l.conns)
	for n := range total {
		if l.sender(n%conns) != sender {
			continue
		}
		due := time.Duration(float64(n) / l.rate * float64(time.Second))
		if wait := due - time.Since(l.began); wait > 0 {
			_ = pause(ctx, wait)
		}
		if ctx.Err() != nil {
			l.missed.Add(1)
			continue
		}
		l.sendTo(l.open[n%conns], due)
	}
}

// sender is who writes to a connection.
func (l *openLoop) sender(conn uint64) int { return int(conn) % l.senders() }

func (l *openLoop) senders() int { return min(maxSenders, l.conns) }

// sendTo sends a line, unless the connection has too many in flight.
func (l *openLoop) sendTo(c *openConn, due time.Duration) {
	select {
	case c.inFlight <- due:
	default:
		l.missed.Add(1)
		return
	}
	if c.broken.Load() {
		l.missed.Add(1)
		return
	}
	if time.Since(l.began)-due > openLate {
		l.late.Add(1)
	}
	l.sent.Add(1)
	c.lines.Add(1)
	line := openLine(c.id, c.sent)
	c.sent++
	if _, err := c.Write(append(line, '\n')); err != nil {
		l.lose(c)
	}
}

// openLine is the line of a number on a connection, without its end.
func openLine(id, n int) []byte {
	line := strconv.AppendInt(append(make([]byte, 0, 32), "job "...), int64(id), 10)
	return strconv.AppendInt(append(line, ' '), int64(n), 10)
}

// lose counts a connection that has ended by itself.
func (l *openLoop) lose(c *openConn) {
	if !c.broken.Swap(true) {
		l.lost.Add(1)
	}
}

// read takes the answers of a connection until it ends. They come in the order of
// the lines.
func (l *openLoop) read(c *openConn) {
	lines := bufio.NewScanner(c)
	for n := 0; lines.Scan(); n++ {
		select {
		case due := <-c.inFlight:
			c.lines.Add(-1)
			l.answer(string(lines.Bytes()), string(openLine(c.id, n)), due)
		default:
			l.unasked(lines.Text())
		}
	}
	l.lose(c)
}

// answer counts an answer.
func (l *openLoop) answer(got, want string, due time.Duration) {
	now := time.Since(l.began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = now
	switch got {
	case busyAnswer:
		l.busy++
	case want:
		l.ok++
		if now-due <= l.deadline {
			l.good++
		}
		_ = l.latency.RecordValue(min(now-due, maxOpenLatency).Microseconds())
	default:
		l.failed++
		l.mistake(fmt.Errorf("got %.100q, expected %q or %q", got, want, busyAnswer))
	}
}

// unasked counts an answer to no line.
func (l *openLoop) unasked(got string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mistake(fmt.Errorf("got %.100q when no line was waiting for an answer", got))
}

// mistake counts a wrong answer. The caller has the lock.
func (l *openLoop) mistake(what error) {
	l.wrong++
	if l.first == nil {
		l.first = what
	}
}

// settle waits until every line on a connection that is still there is answered, or
// until ctx ends.
func (l *openLoop) settle(ctx context.Context) {
	waiting := func(c *openConn) bool { return c.lines.Load() > 0 && !c.broken.Load() }
	for slices.ContainsFunc(l.open, waiting) && pause(ctx, time.Millisecond) == nil {
	}
}

// result is what was counted, after run. A wrong answer is a job that has finished
// and was of no use.
func (l *openLoop) result(r *offer.Result) {
	micro := func(q float64) time.Duration {
		return time.Duration(l.latency.ValueAtQuantile(q)) * time.Microsecond
	}
	r.Rate, r.Duration, r.Elapsed = l.rate, l.duration, max(l.last, l.duration)
	r.Offered, r.Late, r.Missed = l.sent.Load(), l.late.Load(), l.missed.Load()
	r.Rejected, r.Accepted = l.busy, r.Offered-l.busy
	r.Finished, r.Good = l.ok+l.failed, l.good
	r.Unfinished = r.Accepted - r.Finished
	r.P50, r.P99, r.P999 = micro(50), micro(99), micro(99.9)
	r.Max = time.Duration(l.latency.Max()) * time.Microsecond
	r.Mean = time.Duration(l.latency.Mean() * float64(time.Microsecond))
}
