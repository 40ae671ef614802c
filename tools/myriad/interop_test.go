package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad/internal/testkit"
	"github.com/myriad-go/myriad/tcp"
)

// These tests let programs that we did not write be the clients.

// runClient runs a program with input and returns its output. With keepInputOpen the input stays
// open, and the program is killed after it has printed as much as was sent.
func runClient(t *testing.T, keepInputOpen bool, input string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	var stdout, stderr lockedBuffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	in, err := cmd.StdinPipe()
	failOnError(t, err)
	failOnError(t, cmd.Start())
	_, err = io.WriteString(in, input)
	failOnError(t, err)
	if keepInputOpen {
		testkit.WaitFor(t, "the answer", func() bool { return len(stdout.String()) >= len(input) })
		cancel()
	}
	in.Close()
	if err := cmd.Wait(); err != nil && !keepInputOpen {
		t.Errorf("%s: %v; stderr: %s", strings.Join(args, " "), err, stderr.String())
	}
	return stdout.String()
}

// writeCertificate writes a certificate for localhost and its key to files.
func writeCertificate(t *testing.T, changes ...func(*x509.Certificate)) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	failOnError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"}, DNSNames: []string{"localhost", "there"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true,
	}
	for _, change := range changes {
		change(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	failOnError(t, err)
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	failOnError(t, err)
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	failOnError(t, os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	failOnError(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}), 0o600))
	return cert, key
}

// Programs that we did not write get their answers on every model.
func TestInterop(t *testing.T) {
	skipIfShort(t)
	const text = "one\nand two\n"
	cert, key := writeCertificate(t)
	secured := " --tls-cert " + cert + " --tls-key " + key
	for _, model := range tcp.Models() {
		socket := filepath.Join(t.TempDir(), "socket")
		for name, c := range map[string]struct {
			serve, client, input, want string
			hold                       bool
		}{
			"openssl 1.2": {"lines" + secured, "openssl s_client -connect {addr} -quiet -verify_return_error -CAfile " + cert + " -servername localhost -verify_hostname localhost -tls1_2", text, text, true},
			"openssl 1.3": {"lines" + secured, "openssl s_client -connect {addr} -quiet -verify_return_error -CAfile " + cert + " -servername localhost -verify_hostname localhost -tls1_3", text, text, true},
			"socat, TLS":  {"lines" + secured, "socat -t5 - OPENSSL:{addr},cafile=" + cert + ",commonname=localhost", text, text, false},
			"socat, unix": {"lines --network unix --addr " + socket, "socat -t5 - UNIX-CONNECT:" + socket, text, text, false},
			"nc":          {"lines", "nc -N {host} {port}", text, text, false},
			"nc, a proxy": {"lines --trusted-proxy 127.0.0.1", "nc -N {host} {port}", "PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n" + text, text, false},
			"nc, none":    {"lines --trusted-proxy 127.0.0.1", "nc -N {host} {port}", text, "", false},
			"curl":        {"http", "curl -sS --fail http://{addr}/[1-3]", "", strings.Repeat("Hello, World!", 3), false},
			"curl, TLS":   {"http" + secured, "curl -sS --fail --cacert " + cert + " https://{addr}/[1-3]", "", strings.Repeat("Hello, World!", 3), false},
		} {
			t.Run(model+"/"+name, func(t *testing.T) {
				program, _, _ := strings.Cut(c.client, " ")
				if _, err := exec.LookPath(program); err != nil {
					t.Skipf("%s is not installed: %v", program, err)
				}
				s := serveLine(t, "serve --model "+model+" --app "+c.serve)
				host, port, _ := net.SplitHostPort(s.addr)
				args := strings.Fields(strings.NewReplacer("{addr}", s.addr, "{host}", host, "{port}", port).Replace(c.client))
				if got := runClient(t, c.hold, c.input, args...); got != c.want {
					t.Errorf("it printed %q, want %q", got, c.want)
				}
				if code := s.stop(); code != 0 {
					t.Errorf("exit code %d; stderr: %s", code, s.stderr)
				}
			})
		}
		if _, err := os.Lstat(socket); !os.IsNotExist(err) {
			t.Errorf("the socket's file after the end: %v, want that it is removed", err)
		}
	}
}
