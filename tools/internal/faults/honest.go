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
	// honestPatience is how long one waits for a connection or an answer,
	// by default.
	honestPatience = 20 * time.Second
	// maxPad is how long lines are at most, beside their names.
	maxPad = 200
	// dialling is how many clients connect at a time.
	dialling = 32
	// redialPause is the time between two attempts to connect again.
	redialPause = 20 * time.Millisecond
)

// Honest is clients that use a server as it is meant: each sends a line that was
// never sent before, waits for its answer, which must be the same line, and goes
// on. They are a goroutine each. The fields are set before Start.
type Honest struct {
	// Addr is the server's, as for net.Dial.
	Addr string
	// In, if set, is the network to connect from.
	In *Namespace
	// Dial, if set, connects instead, to wherever it likes.
	Dial func() (net.Conn, error)
	// Conns is how many connections there are.
	Conns int
	// Pipeline is how many lines are sent at once, whose answers must come in
	// their order. The default is 1.
	Pipeline int
	// Think is a pause between an answer and the next line.
	Think time.Duration
	// Redial makes lost connections again. Otherwise a client ends with its
	// connection.
	Redial bool
	// Patience is how long to wait for one connection or answer. The default
	// is 20 s.
	Patience time.Duration

	clients []client
	latency *hdrhistogram.Histogram // microseconds
	mu      sync.Mutex              // guards latency and first
	first   error
	wrong   atomic.Int64
	lost    atomic.Int64
	failed  atomic.Int64
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
	lines   []byte
	answers atomic.Int64
}

// Report is what honest clients have seen so far.
type Report struct {
	// Answers counts right answers, Wrong those that were not for their line.
	Answers, Wrong int64
	// Lost counts connections that ended or gave no answer in time, Failed
	// attempts to connect again that failed.
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
		h.Dial = h.dial
	}
	h.Pipeline = max(h.Pipeline, 1)
	h.latency = newLatency()
	h.clients = make([]client, h.Conns)
	if err := h.connect(); err != nil {
		return err
	}
	for i := range h.clients {
		h.ended.Go(h.clients[i].run)
	}
	return nil
}

func newLatency() *hdrhistogram.Histogram { return hdrhistogram.New(1, time.Minute.Microseconds(), 3) }

// connect connects all clients, some at a time.
func (h *Honest) connect() error {
	errs := make([]error, len(h.clients))
	var all sync.WaitGroup
	for first := range min(dialling, len(h.clients)) {
		all.Go(func() {
			for i := first; i < len(h.clients); i += dialling {
				c := &h.clients[i]
				c.Honest, c.index, c.random = h, i, rand.New(rand.NewPCG(uint64(i), 1))
				errs[i] = c.connect()
			}
		})
	}
	all.Wait()
	err := errors.Join(errs...)
	for i := range h.clients {
		if c := &h.clients[i]; err != nil && c.conn != nil {
			c.conn.Close()
		}
	}
	return err
}

// dial is Dial unless that is set.
func (h *Honest) dial() (c net.Conn, err error) {
	dial := func() (err error) {
		c, err = net.DialTimeout("tcp", h.Addr, h.Patience)
		return err
	}
	if h.In != nil {
		err = h.In.Do(dial)
	} else {
		err = dial()
	}
	return c, err
}

// Stop lets each client wait for the answer that is due, closes the connections
// and reports.
func (h *Honest) Stop() Report {
	h.stopped.Store(true)
	h.ended.Wait()
	return h.Report()
}

// Report is safe for concurrent use.
func (h *Honest) Report() Report {
	r := Report{Wrong: h.wrong.Load(), Lost: h.lost.Load(), Failed: h.failed.Load()}
	for i := range h.clients {
		r.Answers += h.clients[i].answers.Load()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	r.First = h.first
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

// Latency is the time from a line to its answer, in microseconds, since the
// start or since it was last asked for.
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

// exchange sends lines and checks what comes back.
func (c *client) exchange(n int) error {
	c.lines = c.lines[:0]
	for i := range c.Pipeline {
		c.lines = fmt.Appendf(c.lines, "client %d line %d.%d ", c.index, n, i)
		for range c.random.IntN(maxPad) {
			c.lines = append(c.lines, 'a'+byte(c.random.Uint32()%26))
		}
		c.lines = append(c.lines, '\n')
	}
	begun := time.Now()
	if err := c.conn.SetDeadline(begun.Add(c.Patience)); err != nil {
		return err
	}
	if _, err := c.conn.Write(c.lines); err != nil {
		return err
	}
	for asked := range bytes.Lines(c.lines) {
		answer, err := c.in.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("after %q of an answer: %w", answer, err)
		}
		if !bytes.Equal(answer, asked) {
			return fmt.Errorf("%w: asked %q, got %q", errWrong, asked, answer)
		}
		c.mu.Lock()
		_ = c.latency.RecordValue(time.Since(begun).Microseconds()) // Patience bounds it
		c.mu.Unlock()
		c.answers.Add(1)
	}
	return nil
}

// again notes why a connection is given up, and makes another if asked to.
func (c *client) again(why error) bool {
	if errors.Is(why, errWrong) {
		c.wrong.Add(1)
	} else {
		c.lost.Add(1)
	}
	c.mu.Lock()
	if c.first == nil {
		c.first = fmt.Errorf("client %d, from %v, after %d answers: %w", c.index, c.conn.LocalAddr(), c.answers.Load(), why)
	}
	c.mu.Unlock()
	for c.Redial && !c.stopped.Load() {
		if c.connect() == nil {
			return true
		}
		c.failed.Add(1)
		time.Sleep(redialPause)
	}
	return false
}
