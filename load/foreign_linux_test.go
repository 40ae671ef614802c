package load

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// endsWithThread has a process killed when the thread that starts it ends, as when a test
// that takes too long is ended by a panic: no server is left behind.
func endsWithThread(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// startUnix starts a server on a unix socket.
func startUnix(t *testing.T, path string, args func(socket string) []string) *foreign {
	t.Helper()
	f := &foreign{network: "unix", addr: filepath.Join(t.TempDir(), "s")}
	if !f.begin(t, path, args(f.addr)) {
		t.Fatalf("%s has ended by itself; it says: %s", path, f.said.String())
	}
	return f
}

func TestRedisUnix(t *testing.T) {
	t.Parallel()
	f := startUnix(t, program(t, "redis-server"), func(socket string) []string {
		return []string{"--port", "0", "--unixsocket", socket, "--save", "", "--appendonly", "no", "--daemonize", "no"}
	})
	f.eachPipeline(t, Config{Message: []byte("PING\r\n"), Answer: []byte("+PONG\r\n")})
}

func TestMemcachedUnix(t *testing.T) {
	t.Parallel()
	f := startUnix(t, program(t, "memcached"), func(socket string) []string {
		return []string{"-s", socket, "-u", "root", "-t", "1", "-m", "16"}
	})
	f.eachPipeline(t, Config{Message: []byte("get nosuch\r\n"), Answer: []byte("END\r\n")})
}
