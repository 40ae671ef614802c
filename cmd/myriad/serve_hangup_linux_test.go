package main

import (
	"crypto/tls"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/myriad-go/myriad/internal/await"
)

// shown is the certificate that a server shows.
func shown(t *testing.T, addr string) string {
	t.Helper()
	c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return string(c.ConnectionState().PeerCertificates[0].Raw)
}

// With TLS a hang-up of the whole group, or of the first process, reloads the certificate.
func TestHangupReloads(t *testing.T) {
	for _, args := range [][]string{nil, {"--processes", "2"}} {
		cert, key := certFiles(t)
		cmd := command(t, append([]string{"serve", "--app", "lines", "--addr", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key}, args...)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		s := startCommand(t, cmd)
		before, children := shown(t, s.addr), childrenOf(t, s.Process.Pid)
		otherCert, otherKey := certFiles(t)
		for from, to := range map[string]string{otherCert: cert, otherKey: key} {
			if err := os.Rename(from, to); err != nil {
				t.Fatal(err)
			}
		}
		syscall.Kill(-s.Process.Pid, syscall.SIGHUP)
		said := func(what string) func() bool {
			return func() bool { return strings.Count(s.stderr.String(), what) == 1 }
		}
		await.True(t, "word of the reload", said("hangup: certificate "+cert+" reloaded, it expires "))
		await.True(t, "the new certificate", func() bool { return shown(t, s.addr) != before })
		if err := os.WriteFile(key, []byte("broken"), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Process.Signal(syscall.SIGHUP)
		await.True(t, "word of a failure", said("hangup: the certificate can't be reloaded"))
		if now := childrenOf(t, s.Process.Pid); len(now) != len(children) || len(now) > 0 && now[0] != children[0] {
			t.Errorf("worker processes %v, before %v; want the same", now, children)
		}
		if code := s.end(t, syscall.SIGTERM); code != 0 {
			t.Errorf("exit code %d, stderr %q", code, s.stderr)
		}
	}
}

// A terminal that is closed ends whoever reads standard error, too, and sends SIGHUP more
// than once: what has begun comes to its end all the same.
func TestHangupDrains(t *testing.T) {
	cmd := command(t, "serve", "--app", "lines", "--addr", "127.0.0.1:0")
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = writer
	s := startCommand(t, cmd)
	writer.Close()
	c := halfMessage(t, s.addr)
	reader.Close()
	s.Process.Signal(syscall.SIGHUP)
	untilRefused(t, s.addr)
	s.Process.Signal(syscall.SIGHUP)
	io.WriteString(c, " and half\n")
	if answer, err := io.ReadAll(c); err != nil || string(answer) != "half and half\n" {
		t.Errorf("the message that had begun: %q, %v", answer, err)
	}
	c.Close()
	if err := s.Wait(); err != nil {
		t.Errorf("it ended with %v; want exit code 0", err)
	}
}
