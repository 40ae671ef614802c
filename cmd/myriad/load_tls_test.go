package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/myriad-go/myriad"
)

// certFiles makes a certificate for 127.0.0.1 and "there", and its key.
func certFiles(t *testing.T) (cert, key string) {
	t.Helper()
	secret, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	of := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"there"}, IPAddresses: []net.IP{{127, 0, 0, 1}},
	}
	der, err := x509.CreateCertificate(rand.Reader, of, of, &secret.PublicKey, secret)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(secret)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// load speaks TLS with every server of this program, and says who is not to be
// trusted.
func TestLoadTLS(t *testing.T) {
	cert, key := certFiles(t)
	serves := [][]string{{"plain"}}
	for _, model := range myriad.Models() {
		serves = append(serves, []string{"serve", "--model", model})
	}
	for _, args := range serves {
		s := startServer(t, append(args, "--app", "lines", "--tls-cert", cert, "--tls-key", key)...)
		for _, test := range []struct {
			flags []string
			code  int
			says  string
		}{
			{[]string{"--tls-ca", cert}, 0, "TLS 1.3, "},
			{[]string{"--tls-ca", cert, "--tls-server-name", "there", "--pipeline", "16"}, 0, "20 of 20"},
			{[]string{"--tls-insecure"}, 0, "20 of 20"},
			{nil, 1, "20 × TLS handshake: "},
			{[]string{"--tls-ca", cert, "--tls-server-name", "elsewhere"}, 1, "elsewhere"},
		} {
			flags := append([]string{"load", "-c", "20", "--messages", "50", "--tls", s.addr}, test.flags...)
			got := invoke(t, flags...)
			if got.code != test.code || !strings.Contains(got.stdout, test.says) {
				t.Errorf("%q, %q: exit code %d, want %d and %q:\n%s%s", args, test.flags, got.code, test.code, test.says, got.stdout, got.stderr)
			}
		}
		if got := invoke(t, "load", "-c", "5", "--messages", "1", s.addr); got.code != 1 {
			t.Errorf("%q, without TLS: exit code %d:\n%s", args, got.code, got.stdout)
		}
	}
}

func TestWrongUseOfTLS(t *testing.T) {
	cert, key := certFiles(t)
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"load", "--tls", "--tls-ca", cert, "--tls-insecure", "127.0.0.1:1"}, 2, "expected one of the two"},
		{[]string{"load", "--tls", "--tls-ca", "/does/not/exist", "127.0.0.1:1"}, 2, "/does/not/exist"},
		{[]string{"load", "--tls", "--tls-ca", key, "127.0.0.1:1"}, 2, "expected a PEM file"},
		{[]string{"plain", "--tls-cert", cert}, 2, "expected both"},
		{[]string{"plain", "--heartbeat", "1ms"}, 2, "a heartbeat every 1ms; expected"},
		{[]string{"plain", "--app", "http", "--heartbeat", "1s"}, 2, "expected them with another app"},
		{[]string{"plain", "--buffer", "0"}, 2, "--buffer is 0; expected 512"},
	} {
		if got := invoke(t, c.args...); got.code != c.code || !strings.Contains(got.stderr, c.says) {
			t.Errorf("%q: exit code %d, stderr %q; want %d and %q", c.args, got.code, got.stderr, c.code, c.says)
		}
	}
}
