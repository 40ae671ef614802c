package examples

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

func startEchoServer(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			running.Go(func() {
				defer c.Close()
				io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
			})
		}
	})
	t.Cleanup(func() { l.Close(); running.Wait() })
	return l.Addr().String()
}

// checkEcho sends n bytes through the proxy at addr, reads them back with a pause before each read, and
// compares them.
func checkEcho(addr string, n int, readPause time.Duration) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(testkit.Timeout))
	sent := make(chan error, 1)
	go func() {
		piece := make([]byte, 64<<10)
		for at := 0; at < n; at += len(piece) {
			piece = piece[:min(len(piece), n-at)]
			fillPattern(piece, at)
			if _, err := c.Write(piece); err != nil {
				sent <- fmt.Errorf("sending byte %d: %w", at, err)
				return
			}
		}
		sent <- c.(*net.TCPConn).CloseWrite()
	}()
	got, want, at := make([]byte, 256<<10), make([]byte, 256<<10), 0
	for {
		time.Sleep(readPause)
		m, err := c.Read(got)
		fillPattern(want[:m], at)
		if !bytes.Equal(got[:m], want[:m]) {
			return fmt.Errorf("wrong bytes from %d on", at)
		}
		if at += m; err == io.EOF && at == n {
			return <-sent
		}
		if err != nil {
			return errors.Join(fmt.Errorf("after %d bytes of %d: %w", at, n, err), <-sent)
		}
	}
}

// fillPattern fills p with a deterministic stream, starting at offset.
func fillPattern(p []byte, offset int) {
	for i := range p {
		p[i] = byte((offset + i) ^ (offset+i)>>8 ^ (offset+i)>>16)
	}
}

// TestProxy checks the echo for fast and slow readers, and that the proxy's memory stays limited.
func TestProxy(t *testing.T) {
	const bytes, much = 20_000_000, 16 << 20
	to := startEchoServer(t)
	for _, model := range tcp.Models() {
		p, _ := startProgram(t, exec.Command(programPath(t, "proxy"), "-addr", "127.0.0.1:0", "-to", to, "-model", model))
		addr := p.WaitForOutput(`proxy on (\S+)\n`)[1]
		if err := checkEcho(addr, 1<<20, 0); err != nil {
			t.Fatalf("%s: %v", model, err)
		}
		before := readRSS(t, p.Process.Pid)
		for _, rest := range []time.Duration{0, time.Millisecond} {
			if err := checkEcho(addr, bytes, rest); err != nil {
				t.Fatalf("%s: with a rest of %v: %v", model, rest, err)
			}
			if now := readRSS(t, p.Process.Pid); now > before+much {
				t.Fatalf("%s: %d bytes are resident, %d at first", model, now, before)
			}
		}
	}
}

func readRSS(t *testing.T, pid int) int64 {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	var kib int64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatalf("VmRSS in /proc/%d/status: %v", pid, err)
	}
	return kib << 10
}
