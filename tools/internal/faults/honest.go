package faults

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// The bounds of honest clients.
const (
	maxHonest = 10_000
	// honestPatience is how long one waits for a connection or an answer, by default.
	honestPatience = 20 * time.Second
	// maxPad is how long lines are at most, beside their names.
	maxPad = 200
	// redialPause is the time between two attempts to connect again.
	redialPause = 20 * time.Millisecond
)

// Honest is clients that use a server as it is meant: each sends a line that was never sent before,
// waits for its answer, which must be the same line, and goes on. They are a goroutine each. The
// fields are set before Start.
type Honest struct {
	// Addr is the server's, as for net.Dial.
	Addr string
	// Dial, if set, connects instead.
	Dial func() (net.Conn, error)
	// Conns is how many connections there are.
	Conns int
	// Think is a pause between an answer and the next line.
	Think time.Duration
	// Redial makes lost connections again. Otherwise a client ends with its connection.
	Redial bool
	// Patience is how long to wait for one connection or answer. The default is 20 s.
	Patience time.Duration

	clients []client
	mu      sync.Mutex              // guards latency and report
	latency *hdrhistogram.Histogram // microseconds
	report  Report                  // but for Answers
	stopped atomic.Bool
	ended   sync.WaitGroup
}

// client is one of them.
type client struct {
	*Honest
	index   int
	conn    net.Conn
	in      *bufio.Reader
	random  *rand.Rand
	answers atomic.Int64
}

// Report is what honest clients have seen so far.
type Report struct {
	// Answers counts right answers, Wrong those that were not for their line.
	Answers, Wrong int64
	// Lost counts connections that ended or gave no answer in time, Failed attempts to connect again
	// that failed.
	Lost, Failed int64
	// First is the first thing that went wrong, nil if nothing has.
	First error
}

// Start connects all clients and then lets them begin.
func (h *Honest) Start() error {
	if h.Conns < 1 || h.Conns > maxHonest {
		return fmt.Errorf("faults: Honest.Conns is %d; expected 1 to %d", h.Conns, maxHonest)
	}
	if h.Patience == 0 {
		h.Patience = honestPatience
	}
	if h.Dial == nil {
		h.Dial = func() (net.Conn, error) { return net.DialTimeout("tcp", h.Addr, h.Patience) }
	}
	h.latency = newLatency()
	h.clients = make([]client, h.Conns)
	for i := range h.clients {
		c := &h.clients[i]
		c.Honest, c.index, c.random = h, i, rand.New(rand.NewPCG(uint64(i), 1))
		if err := c.connect(); err != nil {
			for j := range i {
				h.clients[j].conn.Close()
			}
			return err
		}
	}
	for i := range h.clients {
		h.ended.Go(h.clients[i].run)
	}
	return nil
}

func newLatency() *hdrhistogram.Histogram { return hdrhistogram.New(1, time.Minute.Microseconds(), 3) }

// Stop lets each client wait for the answer that is due, closes the connections and reports.
func (h *Honest) Stop() Report {
	h.stopped.Store(true)
	h.ended.Wait()
	return h.Report()
}

// Report is safe for concurrent use.
func (h *Honest) Report() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.report
	for _, n := range h.Each() {
		r.Answers += n
	}
	return r
}

// Each is how many answers each client has had.
func (h *Honest) Each() []int64 {
	n := make([]int64, len(h.clients))
	for i := range h.clients {
		n[i] = h.clients[i].answers.Load()
	}
	return n
}

// Latency is the time from a line to its answer, in microseconds, since the start or since it was
// last asked for.
func (h *Honest) Latency() *hdrhistogram.Histogram {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.latency
	h.latency = newLatency()
	return was
}

func (c *client) connect() error {
	conn, err := c.Dial()
	if err != nil {
		return fmt.Errorf("honest client %d: %w", c.index, err)
	}
	c.conn, c.in = conn, bufio.NewReader(conn)
	return nil
}

func (c *client) run() {
	defer func() { c.conn.Close() }() // the last one, which changes
	for n := 0; !c.stopped.Load(); n++ {
		if err := c.exchange(n); err != nil {
			c.conn.Close()
			if !c.again(err) {
				return
			}
		}
		if c.Think > 0 {
			time.Sleep(c.Think)
		}
	}
}

// errWrong is an answer that is not the one for its line.
var errWrong = errors.New("wrong answer")

// exchange sends a line and checks what comes back.
func (c *client) exchange(n int) error {
	line := fmt.Appendf(nil, "client %d line %d ", c.index, n)
	for range c.random.IntN(maxPad) {
		line = append(line, 'a'+byte(c.random.Uint32()%26))
	}
	line = append(line, '\n')
	begun := time.Now()
	c.conn.SetDeadline(begun.Add(c.Patience))
	if _, err := c.conn.Write(line); err != nil {
		return err
	}
	answer, err := c.in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("after %q of an answer: %w", answer, err)
	}
	if !bytes.Equal(answer, line) {
		return fmt.Errorf("%w: asked %q, got %q", errWrong, line, answer)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers.Add(1)
	return c.latency.RecordValue(time.Since(begun).Microseconds())
}

// again notes why a connection is given up, and makes another if asked to.
func (c *client) again(why error) bool {
	c.mu.Lock()
	if errors.Is(why, errWrong) {
		c.report.Wrong++
	} else {
		c.report.Lost++
	}
	if c.report.First == nil {
		c.report.First = fmt.Errorf("client %d, from %v, after %d answers: %w", c.index, c.conn.LocalAddr(), c.answers.Load(), why)
	}
	c.mu.Unlock()
	for c.Redial && !c.stopped.Load() {
		if c.connect() == nil {
			return true
		}
		c.mu.Lock()
		c.report.Failed++
		c.mu.Unlock()
		time.Sleep(redialPause)
	}
	return false
}
