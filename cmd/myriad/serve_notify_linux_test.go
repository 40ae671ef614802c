package main

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// The service manager hears once that the server serves and once that it ends, whoever
// has ordered that, and nothing from worker processes.
func TestServiceManager(t *testing.T) {
	const secret = "0123456789abcdef"
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		end  func(t *testing.T, s *server)
	}{
		"drained from the page":                 {nil, func(t *testing.T, s *server) { s.order(t, "drain", secret) }},
		"drained from the page, with processes": {[]string{"--processes", "2"}, func(t *testing.T, s *server) { s.order(t, "drain", secret) }},
		"SIGTERM":                               {nil, func(t *testing.T, s *server) { s.Process.Signal(syscall.SIGTERM) }},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "notify")
			manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
			if err != nil {
				t.Fatal(err)
			}
			defer manager.Close()
			cmd := command(t, append([]string{"serve", "--addr", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--admin-control", "--admin-token-file", token}, c.args...)...)
			cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+socket)
			s := startCommand(t, cmd)
			hear := func(within time.Duration) string {
				b := make([]byte, 100)
				manager.SetReadDeadline(time.Now().Add(within))
				n, _ := manager.Read(b) // 0 when nothing has come
				return string(b[:n])
			}
			if got := hear(patience); got != "READY=1" {
				t.Errorf("it has heard %q, want READY=1", got)
			}
			c.end(t, s)
			if err := s.Wait(); err != nil {
				t.Errorf("it ended with %v; stderr: %s", err, s.stderr)
			}
			const said = 10 * time.Millisecond // all is there by now, if there is more
			if first, second := hear(patience), hear(said); first != "STOPPING=1" || second != "" {
				t.Errorf("then it has heard %q and %q, want STOPPING=1 and nothing", first, second)
			}
		})
	}
}
