package tcp

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
)

// exchangeLines exchanges messages until round is negative, each in a slot of inFlight. It calls done when it has
// exchanged two messages since round has changed. The process ends if an answer is wrong.
func exchangeLines(c *tls.Conn, round *atomic.Int64, inFlight chan struct{}, done func()) {
	defer c.Close()
	r := bufio.NewReader(c)
	var reported int64
	exchanged := 0
	for i := 2; ; i++ {
		inFlight <- struct{}{}
		current := round.Load()
		if current < 0 {
			<-inFlight
			return
		}
		if err := exchangeNumbered(c, r, i); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		<-inFlight
		if current == reported {
			continue
		}
		if exchanged++; exchanged == 2 {
			reported, exchanged = current, 0
			done()
		}
	}
}

func exchangeNumbered(c *tls.Conn, r *bufio.Reader, i int) error {
	_, err := io.WriteString(c, "x\n")
	if err != nil {
		return err
	}
	answer, err := r.ReadString('\n')
	if err == nil && answer != fmt.Sprintf("x %d\n", i) {
		err = errors.New("a wrong answer")
	}
	if err != nil {
		return fmt.Errorf("message %d is answered by %q: %w", i, answer, err)
	}
	return nil
}

// connectedEach is the number of new clients after which runClients reports progress.
const connectedEach = 500

// runClients is the main function of a process that connects n clients. From the first line of input to the end of the
// input, they exchange messages, 100 of them at a time. It prints "ready" when all are connected and, for each line of
// input, when each of them has exchanged two more messages.
func runClients(addr string, n int) int {
	_, cfg := identity()
	all := make([]*tls.Conn, n)
	for i := range all {
		c, err := tls.Dial("tcp", addr, cfg)
		if err == nil {
			err = exchangeNumbered(c, bufio.NewReader(c), 1) // before Limits.FirstByteTimeout
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		all[i] = c
		if (i+1)%connectedEach == 0 {
			fmt.Println("connected")
		}
	}
	fmt.Println("ready")
	var round atomic.Int64
	inFlight := make(chan struct{}, 100)
	var exchanging, running sync.WaitGroup
	for input := bufio.NewScanner(os.Stdin); input.Scan(); fmt.Println("ready") {
		exchanging.Add(n)
		if round.Add(1) == 1 {
			for _, c := range all {
				running.Go(func() { exchangeLines(c, &round, inFlight, exchanging.Done) })
			}
		}
		exchanging.Wait()
	}
	round.Store(-1)
	running.Wait()
	return 0
}

type clientProcesses struct {
	t         *testing.T
	processes []*testkit.Process
	inputs    []io.WriteCloser
	rounds    int
}

// start starts a process and waits until its n clients are connected.
func (p *clientProcesses) start(addr string, n int) {
	p.t.Helper()
	cmd, err := newSuccessorFunc(p.t, successorConfig{Addr: addr, Clients: n})()
	requireNoError(p.t, err)
	cmd.Stderr = nil // kept with its output
	input, err := cmd.StdinPipe()
	requireNoError(p.t, err)
	p.processes, p.inputs = append(p.processes, testkit.Start(p.t, cmd)), append(p.inputs, input)
	process := p.processes[len(p.processes)-1]
	for i := range n / connectedEach {
		process.WaitForOutput(fmt.Sprintf("(connected\n){%d}", i+1))
	}
	process.WaitForOutput("ready\n")
}

// exchange waits until each client has exchanged two more messages.
func (p *clientProcesses) exchange() {
	p.t.Helper()
	p.rounds++
	for _, input := range p.inputs {
		_, err := io.WriteString(input, "\n")
		requireNoError(p.t, err)
	}
	for _, process := range p.processes {
		process.WaitForOutput(fmt.Sprintf("(ready\n){%d}", p.rounds+1))
	}
}

// stop ends the clients, all of which have received the expected answers.
func (p *clientProcesses) stop() {
	p.t.Helper()
	for i, process := range p.processes {
		p.inputs[i].Close()
		if code := process.WaitExitCode(); code != 0 {
			p.t.Errorf("clients end with exit code %d, want 0", code)
		}
	}
}

// TestUpgradeTLSInFlight upgrades while clients in other processes exchange messages. With MYRIAD_TEST_FULL it upgrades
// ten times, with 20,000 clients or 5,000 under the race detector. Connections that move stay compact, although new
// ones would not.
func TestUpgradeTLSInFlight(t *testing.T) {
	processes, each, upgrades := 1, 50, 3
	if os.Getenv("MYRIAD_TEST_FULL") != "" {
		processes, each, upgrades = 4, 5000, 10
		if testkit.RaceEnabled {
			processes = 1
		}
	}
	clients := processes * each
	if processes == 1 {
		testkit.AcquireDescriptorsOrSkip(t, clients)
	} // otherwise each loop has a descriptor table, if the limit is too low
	for from, to := range map[string]string{Epoll: Uring, Uring: Epoll} {
		t.Run(from+" to "+to, func(t *testing.T) {
			_, cfg := identity()
			limits := Limits{MaxConns: clients + 100}
			s, _ := startUpgradable(t, successorConfig{Model: from, TLS: true, Limits: limits},
				successorConfig{Model: to, TLS: true, Limits: limits, DisableCompactTLS: true})
			others := clientProcesses{t: t}
			for range processes {
				others.start(s.addr, each)
			}
			control := testkit.DialTLS(t, s.addr, cfg)
			requireNoError(t, control.SetDeadline(time.Time{})) // MYRIAD_TEST_FULL takes longer
			pid := os.Getpid()
			for i := range upgrades {
				others.exchange()
				if i == 0 {
					s.upgradeMoving(t, clients+1, nil)
				} else {
					control.Send("upgrade\n")
				}
				old := pid
				waitFor(t, "no other process serves", func() bool { pid = servingPID(t, control); return pid != old })
				if i > 0 {
					waitProcessEnd(t, old) // otherwise the upgrade is still in progress
				}
			}
			others.exchange()
			others.stop()
			control.Send("stop\n")
			waitProcessEnd(t, pid)
			expectNoError(t, s.waitResult(t))
		})
	}
}

// TestTicketsOfWorkers checks that clients resume their sessions at any worker process, also after an upgrade.
func TestTicketsOfWorkers(t *testing.T) {
	_, client := identity()
	client = client.Clone()
	client.ClientSessionCache = tls.NewLRUClientSessionCache(0)
	cfg := successorConfig{Model: Epoll, TLS: true, Processes: 2}
	s, _ := startUpgradable(t, cfg, cfg)
	connect := func(resumes bool) (pid int) {
		t.Helper()
		c, pid := dialResuming(t, s.addr, client, resumes)
		c.Close()
		return pid
	}
	seen := map[int]bool{connect(false): true}
	testkit.WaitFor(t, "both workers serve", func() bool { seen[connect(true)] = true; return len(seen) == 2 })
	u, err := s.Upgrade(t.Context())
	if err != nil {
		t.Fatalf("Upgrade: %+v, %v", u, err)
	}
	expectNoError(t, s.waitResult(t))
	for range 4 {
		if pid := connect(true); seen[pid] {
			t.Errorf("worker %d of the old process serves", pid)
		}
	}
	requireNoError(t, syscall.Kill(u.PID, syscall.SIGTERM))
	waitProcessEnd(t, u.PID)
}
