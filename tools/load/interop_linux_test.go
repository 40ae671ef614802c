package load

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/myriad-go/myriad/internal/testkit"
)

// nginxConfig configures a server in one process with all its files in its working directory. Its
// arguments are the addresses to listen at, without TLS and with.
const nginxConfig = `
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events { worker_connections 300; }
http {
	access_log off;
	client_body_temp_path body;
	proxy_temp_path proxy;
	fastcgi_temp_path fastcgi;
	uwsgi_temp_path uwsgi;
	scgi_temp_path scgi;
	default_type text/plain;
	gzip on;
	gzip_types text/plain;
	keepalive_timeout 1h;
	keepalive_requests 1000000000;
	ssl_protocols TLSv1.2 TLSv1.3;
	ssl_certificate cert.pem;
	ssl_certificate_key key.pem;
	server { listen %s; listen %s ssl; root .; location /few { keepalive_requests 3; } }
}
`

// TestInterop loads nginx, if it is installed: its HTTP, its TLS and its way to close connections.
func TestInterop(t *testing.T) {
	program, err := exec.LookPath("nginx")
	if err != nil {
		if program, err = exec.LookPath("/usr/sbin/nginx"); err != nil {
			t.Logf("nginx is not installed: %v", err)
			return
		}
	}
	own, _ := identity()
	private, err := x509.MarshalPKCS8PrivateKey(own.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	plain, encrypted, dir := unusedAddr(t), unusedAddr(t), t.TempDir()
	for name, text := range map[string]string{
		"cert.pem":   string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Certificate[0]})),
		"key.pem":    string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"hello":      "Hello, World!",
		"few":        "few",
		"large":      strings.Repeat("0123456789abcdef", 10_000),
		"nginx.conf": fmt.Sprintf(nginxConfig, plain, encrypted),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(program, "-p", "./", "-c", "nginx.conf", "-e", "stderr")
	cmd.Dir = dir
	testkit.Start(t, cmd)
	testkit.WaitFor(t, "nginx to take connections", func() bool {
		c, err := net.Dial("tcp", encrypted)
		return err == nil && c.Close() == nil
	})
	for _, test := range []struct {
		path    string
		version uint16
		want    string
	}{
		{"/hello", 0, "reconnected==0"},
		{"/large", 0, "reconnected==0 bytes_received>=64M"},
		{"/few", 0, "reconnected>=113"},
		{"/hello", tls.VersionTLS12, "reconnected==0"},
		{"/few", tls.VersionTLS13, "reconnected>=113"},
	} {
		cfg := Config{Match: matchHTTP, Message: "GET " + test.path + " HTTP/1.1\r\nHost: there\r\n\r\n", Pipeline: 16, Messages: 20}
		addr := plain
		if test.version != 0 {
			addr, cfg.TLS = encrypted, newClientTLS()
			cfg.TLS.Config.MaxVersion = test.version
		}
		c := loadCase{func(*testing.T) string { return addr }, cfg, "", "connected==20 " + test.want, "", func(t *testing.T, r *Result, _ *eventLog) {
			if version := tls.VersionName(test.version) + ", "; test.version != 0 && !strings.HasPrefix(r.TLS, version) {
				t.Errorf("agreed on %q, want %s", r.TLS, version)
			}
		}}
		testEachModel(t, c.run)
	}
}
