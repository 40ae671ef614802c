package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/myriad-go/myriad"
)

// A line that begins with an exclamation mark reaches all, others come back, and answers
// to heartbeats don't.
func TestPush(t *testing.T) {
	for _, model := range myriad.Models() {
		s := startServer(t, "serve", "--app", "push", "--model", model)
		var conns []net.Conn
		var readers []*bufio.Reader
		for range 5 {
			conn := dial(t, s)
			io.WriteString(conn, "hello\n") // so that it has been accepted
			in := bufio.NewReader(conn)
			expectLine(t, model, in, "hello")
			conns, readers = append(conns, conn), append(readers, in)
		}
		io.WriteString(conns[0], "pong\n!news for all\n")
		for _, in := range readers {
			expectLine(t, model, in, "news for all")
		}
		io.WriteString(conns[1], "pong\npongo\nhave!\n!\n")
		for _, want := range []string{"pongo", "have!", ""} {
			expectLine(t, model, readers[1], want)
		}
		expectLine(t, model, readers[0], "")
		if code := s.end(t, os.Interrupt); code != 0 {
			t.Errorf("%s: exit code %d, stderr %s", model, code, s.stderr)
		}
	}
}

// What can't be sent to all is said to who asked.
func TestPushTooLarge(t *testing.T) {
	s := startServer(t, "serve", "--app", "push", "--max-unsent", "100")
	conn := dial(t, s)
	io.WriteString(conn, "!"+strings.Repeat("x", 200)+"\n")
	if got, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.HasPrefix(got, "error: ") {
		t.Errorf("got %q, %v, want an error", got, err)
	}
}

// expectLine reads a line and looks whether it is the one.
func expectLine(t *testing.T, who string, in *bufio.Reader, want string) {
	t.Helper()
	if got, err := in.ReadString('\n'); err != nil || got != want+"\n" {
		t.Fatalf("%s: got %q, %v, want %q", who, got, err, want+"\n")
	}
}
