package tcp

import (
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

// exchangeLine sends a line and returns the next line that it receives.
func (c *compactClient) exchangeLine(line string) (string, error) {
	if err := errors.Join(c.records.Write(c, []byte(line+"\n")), c.flush()); err != nil {
		return "", err
	}
	for {
		if before, rest, ok := bytes.Cut(c.line, []byte("\n")); ok {
			answer := string(before)
			c.line = bytes.Clone(rest)
			return answer, nil
		}
		plaintext, used, err := c.records.Read(c, c.received)
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

// TestUpgradeTLSInFlight upgrades ten times while clients exchange messages and update their keys.
func TestUpgradeTLSInFlight(t *testing.T) {
	clients, upgrades := 50, 3
	if os.Getenv("MYRIAD_TEST_FULL") != "" {
		clients, upgrades = 5000, 10
	}
	testkit.ReserveDescriptors(t, 2*clients)
	for from, to := range map[string]string{Epoll: Uring, Uring: Epoll} {
		t.Run(from+" to "+to, func(t *testing.T) {
			_, cfg := identity()
			limiter := secure.NewHandshakeLimiter(0, 0)
			s, _ := startUpgradable(t, successorConfig{Model: from, TLS: true}, successorConfig{Model: to, TLS: true})
			var stop atomic.Bool
			var exchanges atomic.Int64
			var running sync.WaitGroup
			all := make([]*compactClient, clients)
			for i := range all {
				var err error
				all[i], err = dialCompact(s.addr, cfg, limiter)
				requireNoError(t, err)
			}
			for _, c := range all {
				running.Go(func() {
					defer c.Close()
					for i := 1; !stop.Load() || i < 3; i++ {
						if i%2 == 0 {
							expectNoError(t, c.records.UpdateKeys(c))
						}
						if answer, err := c.exchangeLine("x"); err != nil || answer != "x "+strconv.Itoa(i) {
							t.Errorf("message %d is answered by %q, %v", i, answer, err)
							return
						}
						exchanges.Add(1)
					}
				})
			}
			control, err := dialCompact(s.addr, cfg, limiter)
			requireNoError(t, err)
			defer control.Close()
			pid := os.Getpid()
			for i := range upgrades {
				before := exchanges.Load()
				testkit.WaitFor(t, "each client exchanges messages", func() bool { return exchanges.Load() >= before+2*int64(clients) })
				if i == 0 {
					u, err := s.Upgrade(t.Context())
					if err != nil || u.Moved != clients+1 || u.Lost != 0 || len(u.Stayed) != 0 {
						t.Fatalf("Upgrade: %+v, %v; want %d moved", u, err, clients+1)
					}
				} else if _, err := io.WriteString(lineWriter{control}, "upgrade\n"); err != nil {
					t.Fatal(err)
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
			stop.Store(true)
			running.Wait()
			_, err = io.WriteString(lineWriter{control}, "stop\n")
			requireNoError(t, err)
			waitProcessEnd(t, pid)
			expectNoError(t, s.waitResult(t))
		})
	}
}

// lineWriter writes without waiting for an answer.
type lineWriter struct{ *compactClient }

func (w lineWriter) Write(p []byte) (int, error) {
	return len(p), errors.Join(w.records.Write(w.compactClient, p), w.flush())
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
		if resumed := c.Conn.(*tls.Conn).ConnectionState().DidResume; resumed != resumes {
			t.Errorf("a session is resumed: %v, want %v", resumed, resumes)
		}
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
