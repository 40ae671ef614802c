package jobload

import (
	"bufio"
	"bytes"
	"cmp"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/myriad-go/myriad/tools/internal/sample"
)

// serverContender submits jobs as HTTP requests to a server in a process of its own. A connection carries one request
// at a time. If no connection is free, the job is rejected.
type serverContender struct {
	plan   Plan
	server *exec.Cmd
	addr   string
	free   chan *jobConn
	all    []*jobConn
	done   sync.WaitGroup // readers

	cpuBefore            time.Duration
	inWindow             atomic.Bool
	finished, finishedOf atomic.Int64 // see ServerFigures
}

// jobConn is a connection to the server. While a request waits for its answer, only the goroutine that reads the
// connection's answers may use the jobConn. At other times, only the goroutine that submits jobs may use it.
type jobConn struct {
	net.Conn
	job     *Job
	isOther bool // from one of the addresses of Plan.Sources
}

func newServerContender(p Plan) (Contender, error) {
	self, err := os.Executable()
	c := &serverContender{plan: p, free: make(chan *jobConn, p.Connections)}
	c.server = exec.Command(self, "offer", "--serve", "--pool", p.Pool, "--work", p.Work, "--iterations", strconv.FormatUint(p.Iterations, 10))
	c.server.Stderr = os.Stderr
	_, inErr := c.server.StdinPipe() // is closed when this process ends, which ends the server
	out, outErr := c.server.StdoutPipe()
	if err = cmp.Or(err, inErr, outErr); err == nil {
		err = c.server.Start()
	}
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	c.addr = strings.TrimSpace(line)
	for i := 0; i < p.Connections && err == nil; i++ {
		err = c.connect(i)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("the server: %w", err)
	}
	return c, nil
}

func (c *serverContender) connect(i int) error {
	x, d := new(jobConn), net.Dialer{Timeout: connectTimeout}
	if x.isOther = c.plan.Sources > 0 && i%11 == 0; x.isOther {
		n := i / 11 % c.plan.Sources
		d.LocalAddr = &net.TCPAddr{IP: net.IPv4(127, 1, byte(n>>8), byte(n))}
	}
	var err error
	if x.Conn, err = d.Dial("tcp", c.addr); err != nil {
		return err
	}
	c.all = append(c.all, x)
	c.free <- x
	c.done.Go(func() { c.countAnswersUntilError(x) })
	return nil
}

func (c *serverContender) TrySubmit(j *Job) bool {
	select {
	case x := <-c.free:
		x.job = j
		_, err := x.Write(jobRequest)
		return err == nil // otherwise the reader ends, too
	default:
		return false
	}
}

func (c *serverContender) countInWindow(n *atomic.Int64, condition bool) {
	if condition && c.inWindow.Load() {
		n.Add(1)
	}
}

// countAnswersUntilError reads the answers on x until x is closed or an answer is invalid.
func (c *serverContender) countAnswersUntilError(x *jobConn) {
	in := bufio.NewReaderSize(x, 1024)
	for {
		isOK, err := readResponse200Or503(in)
		if err != nil {
			return
		}
		j := x.job
		if isOK {
			j.CountAsFinished()
			c.countInWindow(&c.finished, true)
			c.countInWindow(&c.finishedOf, x.isOther)
		} else {
			j.CountAsShed()
		}
		c.free <- x
	}
}

var (
	jobRequest    = []byte("GET / HTTP/1.1\r\nHost: server\r\n\r\n")
	statusOK      = []byte("HTTP/1.1 200 ")
	statusShed    = []byte("HTTP/1.1 503 ")
	contentLength = []byte("content-length: ")
)

func readResponse200Or503(in *bufio.Reader) (is200 bool, err error) {
	line, err := in.ReadSlice('\n')
	if is200 = bytes.HasPrefix(line, statusOK); err == nil && !is200 && !bytes.HasPrefix(line, statusShed) {
		return false, fmt.Errorf("answer %q; expected status 200 or 503", line)
	}
	for n := 0; err == nil; {
		line, err = in.ReadSlice('\n')
		if len(line) == 2 {
			_, err = in.Discard(n)
			return is200, err
		}
		if len(line) > len(contentLength) && bytes.EqualFold(line[:len(contentLength)], contentLength) {
			if n, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return false, err
			}
		}
	}
	return false, err
}

func (c *serverContender) cpu() time.Duration {
	s, _ := sample.TakeSample(sample.CPU, c.server.Process.Pid) // 0 if the system does not report it
	p := s.SumOfProcesses()
	return p.User + p.System
}

func (c *serverContender) beginWindowAndRecordCPUOnce() {
	if c.inWindow.CompareAndSwap(false, true) {
		c.cpuBefore = c.cpu()
	}
}

const (
	connectTimeout = 10 * time.Second
	probeInterval  = 20 * time.Millisecond
	probesInRow    = 10
	maxProbeTime   = 100 * time.Millisecond
	maxRecovery    = 30 * time.Second
)

// measureRecoveryAndSetFigures measures how long the server takes to recover after the last job, and sets r.Server.
func (c *serverContender) measureRecoveryAndSetFigures(r *Result) {
	c.inWindow.Store(false)
	r.Server = &ServerFigures{CPU: c.cpu() - c.cpuBefore, FinishedOfOthers: c.finishedOf.Load(), Finished: c.finished.Load()}
	r.Server.Recovery = max(r.Elapsed-r.Duration, 0) + c.probeUntilRecovered()
}

// probeUntilRecovered sends requests one after the other until the server has recovered: it has answered probesInRow
// consecutive requests within maxProbeTime each. probeUntilRecovered returns the time from its start to the first of
// these consecutive requests. If the server does not recover within maxRecovery, it returns maxRecovery.
func (c *serverContender) probeUntilRecovered() time.Duration {
	start, fast := time.Now(), 0
	first := start
	for time.Since(start) < maxRecovery {
		if fast == 0 {
			first = time.Now()
		}
		if !c.probeIsAnsweredFast() {
			fast = 0
		} else if fast++; fast == probesInRow {
			return first.Sub(start)
		}
		time.Sleep(probeInterval)
	}
	return maxRecovery
}

func (c *serverContender) probeIsAnsweredFast() bool {
	nc, err := net.DialTimeout("tcp", c.addr, maxProbeTime)
	if err != nil {
		return false
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(maxProbeTime)) // fails only on a closed connection
	_, _ = nc.Write(jobRequest)                      // after an error, there is no answer
	isOK, err := readResponse200Or503(bufio.NewReader(nc))
	return isOK && err == nil
}

func (c *serverContender) Workers() int { return 0 }

// Close kills the server, because an overloaded server may take long to shut down.
func (c *serverContender) Close() {
	_ = c.server.Process.Kill() // fails only if it has ended
	for _, x := range c.all {
		_ = x.Close()
	}
	c.done.Wait()
	_ = c.server.Wait() // reports that the server was killed, and closes the pipe to its standard input
}
