package tcp

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/secure"
	"github.com/myriad-go/myriad/internal/secure/tls13"
	"github.com/myriad-go/myriad/internal/testkit"
)

// compactClient is a TLS client that can send a KeyUpdate, which crypto/tls can't.
type compactClient struct {
	net.Conn
	records  tls13.Conn
	ciphers  tls13.CipherCache
	awake    chan struct{} // a signal of the handshake
	out      []byte
	received []byte // ciphertext that was not decrypted yet
	line     []byte // plaintext before the end of a line
}

func (c *compactClient) Emit(p []byte) { c.out = append(c.out, p...) }

func (c *compactClient) Wake() {
	select {
	case c.awake <- struct{}{}:
	default:
	}
}

func (c *compactClient) AppendSpace(n int) []byte {
	c.out = append(c.out, make([]byte, n)...)
	return c.out[len(c.out)-n:]
}

func (c *compactClient) flush() error {
	_, err := c.Conn.Write(c.out)
	c.out = c.out[:0]
	return err
}

func dialCompact(addr string, cfg *tls.Config, limiter *secure.HandshakeLimiter) (*compactClient, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	c := &compactClient{Conn: conn, awake: make(chan struct{}, 1)}
	session := secure.NewClientSession(cfg, limiter, c, nil, true)
	buffer := make([]byte, 1<<10)
	for {
		open, err := session.AdvanceHandshake()
		if err = errors.Join(err, c.flush()); err != nil {
			return nil, err
		}
		if open {
			break
		}
		select {
		case <-c.awake:
			continue
		case <-time.After(time.Millisecond): // it waits for input
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		switch n, err := conn.Read(buffer); {
		case n > 0:
			if err := session.FeedHandshake(buffer[:n]); err != nil {
				return nil, err
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return nil, err
		}
	}
	_ = conn.SetReadDeadline(time.Time{})
	var reason secure.StayReason
	if c.records, c.received, reason = session.TakeOver(&c.ciphers); reason != secure.StayNone {
		return nil, fmt.Errorf("the connection stays in crypto/tls for reason %d", reason)
	}
	return c, nil
}

func (c *compactClient) send(line string) error {
	return errors.Join(c.records.Write(c, []byte(line+"\n")), c.flush())
}

// exchangeLine sends a line and returns the next line that it receives.
func (c *compactClient) exchangeLine(line string) (string, error) {
	if err := c.send(line); err != nil {
		return "", err
	}
	for {
		if before, rest, ok := bytes.Cut(c.line, []byte("\n")); ok {
			answer := string(before)
			c.line = bytes.Clone(rest)
			return answer, nil
		}
		plaintext, used, err := c.records.ReadInPlace(c, c.received)
		c.received = c.received[used:]
		c.line = append(c.line, plaintext...)
		switch {
		case err == nil || len(plaintext) > 0:
		case !errors.Is(err, tls13.ErrAgain):
			return "", err
		default:
			c.received = make([]byte, 1<<10)
			n, err := c.Conn.Read(c.received)
			if c.received = c.received[:n]; err != nil {
				return "", err
			}
		}
	}
}

// exchangeLines exchanges messages and updates keys until round is negative, each time in a slot of inFlight. It calls
// done when it has exchanged two messages since round has changed. The process ends if an answer is wrong.
func (c *compactClient) exchangeLines(round *atomic.Int64, inFlight chan struct{}, done func()) {
	defer c.Close()
	var reported int64
	exchanged := 0
	for i := 2; ; i++ {
		inFlight <- struct{}{}
		current := round.Load()
		if current < 0 {
			<-inFlight
			return
		}
		var err error
		if i%2 == 0 {
			err = c.records.UpdateKeys(c)
		}
		answer, exchangeErr := c.exchangeLine("x")
		<-inFlight
		if err = errors.Join(err, exchangeErr); err != nil || answer != "x "+strconv.Itoa(i) {
			fmt.Fprintf(os.Stderr, "message %d is answered by %q, %v\n", i, answer, err)
			os.Exit(1)
		}
		if current == reported {
			continue
		}
		if exchanged++; exchanged == 2 {
			reported, exchanged = current, 0
			done()
		}
	}
}

// connectedEach is the number of new clients after which runClients reports progress.
const connectedEach = 500

// runClients is the main function of a process that connects n clients. From the first line of input to the end of the
// input, they exchange messages, 100 of them at a time. It prints "ready" when all are connected and, for each line of
// input, when each of them has exchanged two more messages.
func runClients(addr string, n int) int {
	_, cfg := identity()
	limiter := secure.NewHandshakeLimiter(0, 0)
	all := make([]*compactClient, n)
	for i := range all {
		var err error
		if all[i], err = dialCompact(addr, cfg, limiter); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		if answer, err := all[i].exchangeLine("x"); err != nil || answer != "x 1" { // before Limits.FirstByteTimeout
			fmt.Fprintf(os.Stderr, "the first message is answered by %q, %v\n", answer, err)
			return 1
		}
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
				running.Go(func() { c.exchangeLines(&round, inFlight, exchanging.Done) })
			}
		}
		exchanging.Wait()
	}
	round.Store(-1)
	running.Wait()
	return 0
}

// clientProcesses are processes with clients.
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
		if code := process.ExitCode(); code != 0 {
			p.t.Errorf("clients end with exit code %d, want 0", code)
		}
	}
}

// TestUpgradeTLSInFlight upgrades while clients in other processes exchange messages and update their keys. With
// MYRIAD_TEST_FULL it upgrades ten times, with 20,000 clients or 5,000 under the race detector. Connections that move
// stay compact, although new ones would not.
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
		testkit.ReserveDescriptors(t, clients)
	} // otherwise each loop has a descriptor table, if the limit is too low
	for from, to := range map[string]string{Epoll: Uring, Uring: Epoll} {
		t.Run(from+" to "+to, func(t *testing.T) {
			_, cfg := identity()
			maxConns := clients + 100
			s, _ := startUpgradable(t, successorConfig{Model: from, TLS: true, MaxConns: maxConns}, successorConfig{Model: to, TLS: true, MaxConns: maxConns, DisableCompactTLS: true})
			others := clientProcesses{t: t}
			for range processes {
				others.start(s.addr, each)
			}
			control, err := dialCompact(s.addr, cfg, secure.NewHandshakeLimiter(0, 0))
			requireNoError(t, err)
			defer control.Close()
			pid := os.Getpid()
			for i := range upgrades {
				others.exchange()
				if i == 0 {
					s.upgradeMoving(t, clients+1, nil)
				} else {
					requireNoError(t, control.send("upgrade"))
				}
				old := pid
				testkit.WaitFor(t, "another process serves", func() bool {
					answer, err := control.exchangeLine("pid")
					requireNoError(t, err)
					now, _ := strconv.Atoi(strings.TrimSpace(answer))
					moved := now != pid
					pid = now
					return moved
				})
				if i > 0 {
					waitProcessEnd(t, old) // otherwise the upgrade is still in progress
				}
			}
			others.exchange()
			others.stop()
			requireNoError(t, control.send("stop"))
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
		c := testkit.DialTLS(t, s.addr, client)
		defer c.Close()
		pid = servingPID(t, c) // the answer comes behind the server's tickets
		expectEqual(t, "a session is resumed", c.Conn.(*tls.Conn).ConnectionState().DidResume, resumes)
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
