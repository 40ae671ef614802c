package clients

import (
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/internal/testkit/testserver"
)

var against = flag.String("against", "hub", "the server: hub, which is built here, redis-server, or the address of one that runs")

type server struct {
	addr        string
	t           testing.TB
	args        []string
	stopProcess func() // nil for an external server
}

// startServer starts a server that stops with the test. users are lines of an ACL file; without any, everybody
// may do everything.
func startServer(t testing.TB, users ...string) *server {
	if *against != "hub" && *against != "redis-server" {
		if len(users) > 0 {
			t.Skip("the server of an address has its own users")
		}
		return &server{t: t, addr: *against}
	}
	s := &server{t: t, addr: testserver.FreeAddr(t)}
	dir := t.TempDir()
	file := filepath.Join(dir, "users")
	testkit.RequireNoError(t, os.WriteFile(file, []byte(strings.Join(users, "\n")+"\n"), 0o600))
	_, port, _ := net.SplitHostPort(s.addr)
	switch {
	case *against == "redis-server":
		s.args = []string{"redis-server", "--port", port, "--save", "", "--dir", dir, "--aclfile", file}
	case len(users) > 0:
		s.args = []string{hubBinary(t), "hub", "--addr", s.addr, "--users", file}
	default:
		s.args = []string{hubBinary(t), "hub", "--addr", s.addr}
	}
	s.startProcess()
	return s
}

func (s *server) startProcess() {
	s.t.Helper()
	p := testkit.Start(s.t, exec.Command(s.args[0], s.args[1:]...))
	s.stopProcess = sync.OnceFunc(func() {
		p.Signal(syscall.SIGTERM)
		testkit.WantEqual(s.t, p.ExitCode(), 0, "exit code of %s", strings.Join(s.args, " "))
	})
	s.t.Cleanup(s.stopProcess)
	testkit.WaitFor(s.t, "the server listens: "+strings.Join(s.args, " "), func() bool {
		c, err := net.Dial("tcp", s.addr)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

func (s *server) url(user, password string) string {
	if user == "" && password == "" {
		return "redis://" + s.addr
	}
	return fmt.Sprintf("redis://%s:%s@%s", user, password, s.addr)
}

// hubBinary is built once.
func hubBinary(t testing.TB) string {
	path, err := buildMyriad()
	testkit.RequireNoError(t, err)
	return path
}

var buildMyriad = sync.OnceValues(func() (string, error) {
	return testserver.Build(buildDir, filepath.Join("..", ".."), "./tools/myriad")
})

var buildDir string

func TestMain(m *testing.M) {
	flag.Parse()
	var err error
	if buildDir, err = os.MkdirTemp("", "clients"); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(code)
}
