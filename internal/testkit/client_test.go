package testkit

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestConn checks a client of an echo server, including EOF and reset.
func TestConn(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer nc.Close()
				_, _ = io.Copy(nc, nc)
			}()
		}
	}()
	c := Dial(t, l.Addr().String())
	c.ExchangeLine("a line", "a line")
	c.Send("some text")
	c.Expect("some")
	c.Send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")
	c.Expect(" text")
	if res, body := c.ReadResponse(); res.StatusCode != 200 || body != "hi" {
		t.Errorf("got %s %q", res.Status, body)
	}
	c.Send("the rest")
	c.CloseWrite()
	c.ExpectEOF("the rest")
	Dial(t, l.Addr().String()).Reset()
}

// TestReadRESP reads commands and values of each kind.
func TestReadRESP(t *testing.T) {
	for _, want := range []string{
		RESPCommand("SUBSCRIBE", "a topic"), "+OK\r\n", ":7\r\n", "$-1\r\n", "_\r\n", "%1\r\n+k\r\n*2\r\n:1\r\n:2\r\n", "$0\r\n\r\n",
	} {
		if got, err := ReadRESP(bufio.NewReader(strings.NewReader(want + "+more\r\n"))); got != want || err != nil {
			t.Errorf("got %q, %v; want %q", got, err, want)
		}
	}
	for _, bad := range []string{"", "x\r\n", "?1\r\n", "$5\r\nab"} {
		if got, err := ReadRESP(bufio.NewReader(strings.NewReader(bad))); err == nil {
			t.Errorf("%q is read as %q", bad, got)
		}
	}
}

// TestProcess checks output, the exit code, and a process ended by a signal.
func TestProcess(t *testing.T) {
	p := Start(t, exec.Command("sh", "-c", "echo port 1234; read line; exit 3"))
	if got := p.WaitForOutput(`port (\d+)`); got[1] != "1234" {
		t.Errorf("got %q", got)
	}
	if code := p.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
	p = Start(t, exec.Command("sleep", "1000"))
	p.Signal(syscall.SIGTERM)
	if code := p.ExitCode(); code != -1 {
		t.Errorf("exit code %d, want -1", code)
	}
}
