package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/myriad-go/myriad"
	"github.com/myriad-go/myriad/internal/procfs"
)

// MillionSample is how it was at one moment.
type MillionSample struct {
	At time.Time `json:"at"`
	// Counts are the server's own.
	Counts MillionCounts `json:"counts"`
	// Server and Load are what the two sides use. One that has ended uses nothing.
	Server MillionSide `json:"server"`
	Load   MillionSide `json:"load"`
	// Slab is the kernel's memory of small objects, Tables that of page tables and
	// of the stacks of threads: the whole machine's, in bytes.
	Slab   int64 `json:"slab"`
	Tables int64 `json:"tables"`
	// Free is the machine's memory that nothing uses, in bytes.
	Free int64 `json:"free"`
	// Busy is the processor time that all processes of the machine, and its kernel,
	// have used since it started.
	Busy time.Duration `json:"busy"`
	// Sockets are the TCP sockets of this network namespace that are open, TimeWait
	// those that wait for the end of their time, Files what the whole machine has
	// open of files and sockets.
	Sockets  int64 `json:"sockets"`
	TimeWait int64 `json:"time_wait"`
	Files    int64 `json:"files"`
}

// Kernel is the kernel's memory for what is open, in bytes.
func (s *MillionSample) Kernel() int64 { return s.Slab + s.Tables }

// MillionCounts are counters of the server since its start, but for Open, which is
// how many connections there are. With worker processes they are those of all.
type MillionCounts struct {
	Open       int64 `json:"open"`
	Accepted   int64 `json:"accepted"`
	Refused    int64 `json:"refused"`
	Messages   int64 `json:"messages"`
	Heartbeats int64 `json:"heartbeats"`
	// Unanswered are connections that were closed because they answered none.
	Unanswered int64 `json:"unanswered"`
	Dropped    int64 `json:"dropped"`
	Restarts   int64 `json:"restarts"`
}

// MillionSide is what the processes of one side use together.
type MillionSide struct {
	// CPU is their processor time since they began.
	CPU time.Duration `json:"cpu"`
	// RSS and PSS are their memory in bytes: pages that they share count for each
	// in RSS, and once in PSS. Anonymous is what no file holds: heap and stacks.
	RSS       int64 `json:"rss"`
	PSS       int64 `json:"pss"`
	Anonymous int64 `json:"anonymous"`
	Processes int   `json:"processes"`
	Threads   int   `json:"threads"`
}

// before takes the sample from which on growth is counted.
func (m *millionRunner) before(ctx context.Context) (err error) {
	m.collect(ctx, firstCollections)
	m.record.Before, err = m.sample(ctx)
	return err
}

// collect has a server of one process collect its garbage: of several only the one that
// shows figures would.
func (m *millionRunner) collect(ctx context.Context, times int) {
	if m.whole.Processes == 0 {
		MetricsSource{Addr: m.stats.admin, client: m.stats.client}.collect(ctx, times)
	}
}

// sample looks at the server, the generator and the machine.
func (m *millionRunner) sample(ctx context.Context) (s MillionSample, err error) {
	s.At = time.Now()
	if s.Counts, err = m.stats.await(ctx, countBound, func(*MillionCounts) bool { return true }); err != nil {
		return s, err
	}
	if s.Server, err = readSide(m.server.process.pid()); err != nil {
		return s, err
	}
	if s.Load, err = m.readLoad(); err != nil {
		return s, err
	}
	return s, s.readMachine()
}

// readLoad is the generator's side. When it has ended only its time is left, and before
// it begins there is nothing.
func (m *millionRunner) readLoad() (MillionSide, error) {
	if m.generator == nil { // it has not begun
		return MillionSide{}, nil
	}
	p := m.generator.generator
	side, err := readSide(p.pid())
	if err == nil {
		return side, nil
	}
	p.await(time.Second) // it may be about to end
	select {
	case <-p.done:
		state := p.cmd.ProcessState
		return MillionSide{CPU: state.UserTime() + state.SystemTime()}, nil
	default:
		return side, err
	}
}

// readSide adds up the processes of a group.
func readSide(group int) (side MillionSide, err error) {
	pids, err := procfs.Group(group)
	if err != nil {
		return side, err
	}
	return side, each(pids, side.add)
}

// add adds a process.
func (s *MillionSide) add(pid int) error {
	stat, err := procfs.ReadStat(pid)
	if err != nil {
		return err
	}
	memory, err := procfs.ReadMemory(pid)
	if err != nil {
		return err
	}
	resident, err := procfs.ReadResident(pid)
	if err != nil {
		return err
	}
	s.CPU += stat.CPU()
	s.RSS += memory.RSS
	s.PSS += memory.PSS
	s.Anonymous += resident.Anonymous
	s.Processes++
	s.Threads += stat.Threads
	return nil
}

// readMachine reads what is the whole machine's.
func (s *MillionSample) readMachine() error {
	m, err := procfs.ReadMeminfo()
	s.Slab, s.Tables, s.Free = m.Slab, m.PageTables+m.KernelStacks, m.Free
	sockets, socketsErr := procfs.ReadSocketCounts()
	s.Sockets, s.TimeWait = sockets.Open, sockets.TimeWait
	files, filesErr := procfs.ReadSysctl("fs.file-nr")
	if filesErr == nil {
		_, filesErr = fmt.Sscan(files, &s.Files)
	}
	cpus, cpusErr := procfs.ReadCPUs()
	s.Busy = cpus.All.Busy
	return errors.Join(err, socketsErr, filesErr, cpusErr)
}

// serverStats are a server's counters, as "serve --admin" tells them.
type serverStats struct {
	admin  string
	client *http.Client
}

// newServerStats asks over one connection, which close closes.
func newServerStats(admin string) serverStats {
	return serverStats{admin, &http.Client{Transport: &http.Transport{DialContext: dialTraceless, MaxConnsPerHost: 1}}}
}

func (s serverStats) close() { s.client.CloseIdleConnections() }

// await asks for them until they are as wanted, but not for longer than bound, and says
// what they were at last. A question without an answer, as on a busy machine, is asked
// again too.
func (s serverStats) await(ctx context.Context, bound time.Duration, so func(*MillionCounts) bool) (MillionCounts, error) {
	for end := time.Now().Add(bound); ; {
		c, err := s.read(ctx)
		if err == nil && so(&c) || time.Now().After(end) {
			return c, err
		}
		if err := pause(ctx, poll); err != nil {
			return c, err
		}
	}
}

// read asks for them once.
func (s serverStats) read(ctx context.Context) (c MillionCounts, err error) {
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+s.admin+"/stats", nil)
	if err != nil {
		return c, err
	}
	answer, err := s.client.Do(ask)
	if err != nil {
		return c, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return c, fmt.Errorf("the server's counters: status %s; expected 200", answer.Status)
	}
	var stats myriad.Stats
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxMetrics)) // to its end, or the connection isn't used again
	if err == nil {
		err = json.Unmarshal(body, &stats)
	}
	if err != nil {
		return c, fmt.Errorf("the server's counters: %w", err)
	}
	if stats.Model == "" {
		return c, errors.New("the server's counters are not there: it does not serve")
	}
	return MillionCounts{
		Open: stats.Open, Accepted: stats.Accepted, Refused: stats.Refused.Total(),
		Messages: stats.Messages, Heartbeats: stats.Heartbeats, Unanswered: stats.Closed.Heartbeat,
		Dropped: stats.Dropped, Restarts: stats.Restarts,
	}, nil
}
