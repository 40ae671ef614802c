package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

// These tests let programs that we did not write be the clients.

// need skips a test whose program is not installed.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("%s is not installed: %v", program, err)
	}
}

// client runs a program to its end, with input, and returns what it printed. The
// input stays open until it has ended if hold is set.
func client(t *testing.T, hold bool, input string, args ...string) string {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.WaitDelay = patience
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr lockedBuffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	if _, err := io.WriteString(in, input); err != nil {
		t.Fatal(err)
	}
	if !hold {
		in.Close()
		all, _ := io.ReadAll(out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v; stderr: %s", strings.Join(args, " "), err, stderr.String())
		}
		return string(all)
	}
	got := make([]byte, len(input))
	if _, err := io.ReadFull(out, got); err != nil {
		t.Errorf("%s: %v after %q; stderr: %s", strings.Join(args, " "), err, got, stderr.String())
	}
	in.Close()
	cmd.Process.Kill()
	cmd.Wait()
	return string(got)
}

// certificate writes a certificate for localhost and its key to files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for _, f := range []struct {
		name, kind string
		bytes      []byte
	}{{cert, "CERTIFICATE", der}, {key, "PRIVATE KEY", pkcs8}} {
		if err := os.WriteFile(f.name, pem.EncodeToMemory(&pem.Block{Type: f.kind, Bytes: f.bytes}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// onEveryModel runs a test under every model that can run here.
func onEveryModel(t *testing.T, f func(t *testing.T, model string)) {
	for _, m := range myriad.Models() {
		t.Run(m, func(t *testing.T) { f(t, m) })
	}
}

const twoLines = "one\nand two\n"

func wantText(t *testing.T, who, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s printed %q, want %q", who, got, want)
	}
}

func TestOpenSSL(t *testing.T) {
	need(t, "openssl")
	cert, key := certificate(t)
	onEveryModel(t, func(t *testing.T, model string) {
		s := startServer(t, "serve", "--app", "lines", "--model", model, "--tls-cert", cert, "--tls-key", key)
		for _, version := range []string{"-tls1_2", "-tls1_3"} {
			got := client(t, true, twoLines, "openssl", "s_client", "-connect", s.addr, "-quiet", "-verify_return_error",
				"-CAfile", cert, "-servername", "localhost", "-verify_hostname", "localhost", version)
			wantText(t, "openssl s_client "+version, got, twoLines)
		}
		if code := s.end(t, os.Interrupt); code != 0 {
			t.Errorf("exit code %d, want 0; stderr: %s", code, s.stderr)
		}
	})
}

func TestSocat(t *testing.T) {
	need(t, "socat")
	cert, key := certificate(t)
	onEveryModel(t, func(t *testing.T, model string) {
		s := startServer(t, "serve", "--app", "lines", "--model", model, "--tls-cert", cert, "--tls-key", key)
		got := client(t, false, twoLines, "socat", "-t5", "-", "OPENSSL:"+s.addr+",cafile="+cert+",commonname=localhost")
		wantText(t, "socat, with TLS", got, twoLines)
		path := filepath.Join(t.TempDir(), "socket")
		u := startCommand(t, command(t, "serve", "--app", "lines", "--model", model, "--network", "unix", "--addr", path))
		got = client(t, false, twoLines, "socat", "-t5", "-", "UNIX-CONNECT:"+path)
		wantText(t, "socat, by a unix socket", got, twoLines)
		if code := u.end(t, os.Interrupt); code != 0 {
			t.Errorf("exit code %d, want 0; stderr: %s", code, u.stderr)
		}
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("the socket's file after the end: %v, want that it is removed", err)
		}
	})
}

func TestNetcatAsProxy(t *testing.T) {
	need(t, "nc")
	onEveryModel(t, func(t *testing.T, model string) {
		s := startServer(t, "serve", "--app", "lines", "--model", model, "--trusted-proxy", "127.0.0.1")
		host, port, _ := net.SplitHostPort(s.addr)
		got := client(t, false, "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n"+twoLines, "nc", "-N", host, port)
		wantText(t, "nc, as a proxy", got, twoLines)
		if got := client(t, false, twoLines, "nc", "-N", host, port); got != "" {
			t.Errorf("a proxy that sends no PROXY header was answered %q, want nothing", got)
		}
	})
}

func TestCurl(t *testing.T) {
	need(t, "curl")
	cert, key := certificate(t)
	onEveryModel(t, func(t *testing.T, model string) {
		plain := startServer(t, "serve", "--app", "http", "--model", model)
		got := client(t, false, "", "curl", "-sS", "--fail", "http://"+plain.addr+"/[1-3]")
		wantText(t, "curl, three times", got, strings.Repeat("Hello, World!", 3))
		secured := startServer(t, "serve", "--app", "http", "--model", model, "--tls-cert", cert, "--tls-key", key)
		got = client(t, false, "", "curl", "-sS", "--fail", "--cacert", cert, "https://"+secured.addr+"/[1-3]")
		wantText(t, "curl, with TLS", got, strings.Repeat("Hello, World!", 3))
	})
}

func TestWrk(t *testing.T) {
	need(t, "wrk")
	cert, key := certificate(t)
	onEveryModel(t, func(t *testing.T, model string) {
		for _, how := range []struct {
			scheme string
			flags  []string
		}{{"http", nil}, {"https", []string{"--tls-cert", cert, "--tls-key", key}}} {
			s := startServer(t, append([]string{"serve", "--app", "http", "--model", model}, how.flags...)...)
			got := client(t, false, "", "wrk", "-t1", "-c50", "-d1s", how.scheme+"://"+s.addr+"/")
			if !strings.Contains(got, "requests in") || strings.Contains(got, "errors") || strings.Contains(got, "Non-2xx") {
				t.Errorf("wrk over %s printed:\n%s\nwant requests and no errors", how.scheme, got)
			}
		}
	})
}

func TestAdmin(t *testing.T) {
	s := startServer(t, "serve", "--app", "lines", "--admin", "127.0.0.1:0", "--memory-limit", "auto")
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("hello\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/healthz": "ok", "/readyz": "ok", "/stats": `"Messages": 1`, "/metrics": "\nmyriad_messages_total 1\n",
		"/debug/pprof/goroutine?debug=1": "goroutine profile",
	} {
		answer, err := http.Get(s.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		text, _ := io.ReadAll(answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK || !strings.Contains(string(text), want) {
			t.Errorf("GET %s: %s, %.200q; want 200 and %q in it", path, answer.Status, text, want)
		}
	}
}
