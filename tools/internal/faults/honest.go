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

const (
	maxHonestClients = 10_000
	defaultTimeout   = 20 * time.Second
	maxPadding       = 200
	redialPause      = 20 * time.Millisecond
)

// HonestClients send unique lines to a server, and wait for each line to come back. Set the fields before Start.
type HonestClients struct {
	// Addr is the server's address, as for net.Dial.
	Addr string
	// Dial, if not nil, replaces net.Dial.
	Dial  func() (net.Conn, error)
	Conns int
	// ThinkTime is the pause between an answer and the next line.
	ThinkTime time.Duration
	// Redial makes clients reconnect. Without Redial, a client ends with its connection.
	Redial bool
	// Timeout limits the wait for a connection or an answer. The default is 20 s.
	Timeout time.Duration

	clients []honestClient
	mu      sync.Mutex              // guards latency and report
	latency *hdrhistogram.Histogram // microseconds
	report  Report                  // without Answers
	stopped atomic.Bool
	ended   sync.WaitGroup
}

type honestClient struct {
	*HonestClients
	index   int
	conn    net.Conn
	in      *bufio.Reader
	random  *rand.Rand
	answers atomic.Int64
}

// Report contains the results of honest clients so far.
type Report struct {
	// Answers counts correct answers. Wrong counts answers that did not match their line.
	Answers, Wrong int64
	// Lost counts connections that ended or got no answer in time. FailedRedials counts failed attempts to reconnect.
	Lost, FailedRedials int64
	// First is the first error, or nil if there was none.
	First error
}

// Start connects all clients before any of them sends.
func (h *HonestClients) Start() error {
	if h.Conns < 1 || h.Conns > maxHonestClients {
		return fmt.Errorf("faults: Honest.Conns is %d; expected 1 to %d", h.Conns, maxHonestClients)
	}
	if h.Timeout == 0 {
		h.Timeout = defaultTimeout
	}
	if h.Dial == nil {
		h.Dial = func() (net.Conn, error) { return net.DialTimeout("tcp", h.Addr, h.Timeout) }
	}
	h.latency = newLatencyHistogram()
	h.clients = make([]honestClient, h.Conns)
	for i := range h.clients {
		c := &h.clients[i]
		c.HonestClients, c.index, c.random = h, i, rand.New(rand.NewPCG(uint64(i), 1))
		if err := c.connect(); err != nil {
			for j := range i {
				h.clients[j].conn.Close()
			}
			return err
		}
	}
	for i := range h.clients {
		h.ended.Go(h.clients[i].runUntilStopped)
	}
	return nil
}

func newLatencyHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, time.Minute.Microseconds(), 3)
}

// Stop waits for the pending answers, closes the connections and returns the results.
func (h *HonestClients) Stop() Report {
	h.stopped.Store(true)
	h.ended.Wait()
	return h.Report()
}

// Report returns the results so far. It is safe for concurrent use.
func (h *HonestClients) Report() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.report
	for _, n := range h.AnswersByClient() {
		r.Answers += n
	}
	return r
}

// AnswersByClient returns the number of correct answers of each client. It is safe for concurrent use.
func (h *HonestClients) AnswersByClient() []int64 {
	n := make([]int64, len(h.clients))
	for i := range h.clients {
		n[i] = h.clients[i].answers.Load()
	}
	return n
}

// TakeLatency returns the latencies since the last call, in microseconds. It is safe for concurrent use.
func (h *HonestClients) TakeLatency() *hdrhistogram.Histogram {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.latency
	h.latency = newLatencyHistogram()
	return was
}

func (c *honestClient) connect() error {
	conn, err := c.Dial()
	if err != nil {
		return fmt.Errorf("honest client %d: %w", c.index, err)
	}
	c.conn, c.in = conn, bufio.NewReader(conn)
	return nil
}

func (c *honestClient) runUntilStopped() {
	defer func() { c.conn.Close() }() // conn changes
	for n := 0; !c.stopped.Load(); n++ {
		if err := c.exchangeLine(n); err != nil {
			c.conn.Close()
			if !c.recordLossAndRedial(err) {
				return
			}
		}
		if c.ThinkTime > 0 {
			time.Sleep(c.ThinkTime)
		}
	}
}

var errWrong = errors.New("wrong answer")

func (c *honestClient) exchangeLine(lineNumber int) error {
	line := fmt.Appendf(nil, "client %d line %d ", c.index, lineNumber)
	for range c.random.IntN(maxPadding) {
		line = append(line, 'a'+byte(c.random.Uint32()%26))
	}
	line = append(line, '\n')
	begun := time.Now()
	c.conn.SetDeadline(begun.Add(c.Timeout))
	if _, err := c.conn.Write(line); err != nil {
		return err
	}
	answer, err := c.in.ReadSlice('\n')
	if err != nil {
		return fmt.Errorf("read answer after %q: %w", answer, err)
	}
	if !bytes.Equal(answer, line) {
		return fmt.Errorf("%w: sent %q, got %q", errWrong, line, answer)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers.Add(1)
	return c.latency.RecordValue(time.Since(begun).Microseconds())
}

// recordLossAndRedial records why a connection was lost. If Redial is set, it tries to reconnect until it succeeds or
// Stop is called. It reports whether the client is connected.
func (c *honestClient) recordLossAndRedial(cause error) bool {
	c.mu.Lock()
	if errors.Is(cause, errWrong) {
		c.report.Wrong++
	} else {
		c.report.Lost++
	}
	if c.report.First == nil {
		c.report.First = fmt.Errorf("client %d, from %v, after %d answers: %w", c.index, c.conn.LocalAddr(), c.answers.Load(), cause)
	}
	c.mu.Unlock()
	for c.Redial && !c.stopped.Load() {
		if c.connect() == nil {
			return true
		}
		c.mu.Lock()
		c.report.FailedRedials++
		c.mu.Unlock()
		time.Sleep(redialPause)
	}
	return false
}
